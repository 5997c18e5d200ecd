"""The next token of each row from its logits: restrict, then sample.

What a step's rows ask for is worked out on the host and sent to the device; nothing is read back. A
row with logits that are not finite gets NO_TOKEN and does not affect other rows. Knows no request
and no earlier token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.sampling.columns import Marks, Real, Whole, sent
from sluice_runtime.engine.sampling.randomness import uniform
from sluice_runtime.engine.sampling.restriction import Ranked, Restrictions, RowsOf, restrict
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.layers.draw import GREEDY_BELOW, Draws


@dataclass(frozen=True)
class RowParameters:
    """How m rows sample, on the host: [m] each. Real numbers have float32 values."""

    temperature: Real
    top_k: Whole
    """Below 1: none."""
    top_p: Real
    min_p: Real
    seed: Whole
    position: Whole
    """Of the token to be drawn."""


@dataclass(frozen=True)
class SamplingRows:
    """How m rows sample, on the device."""

    draws: Draws | None
    """None: each takes its most probable token."""
    restrictions: Restrictions | None
    """None: no row leaves tokens out."""


def sample_step_rows(
    logits: Tensor, rows: RowParameters, device: Device, backend: Backend
) -> Tensor:
    """See `sample`; by the backend's kernel if it has one, but where no row draws."""
    drawn = rows.temperature >= GREEDY_BELOW
    vocabulary = logits.shape[1]
    if backend.sample_rows is None or not drawn.any():
        return sample(logits, sampling_rows(rows, vocabulary, device), backend)
    columns = (
        np.where(drawn, rows.temperature, 0),
        uniform(rows.seed, rows.position),
        rows.top_p,
        rows.min_p,
        rows.top_k.clip(max=vocabulary),
    )
    (parameters,) = sent(device, [np.concatenate(columns, dtype=np.float64)])
    return backend.sample_rows(logits, parameters.view(len(columns), -1))


def sample(logits: Tensor, rows: SamplingRows, backend: Backend = TORCH) -> Tensor:
    """logits: [m, vocabulary], float32, -inf from now on for tokens that are left out → [m] token
    ids, NO_TOKEN for rows without a distribution."""
    if rows.restrictions is not None:
        restrict(logits, rows.restrictions)
    return backend.draw(logits, rows.draws)


def sampling_rows(rows: RowParameters, vocabulary: int, device: Device) -> SamplingRows:
    """Sends what the device needs. Rows that take their most probable token need nothing, whatever
    tokens they would leave out."""
    drawn = rows.temperature >= GREEDY_BELOW
    if not drawn.any():
        return SamplingRows(None, None)
    numbers = rows.temperature, uniform(rows.seed, rows.position), np.flatnonzero(drawn)
    temperature, uniforms, places = sent(device, numbers)
    temperature = temperature.float()
    draws = Draws(temperature, uniforms, None if len(places) == len(drawn) else places)
    return SamplingRows(draws, _restrictions(rows, drawn, temperature, vocabulary, device))


def _restrictions(
    rows: RowParameters, drawn: Marks, temperature: Tensor, vocabulary: int, device: Device
) -> Restrictions | None:
    """Of the rows that are `drawn`. temperature: [m], on the device."""
    ranked = drawn & (rows.top_k > 0)
    massed, floored = drawn & ~ranked & (rows.top_p < 1), drawn & (rows.min_p > 0)
    if not (ranked | massed | floored).any():
        return None
    places = [np.flatnonzero(marks) for marks in (ranked, massed, floored)]
    top_p, min_p, top_k, *at = sent(device, [rows.top_p, rows.min_p, rows.top_k, *places])
    whole = [len(there) == len(drawn) for there in places]
    by_rank, by_mass, by_floor = (
        _rows_of(None if all_of_them else there, temperature, bound) if len(there) else None
        for there, all_of_them, bound in zip(at, whole, (top_p, top_p, min_p), strict=True)
    )
    if by_rank is None:
        return Restrictions(None, by_mass, by_floor)
    counts = top_k if by_rank.places is None else top_k[by_rank.places]
    width = min(vocabulary, int(rows.top_k[ranked].max()))
    return Restrictions(Ranked(by_rank, counts, width), by_mass, by_floor)


def _rows_of(places: Tensor | None, temperature: Tensor, bound: Tensor) -> RowsOf:
    if places is None:
        return RowsOf(None, temperature, bound.float())
    return RowsOf(places, temperature[places], bound[places].float())
