"""The kernel is called as its reference says, and what comes out is what torch computes."""

from __future__ import annotations

import pytest
import torch
from sluice_kernels import reference
from sluice_kernels.triton import operators
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.rope import (
    KernelStep,
    Rope,
    TorchStep,
    angles_of,
    inverse_frequencies,
    rotation,
    storing_step,
)
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.runtime.layers.layouts import layout

DIM, HEADS, KV_HEADS, PAGE = 64, 4, 2, 16
SHAPE = KvShape(2, KV_HEADS, DIM, torch.float32)


@pytest.mark.parametrize("normed", [True, False])
def test_the_kernel_and_torch_agree(normed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "rotate_and_store", reference.rotate_and_store_padded)
    torch.manual_seed(0)
    where = layout(PAGE)
    n = int(where.begins[-1])
    angles = angles_of(inverse_frequencies(Rope(10_000.0), DIM), torch.arange(n))
    qkv = torch.randn(n, HEADS + 2 * KV_HEADS, DIM)
    norm = HeadNorm(torch.rand(HEADS + KV_HEADS, DIM), 1e-2) if normed else None
    ours, wanted = (PagePool(SHAPE, where.page_table.numel(), PAGE) for _ in range(2))
    seen = KernelStep(ours, where, angles).queries(1, qkv, norm)
    expected = TorchStep(wanted, where, rotation(angles, qkv.dtype)).queries(1, qkv, norm)
    torch.testing.assert_close(seen, expected)
    torch.testing.assert_close(ours.data, wanted.data)
    assert wanted.data[:, 1].any()
    assert isinstance(storing_step(ours, where, angles), TorchStep)


def test_on_a_gpu_the_kernel_is_taken() -> None:
    where = layout(PAGE)
    with FakeTensorMode(allow_non_fake_inputs=True):
        pool = PagePool(SHAPE, 40, PAGE, torch.device("cuda"))
        angles = angles_of(torch.ones(DIM // 2, device="cuda"), torch.arange(5, device="cuda"))
        step = storing_step(pool, where, angles)
        assert isinstance(step, KernelStep)
        qkv = torch.empty(5, HEADS + 2 * KV_HEADS, DIM, device="cuda")
        assert step.queries(0, qkv, None).shape == (5, HEADS, DIM)
