"""A CPU in the place of a GPU, in processes that have this folder on their path: tensors of "cuda"
are the host's, graphs are recordings, kernels are their references. So the commands of
`e2e.gpu_runs` run from start to end; what a GPU computes and how fast is not to be seen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._device import _device_constructors

PRODUCT = "NVIDIA H100 80GB HBM3"
FREE_BYTES, TOTAL_BYTES = 7 << 30, 8 << 30
FACTORIES = ("arange", "as_tensor", "empty", "full", "ones", "rand", "randint", "randn", "randperm",
             "tensor", "zeros", "empty_like", "zeros_like")  # fmt: skip
patch = pytest.MonkeyPatch()


def on_host(value: Any) -> Any:
    """`value`, or the CPU if it names a GPU."""
    if isinstance(value, torch.device | str) and str(value).startswith("cuda"):
        return torch.device("cpu")
    return value


def hosted(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Any:
        return function(*map(on_host, args), **{k: on_host(v) for k, v in kwargs.items()})

    return call


class Stream:
    """Of work that is done at once; an event of it, and a graph's memory."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing is kept."""

    def nothing(self, *_: object) -> None:
        """There is nothing to wait for."""

    wait_stream = wait_event = record = synchronize = replay = nothing

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: object) -> float:
        return 1.0  # ms


def replace_cuda() -> None:
    # Remembers the functions as they are, for `with torch.device(…)`.
    _device_constructors()
    for name in FACTORIES:
        patch.setattr(torch, name, hosted(getattr(torch, name)))
    patch.setattr(Tensor, "to", hosted(Tensor.to))
    patch.setattr(Tensor, "cuda", lambda tensor: tensor)
    patch.setattr(Tensor, "pin_memory", lambda tensor: tensor)
    cuda = torch.cuda
    device = SimpleNamespace(
        name=PRODUCT, total_memory=80 << 30, major=9, minor=0, multi_processor_count=132
    )
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "current_stream": Stream(),
        "get_device_name": PRODUCT,
        "get_device_capability": (9, 0),
        "get_device_properties": device,
        "mem_get_info": (FREE_BYTES, TOTAL_BYTES),
        "stream": nullcontext(),
        "device": nullcontext(),
        "graph": nullcontext(),
    }.items():
        patch.setattr(cuda, name, lambda *_, value=value, **__: value)
    for name in ("Stream", "Event", "CUDAGraph"):
        patch.setattr(cuda, name, Stream)
    profile = torch.profiler.profile
    on_cpu = [torch.profiler.ProfilerActivity.CPU]
    patch.setattr(
        torch.profiler, "profile", lambda activities, **k: profile(activities=on_cpu, **k)
    )


def replace_graphs() -> None:
    from sluice_runtime.engine.graphs import CudaCapture

    from tests.runtime.recorded_graph import capture

    patch.setattr(CudaCapture, "__init__", lambda _: None)
    patch.setattr(CudaCapture, "__call__", lambda _, step: capture(step))


def replace_kernels() -> None:
    """flashinfer's when it is imported: that takes seconds."""
    from sluice_kernels import flashinfer_ahead, reference
    from sluice_kernels.triton import operators  # noqa: F401  (registers them)

    from tests.runtime.layers.flashinfer_kernels import flashinfer_on_cpu
    from tests.runtime.layers.test_flashinfer_operators import compiled_on_cpu

    def use_built() -> None:
        flashinfer_on_cpu(patch)
        compiled_on_cpu(patch)

    patch.setattr(flashinfer_ahead, "use_built", use_built)
    patch.setattr(flashinfer_ahead, "find_compiler", lambda: "nvcc")
    for name, computed in (
        ("rotate_and_store", reference.rotate_and_store_padded),
        ("sample_rows", reference.sample_rows),
        ("decode_inputs", lambda *step: reference.decode_inputs(reference.DecodeTensors(*step))),
        ("packed_product", packed_product),
        ("choose_experts", reference.choose_experts),
        ("sort_by_expert", reference.sort_by_expert),
        ("clamped_swiglu", reference.clamped_swiglu),
    ):
        torch.library.impl(f"sluice_triton::{name}", "CPU")(computed)


def packed_product(*arguments: Any) -> Any:
    """The operator's reference."""
    from sluice_kernels import reference
    from sluice_kernels.triton.operators import Product

    product = Product(*arguments)
    return reference.packed_product(product.x, product.matrix, product.bias, product.grouping)


def shrink_models() -> None:
    from benchmarks.gpu import engines

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 259}
    small |= {"max_position_embeddings": 8192}
    less = {"chunk_size": 256, "threads": 1, "kv_pool_tokens": 16_384}
    patch.setattr(engines, "DEFAULTS", {**engines.DEFAULTS, **less})
    patch.setattr(engines, "SHAPES", {k: {**v, **small} for k, v in engines.SHAPES.items()})


def replace_accelerator() -> None:
    """What the process that starts an engine's finds."""
    from sluice_contract.config.accelerators import Accelerator
    from sluice_runtime.process import accelerator

    found = Accelerator(product=PRODUCT.replace(" ", "-"), memory_mib=80 << 10, count=1)
    patch.setattr(accelerator, "find_accelerator", lambda _: found)


if "sluice_runtime" in sys.orig_argv:
    replace_accelerator()
if "sluice_runtime.engine" in sys.orig_argv:
    replace_cuda()
    replace_graphs()
    replace_kernels()
if any(word.startswith("benchmarks.") or word.endswith("pytest.ini") for word in sys.orig_argv):
    replace_cuda()
    replace_graphs()
    replace_kernels()
    if "pytest" not in sys.orig_argv:
        shrink_models()
