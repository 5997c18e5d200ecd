"""The sampling of a step: each row's parameters, and its next token from its logits.

A row's parameters come with the batch that adds it, and stay on the host. Before a step runs, the
host works out what its rows ask for; nothing is read back from the device. Token counts are on the
device and grow with each sampled token; a retracted request's counts are restored when it gets a
row again. Logits are changed in this order: bias, penalties, then temperature and restrictions.
Features that no row asks for cost nothing. A row with logits that are not finite gets NO_TOKEN and
does not affect other rows. Knows no request and no model.

Random numbers are a function of (seed, position) and of nothing else: not of the batch, the step,
the process or the machine. So the same request gives the same answer. Where a kernel samples, the
rows' parameters are on the device too, in a table that changes only with the rows, and the kernel
computes the numbers, bit for bit those of the host.

top_k, top_p and min_p are each computed as the least logit that a token must have. This bound is
one of the row's own logits, so equal logits are kept or left out together, and other rows do not
affect a row's result. top_k applies before top_p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice_runtime.engine.device import (
    Column,
    Device,
    HostDevice,
    Marks,
    Real,
    Whole,
    upload_mixed,
)
from sluice_runtime.engine.sampling.logprobs import Logprobs
from sluice_runtime.engine.sampling.memory import rows_at_once
from sluice_runtime.engine.sampling.penalties import (
    DraftsBefore,
    LogitBias,
    PenalisedRows,
    Penalties,
    history_of,
)
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.layers.draw import GREEDY_BELOW, Draws, nucleus, scaled
from sluice_runtime.scheduler.batch import Batch, RowAdded
from sluice_runtime.wire.messages import Sampling


@dataclass(frozen=True)
class TableSize:
    """Size of the sampling state."""

    rows: int
    vocabulary: int
    context_tokens: int
    """Maximum tokens of a row."""


class _Block(NamedTuple):
    """Some of a step's rows that are sampled together."""

    tokens: Tensor
    penalised: PenalisedRows | None


def _joined(tokens: list[Tensor]) -> Tensor:
    return tokens[0] if len(tokens) == 1 else torch.cat(tokens)


