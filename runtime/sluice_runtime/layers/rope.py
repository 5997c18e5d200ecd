"""Rotary position embedding, plain and scaled for long contexts. Also prepares a step's queries,
keys and values for attention: head norm, rotation, and storing keys and values in the pool. Uses
torch on any device, or one kernel on NVIDIA's GPUs. Knows no requests.

Formulas: RoFormer (Su et al. 2021), with halves rotated as in the Hugging Face layout; Llama 3
scaling as in Meta's reference code; YaRN as in Peng et al. 2023. Angles are computed from
positions, so no table's length limits the context.

Kernels rotate only pairs of a number in the first half of a head and its counterpart in the second.
If a checkpoint pairs neighbours, or rotates only part of a head, the head's numbers are reordered
(`pair_order`), with frequency zero for numbers that are not rotated. Queries and keys share the
order, so attention does not depend on it. The weights are reordered once at loading, so kernels
need not know.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.dense import HeadNorm, rms_norm


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's scaling: long wavelengths are stretched by `factor`, short ones kept, and those in
    between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_tokens: int


@dataclass(frozen=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): each pair's frequency is divided by its own factor, and queries
    and keys are multiplied by `magnitude`.

    There are two lists of factors: for contexts up to the original length, and for longer ones.
    Cached keys cannot change from one list to the other. So an engine uses one list for all
    requests, chosen by the longest context that it serves; Transformers chooses by the length of
    each call."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    """Factors for contexts beyond the original length; both lists are [rotated / 2]."""
    original_context_tokens: int
    magnitude: float
    context_tokens: int = 0
    """Longest context that is served."""

    @property
    def is_long(self) -> bool:
        return self.context_tokens > self.original_context_tokens


@dataclass(frozen=True)
class LinearScaling:
    """Scaling that stretches all wavelengths by `factor`."""

    factor: float


@dataclass(frozen=True)
class YarnScaling:
    """YaRN: pairs that turn less than `slow` times in the original context are stretched by
    `factor`. Pairs that turn more than `fast` times are kept; pairs in between are blended by their
    index."""

    factor: float
    fast: float
    slow: float
    original_context_tokens: int
    truncate: bool
    """Whether the blend begins and ends at whole pairs."""
    attention_factor: float | None = None
    """Factor on queries and keys; None: it follows from `factor`."""

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(max(self.factor, 1)) + 1


@dataclass(frozen=True)
class Rope:
    """Rules by which positions become angles."""

    theta: float
    scaling: Llama3Scaling | LinearScaling | YarnScaling | LongRope | None = None
    rotated: int | None = None
    """Number of a head's leading values that are rotated; None: all."""
    interleaved: bool = False
    """Whether a pair's numbers are neighbours in the checkpoint; otherwise their distance is half
    of the rotated values."""
    magnitude: float = 1.0
    """Factor on queries and keys, in addition to the factor of `scaling`."""


@dataclass(frozen=True)
class Frequencies:
    """Frequencies of the pairs of a head."""

    values: Tensor
    """Angle per position, [head_dim / 2], float32; 0 for pairs that are not rotated."""
    magnitudes: Tensor | None = None
    """Factor on the numbers of each pair, [head_dim / 2], float32; None: 1."""

    def to(self, device: torch.device) -> Frequencies:
        magnitudes = None if self.magnitudes is None else self.magnitudes.to(device)
        return Frequencies(self.values.to(device), magnitudes)


