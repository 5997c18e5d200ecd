"""The backends that compute a model: compiled kernels, or plain torch.

The registry of backends and the choice among them. Plain torch is the reference and runs
everywhere; the kernels run on a CPU for which they were built, in the dtypes they support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from sluice_kernels import native
from torch import Tensor

from sluice_runtime.layers.attention_native import NativeAttention
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.draw import GREEDY_BELOW, draw
from sluice_runtime.layers.mlp import silu_and_multiply
from sluice_runtime.layers.norm import add_rms_norm, rms_norm
from sluice_runtime.layers.stack import LayerShape, LayerStack, LayerWeights
from sluice_runtime.layers.stack_plain import Operators, PlainStack
from sluice_runtime.layers.stack_sharded import ShardedStack


@dataclass(frozen=True)
class Backend:
    """The parts of a model."""

    name: str
    operators: Operators
    layers: Callable[[Iterable[LayerWeights], LayerShape], LayerStack]
    reads_whole_pages: bool
    """Whether attention reads slots that were not written yet, so that they must not hold NaN."""
    to_float: Callable[[Tensor], Tensor]
    draw: Callable[[Tensor, Tensor, Tensor], Tensor]
    """See `layers.draw.draw`."""


def _native_layers(layers: Iterable[LayerWeights], shape: LayerShape) -> LayerStack:
    """A shard for each thread if the heads can be divided evenly."""
    threads = torch.get_num_threads()
    if shape.kv_heads % threads:
        return PlainStack(layers, shape, _NATIVE)
    return ShardedStack(layers, shape, threads)


_TORCH: Final = Operators(rms_norm, add_rms_norm, silu_and_multiply, TorchAttention)
_NATIVE: Final = Operators(
    native.rms_norm, native.add_rms_norm, native.silu_and_multiply, NativeAttention
)
TORCH: Final = Backend(
    name="torch",
    operators=_TORCH,
    layers=lambda layers, shape: PlainStack(layers, shape, _TORCH),
    reads_whole_pages=True,
    to_float=Tensor.float,
    draw=draw,
)
NATIVE: Final = Backend(
    name="native",
    operators=_NATIVE,
    layers=_native_layers,
    reads_whole_pages=False,
    to_float=native.to_float,
    draw=partial(native.draw, greedy_below=GREEDY_BELOW),
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
