"""Who computes what is not a matrix product: compiled kernels, or torch.

The registry, and the choice among it. Plain torch is the reference and serves everywhere; the
kernels serve a CPU for which they were built, in the number types that they know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from sluice_kernels import native
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Attention
from sluice_runtime.layers.attention_native import NativeAttention
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.draw import best, draw
from sluice_runtime.layers.mlp import silu_and_multiply
from sluice_runtime.layers.norm import add_rms_norm, rms_norm
from sluice_runtime.layers.rope import Angles
from sluice_runtime.layers.token_layout import TokenLayout


@dataclass(frozen=True)
class Backend:
    """The parts. `x` of `add_rms_norm` is changed in place."""

    name: str
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    """x [n, h], weight [h], eps → [n, h]."""
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], Tensor]
    """x, delta [n, h], weight [h], eps → [n, h], the norm of what x becomes: x + delta."""
    silu_and_multiply: Callable[[Tensor], Tensor]
    """[n, 2 x width] → [n, width]."""
    attention: Callable[[PagePool, TokenLayout, Angles], Attention]
    reads_whole_pages: bool
    """Whether attention reads slots that were not written yet, so that they must hold numbers."""
    to_float: Callable[[Tensor], Tensor]
    best: Callable[[Tensor], tuple[Tensor, Tensor]]
    """logits [m, v] → the largest of each row and its token."""
    draw: Callable[[Tensor, Tensor, Tensor], Tensor]
    """logits [m, v], temperatures and uniform random numbers [m] → tokens [m]."""


TORCH: Final = Backend(
    name="torch",
    rms_norm=rms_norm,
    add_rms_norm=add_rms_norm,
    silu_and_multiply=silu_and_multiply,
    attention=TorchAttention,
    reads_whole_pages=True,
    to_float=Tensor.float,
    best=best,
    draw=draw,
)
NATIVE: Final = Backend(
    name="native",
    rms_norm=native.rms_norm,
    add_rms_norm=native.add_rms_norm,
    silu_and_multiply=native.silu_and_multiply,
    attention=NativeAttention,
    reads_whole_pages=False,
    to_float=native.to_float,
    best=native.best,
    draw=native.draw,
)
BACKENDS: Final[Mapping[str, Backend]] = {backend.name: backend for backend in (TORCH, NATIVE)}


@dataclass(frozen=True)
class Choice:
    """A backend, and for the log why it is that one."""

    backend: Backend
    message: str


def choose_backend(dtype: torch.dtype, wanted: str | None = None) -> Choice:
    """The best there is for a model of `dtype`; `wanted` names one instead."""
    missing = native.load()
    if wanted is not None:
        return Choice(BACKENDS[wanted], f"{wanted}, as asked for")
    if missing is not None:
        return Choice(TORCH, f"plain torch, several times slower: {missing.message}")
    if dtype not in native.DTYPES:
        return Choice(TORCH, f"plain torch: the kernels do not compute {dtype}")
    return Choice(NATIVE, f"native for {native.isa()}")
