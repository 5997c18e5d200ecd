"""The layers of a decoder between embedding and last norm: their weights, and what computes them.

Shapes: n tokens of a step, flat over all rows; h hidden size; d head dimension; every matrix is
[out, in]. Knows no checkpoint and no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.adapters import AdapterBank
from sluice_runtime.layers.attention import AttentionRule, TokenLayout
from sluice_runtime.layers.dense import Activation
from sluice_runtime.layers.rope import Angles
from sluice_runtime.parallel.group import SOLO, Group


@dataclass(frozen=True)
class MlpWeights:
    """Of a gated feed-forward part."""

    gate: Tensor
    up: Tensor
    down: Tensor
    biases: tuple[Tensor | None, Tensor | None] = (None, None)
    """Of gate and up joined, and of down; only experts have some."""


@dataclass(frozen=True)
class ExpertsWeights:
    """Of a feed-forward part of experts."""

    router: Tensor
    """[experts, h]."""
    experts: Sequence[MlpWeights]
    active: int
    """Experts that compute a token."""
    renormalised: bool
    """Whether the shares of these add up to 1."""
    router_bias: Tensor | None = None
    """[experts]"""


@dataclass(frozen=True)
class LayerWeights:
    """Of one layer. A part, attention or feed-forward, has a norm of its input, one of its output
    before that is added to the residual stream (`_post_`), or both."""

    attention_norm: Tensor | None
    query: Tensor
    key: Tensor
    value: Tensor
    qkv_biases: tuple[Tensor, ...] | None
    """Of query, key and value; None where the variant has none."""
    head_norms: tuple[Tensor, Tensor] | None
    """[d] for each query head, [d] for each key head; None where the variant has none."""
    output: Tensor
    mlp_norm: Tensor | None
    mlp: MlpWeights | ExpertsWeights
    whole_norms: tuple[Tensor, Tensor] | None = None
    """[query heads x d] over all query heads at once, [key heads x d] over all key heads, those of
    all ranks; None where the variant has none."""
    attention_post_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None
    output_bias: Tensor | None = None
    """[h]; of one rank of several, which add their products up."""
    sinks: Tensor | None = None
    """[heads]; see `AttentionRule`."""


@dataclass(frozen=True)
class LayerShape:
    """What all layers have in common. Heads are those of this rank."""

    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    group: Group = SOLO
    """The ranks that share each layer."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases."""
    experts: bool = False
    """Whether a layer has experts."""
    post_norms: bool = False
    """Whether parts have norms of their outputs."""
    whole_qk_norm: bool = False
    """Whether layers have `whole_norms`."""
    adapters: AdapterBank | None = None
    """What may be added to its matrices."""
    activation: Activation | None = None
    """Of gate and up; None: the backend's, `silu_and_multiply`."""
    rule: AttentionRule | None = None
    """How the layers attend, which have their own sinks; None: as most models do."""
    windows: frozenset[int] = frozenset()
    """Layers that have the rule's window."""


@dataclass(frozen=True)
class PagedStep:
    """Where the tokens of a step lie, and the angles of their positions."""

    pool: PagePool
    layout: TokenLayout
    angles: Angles
    window_angles: Angles | None = None
    """In layers that have a window; None: the same."""


class LayerStack(Protocol):
    """All layers, or some that follow each other."""

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        """[n, h] → [n, h]; `x` may be changed. Keys and values go into the step's pool."""
        ...

    def part(self, first: int, end: int) -> Self:
        """A stack of the layers [first, end) only, which shares their weights. Parts computed one
        after the other compute what the whole does."""
        ...
