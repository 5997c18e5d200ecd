"""flashinfer as far as it is used here: whether it is at hand, what its wrappers are called with,
and what the device is like that it computes on.

It is imported on the way to a GPU only: its import takes seconds, and an engine on CPUs does not
have it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, Protocol

import torch
from sluice_kernels import flashinfer_ahead
from torch import Tensor

from sluice_runtime.layers.attention_plan import PrefillKernels
from sluice_runtime.layers.flashinfer_operators import Kernels

PACKAGE: Final = "flashinfer-python"
VERSION: Final = flashinfer_ahead.VERSION
"""Its signatures and the sizes of its workspaces are those of this version, too."""
HOPPER: Final = 9


class Wrapper(Protocol):
    """Of flashinfer, for paged keys and values; made for either prefill or decode."""

    def plan(self, **arguments: Any) -> None:
        """Prepares the next `run`s; fills a pinned buffer and copies it in the current stream."""
        ...

    def reset_workspace_buffer(
        self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor
    ) -> None:
        """Makes a pinned buffer of the size of the second."""
        ...

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, out: Tensor) -> Tensor: ...


class Library(Kernels, Protocol):
    """What is used of the module `flashinfer`."""

    def BatchPrefillWithPagedKVCacheWrapper(  # noqa: N802
        self, float_workspace_buffer: Tensor, **arguments: Any
    ) -> Wrapper: ...

    def BatchDecodeWithPagedKVCacheWrapper(  # noqa: N802
        self, float_workspace_buffer: Tensor, **arguments: Any
    ) -> Wrapper: ...

    def fast_decode_plan(self, wrapper: Wrapper, **arguments: Any) -> None:
        """Plans a decode wrapper that has planned before, and does not touch its buffers."""
        ...


@dataclass(frozen=True)
class Target:
    """A GPU, and what of it decides about kernels and workspaces."""

    place: torch.device
    capability: tuple[int, int]
    multiprocessors: int

    @property
    def prefill_kernels(self) -> PrefillKernels:
        """Hopper has kernels of its own for prompts."""
        return "fa3" if self.capability[0] == HOPPER else "fa2"


def target_at(place: torch.device) -> Target:
    """What torch knows of the GPU."""
    properties = torch.cuda.get_device_properties(place)
    return Target(place, (properties.major, properties.minor), properties.multi_processor_count)


def flashinfer_missing(dtype: str, head_dim: int, capability: tuple[int, int]) -> str | None:
    """Why flashinfer cannot be used for such a model on such a GPU; None: it can."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        return "flashinfer is not installed (it comes with the extra gpu)"
    if found != VERSION:
        return f"flashinfer {found} is installed, not {VERSION}"
    if dtype not in flashinfer_ahead.SHORT:
        return f"flashinfer does not compute {dtype}"
    major, minor = capability
    return flashinfer_ahead.unusable(flashinfer_ahead.Shape(dtype, head_dim), 10 * major + minor)


def flashinfer_library() -> Library:
    """Imports it; its kernels are those that were built ahead, where there are any."""
    flashinfer_ahead.use_built()
    library: Library = importlib.import_module("flashinfer")
    return library
