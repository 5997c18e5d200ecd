"""The parts of flashinfer that are used: its wrappers' signatures, whether it is installed, and the
properties of its device.

flashinfer is imported only for a GPU: the import takes seconds, and engines on CPUs do not have it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol, cast

import torch
from sluice_kernels import flashinfer_ahead
from torch import Tensor

from sluice_runtime.layers.attention import PLAIN, LayerKind
from sluice_runtime.layers.attention_choice import FlashinferState, Prefill
from sluice_runtime.layers.dense import Activation
from sluice_runtime.layers.flashinfer_operators import Kernels, activation_modules

PACKAGE: Final = "flashinfer-python"
VERSION: Final = flashinfer_ahead.VERSION
"""Version whose signatures and workspace sizes are used here."""


class Wrapper(Protocol):
    """Wrapper of flashinfer for paged keys and values; made for either prefill or decode."""

    _paged_kv_last_page_len_buf: Tensor
    """Lengths that `run` of decode wrappers reads: [rows] int32 on the device."""

    def plan(self, **arguments: Any) -> None:
        """Prepares the next `run`s; fills a pinned buffer and copies it in the current stream."""
        ...

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        """Replaces the workspace buffers; also makes a pinned buffer as large as
        `int_workspace_buffer`."""
        ...

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        /,
        *sinks: Any,
        out: Tensor,
        **scales: Any,
    ) -> Tensor:
        """Computes attention. sinks: for a module with sinks, these [heads] in float32, and the
        scale of scores. scales: for an 8-bit cache, `k_scale`, a float, and `v_scale`, a
        float or a tensor [heads, 1]."""
        ...


class Library(Kernels, Protocol):
    """Functions and classes of the module `flashinfer` that are used here."""

    def BatchPrefillWithPagedKVCacheWrapper(  # noqa: N802
        self, float_workspace_buffer: Tensor, **arguments: Any
    ) -> Wrapper: ...

    def BatchDecodeWithPagedKVCacheWrapper(  # noqa: N802
        self, float_workspace_buffer: Tensor, **arguments: Any
    ) -> Wrapper: ...

    def fast_decode_plan(self, wrapper: Wrapper, **arguments: Any) -> None:
        """Plans a decode wrapper that has planned before, without changing its buffers."""
        ...


@dataclass(frozen=True)
class Target:
    """A GPU, with the properties on which kernels and workspaces depend."""

    place: torch.device
    capability: tuple[int, int]
    multiprocessors: int
    prefill: Prefill = "fa2"
    """Kernels that compute prompts."""


def target_at(place: torch.device, prefill: Prefill) -> Target:
    """Properties of the GPU, from torch."""
    properties = torch.cuda.get_device_properties(place)
    capability = properties.major, properties.minor
    return Target(place, capability, properties.multi_processor_count, prefill)


def flashinfer_state(
    dtype: str,
    head_dim: int,
    capability: tuple[int, int],
    *,
    fp8_pages: bool = False,
    kinds: Sequence[LayerKind] = PLAIN,
    activation: Activation | None = None,
) -> FlashinferState:
    """Whether and how flashinfer can be used for a model with these properties on a GPU of
    `capability`. `activation`: see `LayerShape`."""
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        return FlashinferState("flashinfer is not installed (it comes with the extra gpu)")
    if installed != VERSION:
        return FlashinferState(f"flashinfer {installed} is installed, not {VERSION}")
    if dtype not in flashinfer_ahead.SHORT:
        return FlashinferState(f"flashinfer does not compute {dtype}")
    windows = any(kind.window_tokens is not None for kind in kinds)
    heads = flashinfer_ahead.Heads(head_dim, windows, any(kind.sinks for kind in kinds))
    shape, architecture = (
        flashinfer_ahead.Shape(dtype, heads, fp8_pages),
        10 * capability[0] + capability[1],
    )
    missing = flashinfer_ahead.missing_modules(
        shape, architecture, activations=activation_modules(activation)
    )
    return FlashinferState(
        flashinfer_ahead.unusable(missing),
        to_compile=len(missing),
        fa3_missing=flashinfer_ahead.missing_hopper_module(shape, architecture),
        compiler=flashinfer_ahead.find_compiler() is not None,
    )


class LateModule:
    """A module that a thread loads. The first use of each of its names waits for that, and raises
    what loading raised."""

    def __init__(self, load: Callable[[], Any]) -> None:
        thread = ThreadPoolExecutor(1, "late-module")
        self._loaded = thread.submit(load)
        thread.shutdown(wait=False)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._loaded.result(), name)
        setattr(self, name, value)
        return value


def flashinfer_library(place: torch.device) -> Library:
    """flashinfer for a device, with the kernels that were built ahead if there are any. A thread
    imports it, which takes seconds, while the weights are read."""

    def load() -> Any:
        # Threads begin with the first GPU, on which other ranks have no business.
        with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
            flashinfer_ahead.use_built()
            return importlib.import_module("flashinfer")

    return cast(Library, LateModule(load))