class SamplingTable:
    """Sampling state of the rows of one engine."""

    def __init__(
        self, size: TableSize, device: Device | None = None, backend: Backend = TORCH
    ) -> None:
        device = device or HostDevice()
        self._device = device
        self._backend = backend
        self._at_once = rows_at_once(size.vocabulary)
        self._parameters = ParameterTable(size.rows, size.vocabulary)
        self._on_device = (
            DeviceParameters(self._parameters, device) if backend.sample_rows else None
        )
        self._bias = LogitBias(size.rows, device)
        self._penalties = Penalties(size.rows, size.vocabulary, size.context_tokens, device)
        self._logprobs = Logprobs(device)
        self._masked_rows: set[int] = set()

    @property
    def logprobs(self) -> Logprobs | None:
        """Logprobs of the rows; None while no row asks for any."""
        return self._logprobs if self._logprobs.rows else None

    @property
    def by_kernel(self) -> bool:
        """Whether a kernel samples."""
        return self._on_device is not None

    @property
    def plain(self) -> bool:
        """Whether no row has a bias, a penalty, logprobs or a grammar: `draw_rows` draws what
        `sample` does. All ranks say the same."""
        return not (
            self._bias.rows or self._penalties.rows or self._logprobs.rows or self._masked_rows
        )

    def apply(self, batch: Batch) -> None:
        """Applies the batch's dropped rows, then its added rows."""
        for row in batch.dropped_rows:
            self._drop(row)
        for added in batch.added_rows:
            self._add(added)
        if self._penalties.rows:
            self._penalties.send()
        if self._on_device is not None:
            self._on_device.send()

    def draw_rows(self, logits: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Draws tokens by the kernel, which may be captured in a graph. logits: [m, v]; rows, and
        positions of the tokens: [m] int32 on the device → [m]. Row `size.rows` is padding."""
        assert self._backend.sample_rows is not None
        assert self._on_device is not None
        tables = self._on_device.reals, self._on_device.wholes
        return self._backend.sample_rows(logits, rows, positions, *tables)

    def sample(
        self,
        logits: Tensor,
        rows: Sequence[int],
        positions: Whole,
        drafts: DraftsBefore | None = None,
    ) -> Tensor:
        """Samples tokens. logits: [m, v] float32 on the device, changed in place; rows, and
        positions of the tokens: [m] on the host → [m] tokens on the device. `drafts`: drafts before
        these tokens."""
        blocks = self._blocks(logits, rows, positions, drafts)
        tokens = _joined([block.tokens for block in blocks])
        if any(block.penalised for block in blocks):
            kept = drafts.kept(tokens, self._device) if drafts else tokens
            of_blocks = torch.split(kept, [len(block.tokens) for block in blocks])
            for block, drawn in zip(blocks, of_blocks, strict=True):
                if block.penalised is not None:
                    self._penalties.count(block.penalised, drawn)
        return tokens

    def propose(
        self, logits: Tensor, rows: Sequence[int], positions: Whole, drafts: DraftsBefore | None
    ) -> Tensor:
        """Draws tokens like `sample`, but does not count them, since they may be discarded."""
        return _joined([block.tokens for block in self._blocks(logits, rows, positions, drafts)])

    def _blocks(
        self, logits: Tensor, rows: Sequence[int], positions: Whole, drafts: DraftsBefore | None
    ) -> list[_Block]:
        numbers = np.array(rows, np.int64)
        at_once = self._at_once
        if len(rows) <= at_once or not self._needs_blocks(numbers):
            return [self._sample(logits, numbers, positions, drafts)]
        return [
            self._sample(
                logits[part], numbers[part], positions[part], drafts.part(part) if drafts else None
            )
            for part in (slice(first, first + at_once) for first in range(0, len(rows), at_once))
        ]

    def _needs_blocks(self, rows: Whole) -> bool:
        """Whether sampling these rows takes memory for each token of the vocabulary or context."""
        if self._backend.sample_rows is None and self._parameters.any_draws(rows):
            return True
        return not self._penalties.rows.isdisjoint(rows.tolist())

    def _sample(
        self, logits: Tensor, rows: Whole, positions: Whole, drafts: DraftsBefore | None
    ) -> _Block:
        if self._bias.rows:
            self._bias.apply(logits, rows, positions)
        penalised = None
        if self._penalties.rows:
            penalised = self._penalties.penalised_rows(rows, positions, drafts)
        if penalised is not None:
            self._penalties.apply(logits, penalised)
        return _Block(self._drawn(logits, rows, positions), penalised)

    def _drawn(self, logits: Tensor, rows: Whole, positions: Whole) -> Tensor:
        """Tokens [m], from the backend's kernel if it has one and any row draws."""
        if self._on_device is not None and self._parameters.any_draws(rows):
            return self.draw_rows(logits, *self._device.upload((int32(rows), int32(positions))))
        parameters = self._parameters.step_parameters(rows, positions)
        restricted = sampling_rows(parameters, logits.shape[1], self._device)
        return sample(logits, restricted, self._backend)

    def _drop(self, row: int) -> None:
        if row in self._bias.rows:
            self._bias.drop(row)
        if row in self._penalties.rows:
            self._penalties.drop(row)
        if row in self._logprobs.rows:
            self._logprobs.drop(row)
        self._masked_rows.discard(row)

    def _add(self, added: RowAdded) -> None:
        row, sampling, prompt = added.row, added.sampling, added.prompt_tokens
        self._parameters.add(row, sampling)
        if sampling.logit_bias:
            self._bias.add(row, sampling.logit_bias)
        if sampling.min_tokens:
            self._bias.forbid(row, added.stop_token_ids, prompt + sampling.min_tokens)
        if added.logprobs >= 0 or added.prompt_logprobs >= 0:
            self._logprobs.add(added)
        if sampling.penalises:
            self._penalties.add(row, sampling, history_of(added), prompt)
        if added.has_grammar:
            self._masked_rows.add(row)


@dataclass(frozen=True)
class RowParameters:
    """Sampling parameters of m rows, on the host: [m] each. Real numbers have float32 values."""

    temperature: Real
    top_k: Whole
    """Number of most probable tokens to choose from; below 1: all."""
    top_p: Real
    min_p: Real
    seed: Whole
    position: Whole
    """Position of the token to be drawn."""


class ParameterTable:
    """Sampling parameters of `rows` rows, and of one more, which pads: it takes its most probable
    token."""

    def __init__(self, rows: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self.words: Whole = np.zeros((5, rows + 1), np.int64)
        """All columns, [5, rows + 1]: three of float64's bits, then two of whole numbers."""
        self._temperatures, self._top_ps, self._min_ps = self.words[:3].view(np.float64)
        self._top_ks, self._seeds = self.words[3:]
        self.changed: set[int] = set()
        """Rows that were set since this was cleared."""

    def add(self, row: int, sampling: Sampling) -> None:
        """Sets a row's parameters; real numbers are rounded to float32, in which they are used."""
        temperature = np.float32(sampling.temperature)
        self._temperatures[row] = temperature if temperature >= GREEDY_BELOW else 0
        self._top_ps[row] = np.float32(sampling.top_p)
        self._min_ps[row] = np.float32(sampling.min_p)
        self._top_ks[row] = min(sampling.top_k, self._vocabulary)
        self._seeds[row] = sampling.seed
        self.changed.add(row)

    def any_draws(self, rows: Whole) -> bool:
        """Whether any of the rows does not take its most probable token."""
        return bool((self._temperatures[rows] >= GREEDY_BELOW).any())

    def step_parameters(self, rows: Whole, positions: Whole) -> RowParameters:
        """Parameters of these rows [m], with the positions of the tokens to be drawn."""
        return RowParameters(
            temperature=self._temperatures[rows],
            top_k=self._top_ks[rows],
            top_p=self._top_ps[rows],
            min_p=self._min_ps[rows],
            seed=self._seeds[rows],
            position=positions,
        )


class DeviceParameters:
    """The table of sampling parameters on the device, as of the last `send`."""

    def __init__(self, table: ParameterTable, device: Device) -> None:
        self._table = table
        self._device = device
        self._words = device.mirror(table.words)
        self.reals = self._words[:3].view(torch.float64)
        """[3, rows + 1]: temperatures (0: the most probable token), top_p, min_p."""
        self.wholes = self._words[3:]
        """[2, rows + 1]: top_k and seeds."""

    def send(self) -> None:
        """Brings the device up to date. An update that failed for lack of memory remains for the
        next call."""
        changed, words = self._table.changed, self._table.words
        if changed and self._device.asynchronous:
            rows = np.fromiter(changed, np.int64)
            places = (np.arange(len(words))[:, None] * words.shape[1] + rows).ravel()
            at, values = self._device.upload((places, words.ravel()[places]))
            self._words.view(-1).index_copy_(0, at, values)
        changed.clear()


@dataclass(frozen=True)
class SamplingRows:
    """Sampling parameters of m rows, on the device."""

    draws: Draws | None
    """Temperatures and random numbers; None: each row takes its most probable token."""
    restrictions: Restrictions | None
    """Restrictions by top_k, top_p and min_p; None: no row leaves tokens out."""


@dataclass(frozen=True)
class RowsOf:
    """Subset of k of a step's m rows."""

    places: Tensor | None
    """Places [k] among the m rows; None: all m."""
    temperature: Tensor
    """Temperatures [k]."""
    bound: Tensor
    """Bounds [k] float32: top_p or min_p."""


@dataclass(frozen=True)
class Ranked:
    """Rows with a top_k; their bound is top_p."""

    rows: RowsOf
    top_k: Tensor
    """Values of top_k [k]."""
    width: int
    """Largest top_k, or the vocabulary size if that is smaller."""


@dataclass(frozen=True)
class Restrictions:
    """Rows that leave tokens out, by kind of restriction."""

    ranked: Ranked | None
    massed: RowsOf | None
    """Rows with a top_p and no top_k."""
    floored: RowsOf | None
    """Rows with a min_p."""


def int32(numbers: Whole) -> Column:
    """The numbers [m] as kernels take rows and positions."""
    return numbers.astype(np.int32)


def sample(logits: Tensor, rows: SamplingRows, backend: Backend = TORCH) -> Tensor:
    """Restricts the logits and draws. logits: [m, vocabulary], float32, set to -inf for tokens that
    are left out → [m] token ids, NO_TOKEN for rows without a distribution."""
    if rows.restrictions is not None:
        restrict(logits, rows.restrictions)
    return backend.draw(logits, rows.draws)


def sampling_rows(rows: RowParameters, vocabulary: int, device: Device) -> SamplingRows:
    """Parameters on the device. Rows that take their most probable token need none: restrictions do
    not change it."""
    drawn = rows.temperature >= GREEDY_BELOW
    if not drawn.any():
        return SamplingRows(None, None)
    numbers = rows.temperature, uniform(rows.seed, rows.position), np.flatnonzero(drawn)
    temperature, uniforms, places = upload_mixed(device, numbers)
    temperature = temperature.float()
    draws = Draws(temperature, uniforms, None if len(places) == len(drawn) else places)
    return SamplingRows(draws, _restrictions(rows, drawn, temperature, vocabulary, device))


def _restrictions(
    rows: RowParameters, drawn: Marks, temperature: Tensor, vocabulary: int, device: Device
) -> Restrictions | None:
    """Restrictions of the rows that are `drawn`. temperature: [m], on the device."""
    ranked = drawn & (rows.top_k > 0)
    massed, floored = drawn & ~ranked & (rows.top_p < 1), drawn & (rows.min_p > 0)
    if not (ranked | massed | floored).any():
        return None
    places = [np.flatnonzero(marks) for marks in (ranked, massed, floored)]
    top_p, min_p, top_k, *at = upload_mixed(device, [rows.top_p, rows.min_p, rows.top_k, *places])
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


_Words = NDArray[np.uint64]
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_UNIT: Final = 2.0**-53


def uniform(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position): [m], [m] → [m]."""
    mixed = _mix(_mix(seeds.view(np.uint64)) ^ _mix(positions.view(np.uint64) + _GOLDEN))
    return (mixed >> np.uint64(11)).astype(np.float64) * _UNIT


def _mix(value: _Words) -> _Words:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), in wrapping 64-bit arithmetic."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def restrict(logits: Tensor, restrictions: Restrictions) -> None:
    """Sets the logits [m, v] of tokens that are left out to -inf."""
    if (ranked := restrictions.ranked) is not None:
        chosen = _chosen(logits, ranked.rows)
        _cut(logits, ranked.rows, chosen, _of_rank(chosen, ranked))
    if (massed := restrictions.massed) is not None:
        chosen = _chosen(logits, massed)
        _cut(logits, massed, chosen, nucleus(chosen, massed.temperature, massed.bound))
    if (floored := restrictions.floored) is not None:
        chosen = _chosen(logits, floored)
        least = chosen.amax(-1) + floored.temperature * floored.bound.log()
        _cut(logits, floored, chosen, least)


def _chosen(logits: Tensor, rows: RowsOf) -> Tensor:
    """Logits of these rows: a copy, or `logits` itself if they are all rows."""
    return logits if rows.places is None else logits.index_select(0, rows.places)


def _cut(logits: Tensor, rows: RowsOf, chosen: Tensor, least: Tensor) -> None:
    chosen.masked_fill_(chosen < least[:, None], float("-inf"))
    if rows.places is not None:
        logits.index_copy_(0, rows.places, chosen)


def _of_rank(logits: Tensor, ranked: Ranked) -> Tensor:
    """The least logit that a token must have. Without top_p it is the smallest of the top_k largest
    logits. With top_p it is the smallest of the fewest of these that together have a share top_p of
    their mass."""
    temperature, top_p = ranked.rows.temperature, ranked.rows.bound
    counts = ranked.top_k.clamp(max=logits.shape[1])
    ordered = logits.topk(ranked.width).values
    beyond = torch.arange(ranked.width, device=logits.device) >= counts[:, None]
    weights = scaled(ordered, temperature).double().exp().masked_fill_(beyond, 0)
    cumulative = weights.cumsum(-1)
    mass = top_p.double() * cumulative[:, -1]
    last = (cumulative < mass[:, None]).sum(-1)
    last = torch.where(top_p < 1, last, counts - 1).minimum(counts - 1)
    return ordered.gather(1, last[:, None]).squeeze(1)
