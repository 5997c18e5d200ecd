"""Every backend computes the same, and the best that was built is chosen and named."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from sluice_kernels import native
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers import backend as backends
from sluice_runtime.layers.attention import PLAIN
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.backend import (
    NATIVE,
    TORCH,
    Backend,
    choose_backend,
    with_pages,
    with_weights,
)
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.rope import Rope, angles_of, inverse_frequencies
from sluice_runtime.model.files import resolve
from sluice_runtime.model.load import load_model
from torch import Tensor

from tests.runtime.layers.layouts import layout

MISSING = native.load()
needs_kernels = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2}
DIM, HEADS, KV_HEADS = 64, 4, 2


def attended(backend: Backend, page_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Output and pool of one step over a pool that holds the rows' earlier tokens."""
    torch.manual_seed(0)
    where = layout(page_size)
    pool = PagePool(KvShape(2, KV_HEADS, DIM, dtype), where.page_table.numel(), page_size)
    pool.data.copy_(torch.randn(pool.data.shape))
    n = int(where.begins[-1])
    angles = angles_of(inverse_frequencies(Rope(10_000.0), DIM), torch.arange(n))
    qkv = torch.randn(n, HEADS + 2 * KV_HEADS, DIM).to(dtype)
    norm = HeadNorm(torch.rand(HEADS + KV_HEADS, DIM).to(dtype), 1e-6)
    return backend.operators.attention(pool, where, angles).attend(1, qkv, norm), pool.data


@needs_kernels
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("page_size", [1, 16])
def test_attention_of_the_backends_agrees(page_size: int, dtype: torch.dtype) -> None:
    seen, wanted = (attended(backend, page_size, dtype) for backend in (NATIVE, TORCH))
    for actual, expected in zip(seen, wanted, strict=True):
        torch.testing.assert_close(
            actual, expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], equal_nan=True
        )


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "load", lambda: native.Missing("_native.so was not built"))


@needs_kernels
def test_kernels_that_were_built_are_used_and_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    model = load_model(resolve("dummy://qwen3-tiny"), "bfloat16", 0)
    assert model.backend is NATIVE
    assert f"kernels: native for {native.isa()}" in caplog.messages


@pytest.mark.usefixtures("no_library")
def test_without_kernels_plain_torch_is_used_and_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    model = load_model(resolve("dummy://qwen3-tiny"), "bfloat16", 0)
    assert model.backend is TORCH
    said = "kernels: plain torch, several times slower: _native.so was not built"
    assert said in caplog.messages


@needs_kernels
def test_a_dtype_that_the_kernels_lack_is_computed_by_torch() -> None:
    choice = choose_backend(torch.float16, DIM)
    assert choice.backend is TORCH
    assert "float16" in choice.message


def test_rows_are_sampled_by_the_kernel_on_nvidias_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice_kernels.triton import operators

    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert backends.BACKENDS["torch"](gpu, "fa2", PLAIN).sample_rows is operators.sample_rows
    assert backends.BACKENDS["torch"](cpu, "fa2", PLAIN) is TORCH
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert backends.BACKENDS["torch"](gpu, "fa2", PLAIN) is TORCH


def test_matrices_of_8_bits_need_the_compiled_kernels() -> None:
    assert with_weights(TORCH, "auto") is TORCH
    assert with_weights(NATIVE, "int8").name == "native"
    with pytest.raises(
        InvalidConfigError, match='weightDtype: "int8" is not allowed; allowed: auto, where torch'
    ):
        with_weights(TORCH, "int8")


def test_over_pages_of_8_bits_torch_attends_and_the_kernels_compute_the_rest() -> None:
    for backend in (NATIVE, with_weights(NATIVE, "int8")):
        assert with_pages(backend, "auto") is backend
        changed = with_pages(backend, "fp8_e4m3")
        assert changed.operators == replace(backend.operators, attention=TorchAttention)
        assert changed.reads_whole_pages
    assert with_pages(TORCH, "fp8_e4m3") is TORCH
