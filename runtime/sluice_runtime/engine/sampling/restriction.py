"""top_k, top_p and min_p, each computed as the least logit that a token must have.

The least logit is a value from the same row, so equal logits are kept or left out together, and the
result for a row does not depend on other rows. top_k applies before top_p. The host says which rows
have which, so it need not wait for any number. Knows no randomness.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sluice_runtime.layers.nucleus import nucleus, scaled


@dataclass(frozen=True)
class RowsOf:
    """k of a step's m rows."""

    places: Tensor | None
    """[k]; None: all m."""
    temperature: Tensor
    """[k]"""
    bound: Tensor
    """[k] float32: top_p or min_p."""


@dataclass(frozen=True)
class Ranked:
    """Rows with a top_k; their bound is top_p."""

    rows: RowsOf
    top_k: Tensor
    """[k]"""
    width: int
    """The largest of them, or the vocabulary if that is smaller."""


@dataclass(frozen=True)
class Restrictions:
    """Which rows leave tokens out."""

    ranked: Ranked | None
    massed: RowsOf | None
    """With a top_p and no top_k."""
    floored: RowsOf | None
    """With a min_p."""


def restrict(logits: Tensor, restrictions: Restrictions) -> None:
    """logits: [m, v]; tokens left out become -inf."""
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
    """A copy, or all logits themselves."""
    return logits if rows.places is None else logits.index_select(0, rows.places)


def _cut(logits: Tensor, rows: RowsOf, chosen: Tensor, least: Tensor) -> None:
    chosen.masked_fill_(chosen < least[:, None], float("-inf"))
    if rows.places is not None:
        logits.index_copy_(0, rows.places, chosen)


def _of_rank(logits: Tensor, ranked: Ranked) -> Tensor:
    """Least logit of the top_k largest, or of the fewest of them that hold top_p of their mass."""
    temperature, top_p = ranked.rows.temperature, ranked.rows.bound
    counts = ranked.top_k.clamp(max=logits.shape[1])
    ordered = logits.topk(ranked.width).values
    beyond = torch.arange(ranked.width, device=logits.device) >= counts[:, None]
    weights = scaled(ordered, temperature).double().exp().masked_fill_(beyond, 0)
    cumulative = weights.cumsum(-1)
    wanted = top_p.double() * cumulative[:, -1]
    last = (cumulative < wanted[:, None]).sum(-1)
    last = torch.where(top_p < 1, last, counts - 1).minimum(counts - 1)
    return ordered.gather(1, last[:, None]).squeeze(1)
