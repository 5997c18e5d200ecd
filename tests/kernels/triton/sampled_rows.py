"""Rows of logits and what they ask for, and whether the tokens that a kernel sampled are right."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from sluice_kernels import reference
from torch import Tensor

WITHIN: Final = 2e-6
"""Of the mass: a kernel that computes in float32 may take the token next to an edge so near."""
KINDS: Final = ("plain", "equal", "masked", "peaked", "wide", "strange", "steps")
_UNIFORMS, _TOP_P = 1, 2
_WORD: Final = 1 << 64
_GOLDEN: Final = 0x9E3779B97F4A7C15


class Tables(NamedTuple):
    """What a kernel is handed of `parameters_of_kind`: see `reference.sample_rows`."""

    rows: Tensor
    positions: Tensor
    reals: Tensor
    wholes: Tensor


def tables_of(parameters: Tensor) -> Tables:
    """[5, m] → tables of twice as many rows, in another order, with seeds that give the uniforms of
    `parameters` exactly."""
    temperatures, uniforms, top_p, min_p, top_k = parameters.cpu()
    m = len(uniforms)
    rows = (torch.randperm(m) * 2 + 1).int()
    positions = torch.randint(1, 1 << 20, (m,), dtype=torch.int32)
    seeds = [
        seed_of(int(uniform * 2.0**53) << 11, position)
        for uniform, position in zip(uniforms.tolist(), positions.tolist(), strict=True)
    ]
    reals, wholes = torch.full((3, 2 * m), math.nan).double(), torch.full((2, 2 * m), -7)
    reals[:, rows.long()] = torch.stack((temperatures, top_p, min_p))
    wholes[:, rows.long()] = torch.stack((top_k.long(), torch.tensor(seeds)))
    return Tables(*(each.to(parameters.device) for each in (rows, positions, reals, wholes)))


def seed_of(word: int, position: int) -> int:
    """The seed, as int64, whose hash with `position` is `word`."""
    seed = _unmixed(_unmixed(word) ^ _mixed((position + _GOLDEN) % _WORD))
    return seed - _WORD if seed >= _WORD // 2 else seed


_FACTORS: Final = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mixed(value: int) -> int:
    for bits, factor in zip((30, 27), _FACTORS, strict=True):
        value = (value ^ value >> bits) * factor % _WORD
    return value ^ value >> 31


def _unmixed(value: int) -> int:
    value = _unshifted(value, 31)
    for bits, factor in zip((27, 30), reversed(_FACTORS), strict=True):
        value = _unshifted(value * pow(factor, -1, _WORD) % _WORD, bits)
    return value


def _unshifted(value: int, bits: int) -> int:
    """x of x ^ x >> bits."""
    found = value
    for _ in range(64 // bits):
        found = value ^ found >> bits
    return found


def rows_of_kind(kind: str, vocabulary: int, rows: int) -> Tensor:
    """[rows, vocabulary] float32."""
    logits = torch.randn(rows, vocabulary) * 3
    match kind:
        case "equal":
            logits = logits.round()
            logits[0] = 1.5
        case "masked":
            logits[torch.rand(logits.shape) < 0.7] = -torch.inf
        case "peaked":
            logits = logits * 4 - 40
        case "wide":
            logits = logits * 1e4
        case "strange":  # a single token; no number, no largest, none at all
            logits[0, :-1] = -torch.inf
            logits[1, vocabulary // 2] = torch.nan
            logits[2, 0] = torch.inf
            logits[3] = -torch.inf
        case "steps":  # few logits, each of many tokens
            logits[:] = torch.arange(vocabulary) % 3
    return logits


def parameters_of_kind(kind: str, vocabulary: int, rows: int) -> Tensor:
    """[5, rows] of such rows; see `reference.sample_columns`."""
    columns: list[list[float]] = [
        [1.0, 0.6, 0.0, 1.7, 1.0, 0.02],
        [0.0, math.nextafter(1.0, 0.0), *torch.rand(15).tolist()],
        [1.0, 0.9, 0.5, 0.999, 1.0, 1e-6, 0.3],
        [0.0, 0.0, 0.1, 0.0, 1.0],
        [0, -1, 5, 1, 40, 3, 2000, 0, 100, 2**31 - 1, 2],
    ]
    if kind == "steps":  # top_k ends among equal logits, of which top_p counts few
        third = vocabulary // 3
        columns = [[1.0], [0.0], [1.0, 0.9], [0.0], [third + 1, third + vocabulary // 12]]
    begin = KINDS.index(kind)
    repeated = [(column * (begin + rows))[begin:][:rows] for column in columns]
    return torch.tensor(repeated, dtype=torch.float64)


def assert_sampled(tokens: Tensor, logits: Tensor, parameters: Tensor) -> None:
    """tokens: [m], as the reference has them, or as it has them WITHIN a little more or less."""
    right = tokens == reference.sample_columns(logits, parameters)
    to_the_end = parameters[_UNIFORMS] + WITHIN >= 1
    for top_p in (-WITHIN, 0.0, WITHIN):
        first, last = (_nearby(logits, parameters, top_p, uniform) for uniform in (-WITHIN, WITHIN))
        end = logits.shape[1] - 1 - _nearby(logits.flip(-1), parameters, top_p, -1.0)
        right |= (first <= tokens) & (tokens <= torch.where(to_the_end, end, last))
    wrong = (~right).nonzero().flatten().tolist()
    assert not wrong, [(tokens[row].item(), parameters[:, row].tolist()) for row in wrong]
    drawn = tokens[:, None].clamp(min=0)
    assert ((tokens < 0) | (logits.gather(1, drawn).squeeze(1) > -torch.inf)).all()


def _nearby(logits: Tensor, parameters: Tensor, top_p: float, uniform: float) -> Tensor:
    nearby = parameters.clone()
    nearby[_UNIFORMS] = (nearby[_UNIFORMS] + uniform).clamp(0, math.nextafter(1.0, 0.0))
    restricted = nearby[_TOP_P] < 1
    nearby[_TOP_P][restricted] = (nearby[_TOP_P] + top_p).clamp(0, 1)[restricted]
    return reference.sample_columns(logits, nearby)
