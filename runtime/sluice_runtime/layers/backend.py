"""The backends that compute a model: compiled kernels on CPUs, flashinfer on GPUs, or plain torch.

Holds the registry of backends, and finds which are installed and built here; `attention_choice`
chooses among these. Plain torch is the reference and runs everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from sluice_contract.base import ConfigError
from sluice_contract.config.engine import AttentionBackend, KvCacheDtype, WeightDType
from sluice_kernels import native
from sluice_kernels.reference import DecodeTensors
from torch import Tensor

from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.kv.pool import CPU, PagePool
from sluice_runtime.layers.attention import PLAIN, LayerKind, TokenLayout
from sluice_runtime.layers.attention_choice import (
    GpuKind,
    Name,
    Prefill,
    Situation,
    Vendor,
    choose_attention,
)
from sluice_runtime.layers.attention_flashinfer import FlashinferAttention
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.dense import (
    Activation,
    HeadNorm,
    add_rms_norm,
    int8_linear,
    pack,
    pack_int8,
    rms_norm,
    silu_and_multiply,
)
from sluice_runtime.layers.draw import Draws, draw, draw_native
from sluice_runtime.layers.flashinfer_graphs import GraphWrappers
from sluice_runtime.layers.flashinfer_library import (
    Library,
    Target,
    flashinfer_library,
    flashinfer_state,
    target_at,
)
from sluice_runtime.layers.flashinfer_operators import FlashinferOperators
from sluice_runtime.layers.rope import Angles
from sluice_runtime.layers.stack import LayerShape, LayerStack, LayerWeights
from sluice_runtime.layers.stacks import Operators, PlainStack, ShardedStack

RowSampler = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function: (logits, rows, positions, reals, wholes) → tokens."""


@dataclass(frozen=True)
class Backend:
    """Functions that compute the parts of a model."""

    name: str
    operators: Operators
    layers: Callable[[Iterable[LayerWeights], LayerShape], LayerStack]
    reads_whole_pages: bool
    """Whether attention reads slots that were not written yet; these must then hold no NaN."""
    to_float: Callable[[Tensor], Tensor]
    draw: Callable[[Tensor, Draws | None], Tensor]
    """Draws tokens: see `layers.draw.draw`."""
    sample_rows: RowSampler | None = None
    """Kernel that restricts and draws at once, without scratch memory: see
    `sluice_kernels.reference.sample_rows`. None: several operations, including `draw`, do it."""
    graph_wrappers: Callable[[PagePool, int], GraphWrappers] | None = None
    """Function of a pool and a number of query heads that makes attention which graphs can capture;
    None: unsupported."""
    decode_inputs: Callable[[DecodeTensors], None] | None = None
    """Kernel that makes the inputs of such graphs: see `sluice_kernels.reference.decode_inputs`."""


class NativeAttention:
    """Paged attention of one step by the compiled kernels, in one call for rows that extend and
    rows that decode. The kernels read the pool in place: nothing is gathered or masked."""

    def __init__(self, pool: PagePool, layout: TokenLayout, angles: Angles) -> None:
        self._pool = pool.data
        self._scale: float = pool.shape.head_dim**-0.5
        self._layout = layout
        self._angles = angles

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """See `layers.attention.Attention`."""
        layout, angles = self._layout, self._angles
        weight, eps = (head_norm.weight, head_norm.eps) if head_norm else (None, 0.0)
        queries = native.rotate_and_store(
            qkv,
            weight,
            eps,
            angles.cos,
            angles.sin,
            self._pool,
            layer,
            layout.pages,
            layout.offsets,
        )
        return native.paged_attention(
            queries,
            self._pool,
            layer,
            layout.page_table,
            layout.rows,
            layout.begins,
            layout.contexts,
            self._scale,
        )


def _native_layers(
    operators: Operators,
    packed: Callable[[Tensor], native.Matrix],
    layers: Iterable[LayerWeights],
    shape: LayerShape,
) -> LayerStack:
    """Layers in shards, one for each thread, if the heads divide evenly, there are no other ranks
    and no adapters, and the kernel knows all parts of a layer; else plain layers."""
    threads = torch.get_num_threads()
    more = shape.qkv_bias or shape.experts or shape.post_norms or shape.whole_qk_norm
    more = more or shape.activation is not None
    shared = shape.group.size > 1 or shape.adapters is not None
    if shape.kv_heads % threads or shared or more:
        return PlainStack(layers, shape, operators)
    return ShardedStack(layers, shape, threads, packed)


_TORCH: Final = Operators(
    rms_norm, add_rms_norm, silu_and_multiply, TorchAttention, attention_by=TorchAttention
)
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
    layers=partial(_native_layers, _NATIVE, pack),
    reads_whole_pages=False,
    to_float=native.to_float,
    draw=draw_native,
)
_INT8: Final = replace(_NATIVE, linear=int8_linear)
NATIVE_INT8: Final = replace(
    NATIVE, operators=_INT8, layers=partial(_native_layers, _INT8, pack_int8)
)
"""Backend with matrices of 8 bits: steps that decode read half of the bytes."""