def inverse_frequencies(rope: Rope, head_dim: int) -> Frequencies:
    """Frequencies for heads whose numbers are in the order of `pair_order`."""
    rotated, scaling = rope.rotated or head_dim, rope.scaling
    exponents = torch.arange(0, rotated, 2, dtype=torch.int64).float() / rotated
    frequencies = 1.0 / (rope.theta**exponents)
    magnitude = rope.magnitude
    match scaling:
        case Llama3Scaling():
            frequencies = _llama3(frequencies, scaling)
        case LinearScaling(factor):
            frequencies = frequencies / factor
        case YarnScaling():
            frequencies = _yarn(frequencies, scaling, rope.theta)
            magnitude *= scaling.magnitude
        case LongRope():
            frequencies /= torch.tensor(scaling.long if scaling.is_long else scaling.short)
            magnitude *= scaling.magnitude
    still = (0, (head_dim - rotated) // 2)
    magnitudes = F.pad(torch.full_like(frequencies, magnitude), still, value=rope.magnitude)
    plain = magnitude == rope.magnitude == 1
    return Frequencies(F.pad(frequencies, still), None if plain else magnitudes)


def pair_order(rope: Rope, head_dim: int) -> Tensor | None:
    """Order [head_dim]: for each place in a head here, the place in the checkpoint's head, so that
    places `i` and `i + head_dim / 2` are a pair. None: the order is unchanged."""
    rotated = rope.rotated or head_dim
    if rotated == head_dim and not rope.interleaved:
        return None
    numbers = torch.arange(head_dim)
    turning, still = numbers[:rotated], numbers[rotated:]
    first, second = (turning[::2], turning[1::2]) if rope.interleaved else turning.chunk(2)
    first_still, second_still = still.chunk(2) if len(still) else (still, still)
    return torch.cat((first, first_still, second, second_still))


def _yarn(frequencies: Tensor, scaling: YarnScaling, theta: float) -> Tensor:
    pairs = len(frequencies)

    def pair(turns: float) -> float:
        """Index of the pair that turns `turns` times in the original context."""
        wavelength = scaling.original_context_tokens / (turns * 2 * math.pi)
        return pairs * math.log(wavelength) / math.log(theta)

    first, last = pair(scaling.fast), pair(scaling.slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    blend = ((torch.arange(pairs) - first) / max(last - first, 0.001)).clamp(0, 1)
    return (1 - blend) * frequencies + blend * frequencies / scaling.factor


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_context_tokens / wavelengths
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / scaling.factor + blend * frequencies


def in_order(rows: Tensor, order: Tensor) -> Tensor:
    """Rows [heads x head_dim, ...], with each head's rows in the order `order`, as from
    `pair_order`."""
    heads = rows.reshape(-1, len(order), *rows.shape[1:])
    return heads.index_select(1, order.to(rows.device)).flatten(0, 1)


@dataclass(frozen=True)
class Angles:
    """cos and sin of a step's tokens, times the magnitude of each pair, [n, head_dim / 2],
    float32."""

    cos: Tensor
    sin: Tensor


def angles_of(frequencies: Frequencies, positions: Tensor) -> Angles:
    """Angles of positions [n]."""
    angles = positions.float()[:, None] * frequencies.values
    cos, sin = angles.cos(), angles.sin()
    if (magnitudes := frequencies.magnitudes) is not None:
        return Angles(cos.mul_(magnitudes), sin.mul_(magnitudes))
    return Angles(cos, sin)


@dataclass(frozen=True)
class Rotation:
    """cos and sin for `rotate`, [n, 1, head_dim]; the 1 is the dimension of heads.

    Both halves of the last dimension hold the same angles; the sine of the first is negated, so
    that a rotation is one product with the vector and one with its halves exchanged.
    """

    cos: Tensor
    sin: Tensor


def rotation(angles: Angles, dtype: torch.dtype) -> Rotation:
    """Rotation of vectors of `dtype`."""
    cos, sin = angles.cos[:, None], angles.sin[:, None]
    return Rotation(torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype))


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """x: [n, head, head_dim]; first and second half of the last dimension are one pair each."""
    exchanged = x.roll(x.shape[-1] // 2, dims=-1)
    return (x * by.cos).addcmul_(exchanged, by.sin)


class StoringStep(Protocol):
    """Work on one step's queries, keys and values before attention, over all layers."""

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """qkv [n, heads + 2 x key heads, dim] → [n, heads, dim]; keys and values are stored."""
        ...


def storing_step(pool: PagePool, layout: TokenLayout, angles: Angles) -> StoringStep:
    """Work by the kernel if the pool is on an NVIDIA GPU, else by torch. The kernel computes 16-bit
    numbers in 32 bits, and never writes the padding page, so that padding rows change nothing."""
    if pool.data.is_cuda and torch.version.hip is None:
        if pool.shape.scales is not None:
            return QuantisingStep.of_step(pool, layout, angles)
        return KernelStep(pool, layout, angles)
    return TorchStep(pool, layout, rotation(angles, pool.shape.dtype))


@dataclass(frozen=True)
class TorchStep:
    """Work in torch: see `StoringStep`."""

    pool: PagePool
    layout: TokenLayout
    turn: Rotation

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        return rotate_and_store(qkv, head_norm, self.turn, self.pool, layer, self.layout)[0]


@dataclass(frozen=True)
class KernelStep:
    """Work by the kernel: see `StoringStep`."""

    pool: PagePool
    layout: TokenLayout
    angles: Angles

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        places = self.layout.pages, self.layout.offsets
        return _by_kernel(qkv, head_norm, self.angles, self.pool.data, layer, places)


@dataclass(frozen=True)
class QuantisingStep:
    """Work for an 8-bit pool: see `StoringStep`. The kernel cannot write 8 bits, so it writes to
    memory of the step, which is then converted and stored in the pool."""

    pool: PagePool
    angles: Angles
    pages: Tensor
    """Pages [n] of the pool; the padding page for tokens of padding."""
    offsets: Tensor
    """Slots [n] in these pages."""
    is_padding: Tensor
    """[n, 1, 1, 1]"""
    places: tuple[Tensor, Tensor]
    """Pages and slots [n] in the memory of the step."""

    @classmethod
    def of_step(cls, pool: PagePool, layout: TokenLayout, angles: Angles) -> QuantisingStep:
        """Work for one step, with everything that all layers share computed once."""
        pages = layout.pages.long()
        is_padding = (pages < 0) | (pages >= pool.padding_page)
        own = torch.arange(len(pages), device=pages.device)
        return cls(
            pool,
            angles,
            pages.masked_fill(is_padding, pool.padding_page),
            layout.offsets.long(),
            is_padding[:, None, None, None],
            (own, torch.zeros_like(own)),
        )

    def queries(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        tokens, shape = len(qkv), self.pool.shape
        # Memory in the form of a pool of one layer: one page of one token for each token, and a
        # padding page.
        turned = qkv.new_empty((tokens + 1, 1, 2, 1, shape.kv_heads, shape.head_dim))
        queries = _by_kernel(qkv, head_norm, self.angles, turned, 0, self.places)
        # The padding page stays zero.
        kept = turned[:tokens, 0, :, 0].masked_fill(self.is_padding, 0)
        self.pool.write(layer, self.pages, self.offsets, kept[:, 0], kept[:, 1])
        return queries


def _by_kernel(
    qkv: Tensor,
    head_norm: HeadNorm | None,
    angles: Angles,
    pool: Tensor,
    layer: int,
    places: tuple[Tensor, Tensor],
) -> Tensor:
    # Imported only with a GPU, for which it registers operators.
    from sluice_kernels.triton import operators

    weight, eps = (head_norm.weight, head_norm.eps) if head_norm else (None, 0.0)
    return operators.rotate_and_store(
        qkv, weight, eps, angles.cos, angles.sin, pool, layer, *places
    )


def rotate_and_store(
    qkv: Tensor,
    head_norm: HeadNorm | None,
    turn: Rotation,
    pool: PagePool,
    layer: int,
    layout: TokenLayout,
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv [n, heads + 2 x key heads, dim] → queries [n, heads, dim], keys and values [n, key heads,
    dim], as views with a contiguous last dimension. Also stores keys and values."""
    kv_heads = pool.shape.kv_heads
    # Queries and keys are treated alike.
    turning, values = qkv.tensor_split((qkv.shape[1] - kv_heads,), dim=1)
    if head_norm is not None:
        turning = rms_norm(turning, head_norm.weight, head_norm.eps)
    turned = rotate(turning, turn)
    queries, keys = turned.tensor_split((turned.shape[1] - kv_heads,), dim=1)
    pool.write(layer, layout.pages, layout.offsets, keys, values)
    return queries, keys, values
