"""Rows of logits and what they ask for, and whether the tokens that a kernel sampled are right."""

from __future__ import annotations

import math
from typing import Final

import torch
from sluice_kernels import reference
from torch import Tensor

WITHIN: Final = 2e-6
"""Of the mass: a kernel that computes in float32 may take the token next to an edge so near."""
KINDS: Final = ("plain", "equal", "masked", "peaked", "wide", "strange", "steps")
_UNIFORMS, _TOP_P = 1, 2


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
    """[5, rows] of such rows; see `reference.sample_rows`."""
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
    right = tokens == reference.sample_rows(logits, parameters)
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
    return reference.sample_rows(logits, nearby)