def with_weights(backend: Backend, setting: WeightDType) -> Backend:
    """The backend with matrices of the type that `weightDtype` names.

    Raises:
        InvalidConfigError: the backend has no matrices of this type.
    """
    if setting == "auto":
        return backend
    if backend is not NATIVE:
        allowed = f"auto, where {backend.name} computes (int8 needs the compiled kernels)"
        raise InvalidConfigError(str(ConfigError("weightDtype", setting, allowed)))
    return NATIVE_INT8


def with_pages(backend: Backend, setting: KvCacheDtype) -> Backend:
    """The backend over pages of the type that `kvCacheDtype` names. The compiled kernels cannot
    read 8-bit pages: plain torch then computes attention, and the kernels the rest."""
    if setting == "auto" or backend.name != NATIVE.name:
        return backend
    operators = replace(backend.operators, attention=TorchAttention)
    return replace(
        backend,
        operators=operators,
        layers=lambda layers, shape: PlainStack(layers, shape, operators),
        reads_whole_pages=True,
    )


def _row_kernels(device: torch.device) -> dict[str, Any]:
    """The kernels for rows, by field of a backend, on NVIDIA's GPUs; none elsewhere."""
    if device.type != "cuda" or torch.version.hip is not None:
        return {}
    # Imported only with a GPU, for which it registers operators.
    from sluice_kernels.triton import operators

    return {"sample_rows": operators.sample_rows, "decode_inputs": operators.decode_inputs}


def _torch(device: torch.device, *_: object) -> Backend:
    kernels = _row_kernels(device)
    return replace(TORCH, **kernels) if kernels else TORCH


def flashinfer_backend(
    device: torch.device, prefill: Prefill, kinds: Sequence[LayerKind] = PLAIN
) -> Backend:
    """Backend for one device, to which its wrappers and workspaces belong."""
    backend = backend_over(target_at(device, prefill), flashinfer_library(device), kinds)
    return replace(backend, **_row_kernels(device))


def backend_over(target: Target, library: Library, kinds: Sequence[LayerKind] = PLAIN) -> Backend:
    """Backend that computes with flashinfer's functions in `library`, without kernels for rows."""
    own = FlashinferOperators(library)
    attention = FlashinferAttention(target, library)
    operators = Operators(
        own.rms_norm,
        own.add_rms_norm,
        own.silu_and_multiply,
        attention,
        attention_by=attention,
        gelu_and_multiply=own.gelu_and_multiply,
    )
    return Backend(
        name="flashinfer",
        operators=operators,
        layers=lambda layers, shape: PlainStack(layers, shape, operators),
        reads_whole_pages=False,
        to_float=Tensor.float,
        draw=draw,
        graph_wrappers=partial(GraphWrappers, library, target, kinds),
    )


BACKENDS: Final[Mapping[Name, Callable[[torch.device, Prefill, Sequence[LayerKind]], Backend]]] = {
    "native": lambda *_: NATIVE,
    "torch": _torch,
    "flashinfer": flashinfer_backend,
}
"""Backends by their name in `attentionBackend`."""


@dataclass(frozen=True)
class BackendChoice:
    """A backend, and the reason for the choice, for the log."""

    backend: Backend
    message: str


def choose_backend(
    dtype: torch.dtype,
    head_dim: int,
    device: torch.device = CPU,
    setting: AttentionBackend = "auto",
    pages: KvCacheDtype = "auto",
    kinds: Sequence[LayerKind] = PLAIN,
    native_lacks: str = "",
    activation: Activation | None = None,
) -> BackendChoice:
    """The fastest backend for a model on `device`, or the backend that `setting` names.
    `native_lacks`: see `Situation`; `activation`: see `LayerShape`.

    Raises:
        InvalidConfigError: the named backend cannot compute this model here.
    """
    here = situation(dtype, head_dim, device, pages, kinds, activation)
    choice = choose_attention(replace(here, native_lacks=native_lacks), setting)
    return BackendChoice(BACKENDS[choice.name](device, choice.prefill, kinds), choice.message)


def situation(
    dtype: torch.dtype,
    head_dim: int,
    device: torch.device,
    pages: KvCacheDtype = "auto",
    kinds: Sequence[LayerKind] = PLAIN,
    activation: Activation | None = None,
) -> Situation:
    """Backends that are installed and built here, as far as `device` can use them."""
    name, fp8 = _name(dtype), pages == "fp8_e4m3"
    if device.type != "cpu":
        vendor: Vendor = "AMD" if torch.version.hip else "NVIDIA"
        capability = torch.cuda.get_device_capability(device)
        state = flashinfer_state(
            name, head_dim, capability, fp8_pages=fp8, kinds=kinds, activation=activation
        )
        gpu = GpuKind(vendor, capability)
        sinks = any(kind.sinks for kind in kinds)
        return Situation(name, head_dim, gpu, flashinfer=state, fp8_pages=fp8, sinks=sinks)
    missing = native.load()
    return Situation(
        name,
        head_dim,
        native_missing=missing.message if missing else None,
        native_isa="" if missing else native.isa(),
        native_dtypes=tuple(map(_name, native.DTYPES)),
        fp8_pages=fp8,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
