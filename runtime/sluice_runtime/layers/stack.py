"""Layers of a decoder between embedding and last norm: their weights, and interfaces to compute
them.

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
from sluice_runtime.layers.packed import Matrix
from sluice_runtime.layers.rope import Angles
from sluice_runtime.parallel.group import SOLO, Group


@dataclass(frozen=True)
class MlpWeights:
    """Weights of a gated feed-forward part."""

    gate: Matrix
    up: Matrix
    down: Matrix
    biases: tuple[Tensor | None, Tensor | None] = (None, None)
    """Biases of gate and up, joined, and of down; only experts may have biases."""


@dataclass(frozen=True)
class ExpertsWeights:
    """Weights of a feed-forward part of experts."""

    router: Tensor
    """Matrix [experts, h]."""
    experts: Sequence[MlpWeights]
    active: int
    """Number of experts that compute a token."""
    renormalised: bool
    """Whether the shares of the chosen experts add up to 1."""
    router_bias: Tensor | None = None
    """Bias [experts]."""


@dataclass(frozen=True)
class LayerWeights:
    """Weights of one layer. Each part, attention or feed-forward, has a norm of its input, or of
    its output before this is added to the residual stream (`_post_`), or both."""

    attention_norm: Tensor | None
    query: Matrix
    key: Matrix
    value: Matrix
    qkv_biases: tuple[Tensor, ...] | None
    """Biases of query, key and value; None: there are none."""
    head_norms: tuple[Tensor, Tensor] | None
    """Norms [d] for each query head and [d] for each key head; None where the variant has none."""
    output: Matrix
    mlp_norm: Tensor | None
    mlp: MlpWeights | ExpertsWeights
    whole_norms: tuple[Tensor, Tensor] | None = None
    """Norms over all query heads at once [query heads x d] and all key heads [key heads x d], of
    all ranks together; None where the variant has none."""
    attention_post_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None
    output_bias: Tensor | None = None
    """Bias [h]. Of several ranks only one has it, because their products are summed."""
    sinks: Tensor | None = None
    """Attention sinks [heads]; see `AttentionRule`."""


@dataclass(frozen=True)
class LayerShape:
    """Properties that all layers share. Numbers of heads are this rank's."""

    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    group: Group = SOLO
    """Ranks that share each layer."""
    qkv_bias: bool = False
    """Whether queries, keys and values have biases."""
    experts: bool = False
    """Whether a layer has experts."""
    post_norms: bool = False
    """Whether parts have norms of their outputs."""
    whole_qk_norm: bool = False
    """Whether layers have `whole_norms`."""
    adapters: AdapterBank | None = None
    """Adapters that may be added to the matrices; None: there are none."""
    activation: Activation | None = None
    """Activation of gate and up; None: the backend's, `silu_and_multiply`."""
    rule: AttentionRule | None = None
    """Rule of attention, with sinks by layer; None: plain causal attention."""
    windows: frozenset[int] = frozenset()
    """Layers that have the rule's window."""


@dataclass(frozen=True)
class PagedStep:
    """Places of a step's tokens, and the angles of their positions."""

    pool: PagePool
    layout: TokenLayout
    angles: Angles
    window_angles: Angles | None = None
    """Angles in layers with a window; None: equal in all layers."""


class LayerStack(Protocol):
    """All layers of a model, or some consecutive ones."""

    def forward(self, x: Tensor, step: PagedStep) -> Tensor:
        """Computes the layers: [n, h] → [n, h]; `x` may be changed. Keys and values go into the
        step's pool."""
        ...

    def part(self, first: int, end: int) -> Self:
        """A stack of only the layers [first, end), which shares their weights. Computing parts in
        succession gives the result of the whole."""
        ...
