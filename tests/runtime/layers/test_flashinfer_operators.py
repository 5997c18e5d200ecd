"""Operators by flashinfer agree with plain torch, and leave to it what the kernels do not take.

On a CPU the library is its own but for the compiled functions, which plain torch replaces; marked
`gpu` the same cases run the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sluice_runtime.layers import dense
from sluice_runtime.layers.flashinfer_library import flashinfer_library
from sluice_runtime.layers.flashinfer_operators import FlashinferOperators
from torch import Tensor

from tests.runtime.recorded_graph import kernel

CPU, GPU = torch.device("cpu"), torch.device("cuda")
EPS = 1e-6
DTYPES = [torch.bfloat16, torch.float16, torch.float32]


class Compiled:
    """In place of the compiled functions, each one launch; counts the calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*args: Any) -> None:
            self.calls.append(name)
            kernel(COMPILED[name], *args)

        return call


def rmsnorm(out: Tensor, x: Tensor, weight: Tensor, eps: float, _: bool) -> None:
    out.copy_(dense.rms_norm(x.float(), weight.float(), eps))


def fused_add_rmsnorm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, _: bool) -> None:
    assert weight.dtype == x.dtype == residual.dtype
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(dense.rms_norm(total, weight.float(), eps))


def gemma_rmsnorm(out: Tensor, x: Tensor, weight: Tensor, eps: float, _: bool) -> None:
    assert weight.dtype == x.dtype
    rmsnorm(out, x, weight.float() + 1, eps, _)


def gemma_fused_add_rmsnorm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, _: bool
) -> None:
    assert weight.dtype == x.dtype == residual.dtype
    total = x.float() + residual.float()
    residual.copy_(total)
    x.copy_(dense.rms_norm(total, weight.float() + 1, eps))


def silu_and_mul(out: Tensor, x: Tensor, _: bool) -> None:
    out.copy_(dense.silu_and_multiply(x.float()))


def gelu_tanh_and_mul(out: Tensor, x: Tensor, _: bool) -> None:
    out.copy_(dense.gelu_and_multiply(x.float()))


COMPILED: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        rmsnorm,
        fused_add_rmsnorm,
        gemma_rmsnorm,
        gemma_fused_add_rmsnorm,
        silu_and_mul,
        gelu_tanh_and_mul,
    )
}


def compiled_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    """flashinfer calls these from now on."""
    from flashinfer import activation, norm

    made = Compiled()
    monkeypatch.setattr(norm, "_USE_CUDA_NORM", True)
    monkeypatch.setattr(norm, "get_norm_module", lambda: made)
    monkeypatch.setattr(activation, "get_act_and_mul_module", lambda _: made)
    for module in (norm, activation):
        monkeypatch.setattr(module, "device_support_pdl", lambda _: False)
    return made


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compiled:
    return compiled_on_cpu(monkeypatch)


@pytest.fixture
def operators(compiled: Compiled) -> FlashinferOperators:
    import flashinfer

    return FlashinferOperators(flashinfer)


def randoms(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(device, dtype)


def assert_same(
    operators: FlashinferOperators, rows: int, width: int, dtype: torch.dtype, device: torch.device
) -> None:
    close: dict[str, Any] = {"atol": 3e-2, "rtol": 3e-2}
    x, delta = (randoms(rows, width, dtype=dtype, device=device) for _ in range(2))
    weight = randoms(width, dtype=dtype, device=device)
    for norm in (weight, weight.float() + 1):
        wanted = dense.rms_norm(x, norm, EPS)
        torch.testing.assert_close(operators.rms_norm(x, norm, EPS), wanted, **close)
        total, sums = x.clone(), x.clone()
        wanted = dense.add_rms_norm(sums, delta.clone(), norm, EPS)
        seen = operators.add_rms_norm(total, delta.clone(), norm, EPS)
        torch.testing.assert_close(seen, wanted, **close)
        torch.testing.assert_close(total, sums, **close)
    both = randoms(rows, 2 * width, dtype=dtype, device=device)
    wanted = dense.silu_and_multiply(both)
    torch.testing.assert_close(operators.silu_and_multiply(both), wanted, **close)
    wanted = dense.gelu_and_multiply(both)
    torch.testing.assert_close(operators.gelu_and_multiply(both), wanted, **close)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [8, 64, 100, 1024])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_every_shape_and_dtype_agrees_with_plain_torch(
    operators: FlashinferOperators, compiled: Compiled, rows: int, width: int, dtype: torch.dtype
) -> None:
    assert_same(operators, rows, width, dtype, CPU)
    taken = rows and dtype.itemsize == 2 and width % 8 == 0
    assert compiled.calls == (list(COMPILED) if taken else [])


def test_a_fine_weight_is_made_coarse_once(
    operators: FlashinferOperators, compiled: Compiled
) -> None:
    """And again for a weight that comes after it: addresses are used again."""
    x = randoms(2, 64, dtype=torch.bfloat16, device=CPU)
    weights = [randoms(64, dtype=torch.float32, device=CPU) + 1 + k for k in range(2)]
    for weight in weights:
        seen = [operators.rms_norm(x, weight, EPS) for _ in range(2)]
        wanted = dense.rms_norm(x, weight, EPS)
        for each in seen:
            torch.testing.assert_close(each, wanted, atol=3e-2, rtol=3e-2)
    assert len(operators._lessened) == 2
    del weights, weight
    assert len(operators._lessened) == 0


def test_a_norm_with_a_weight_for_each_head_is_torchs(
    operators: FlashinferOperators, compiled: Compiled
) -> None:
    x, weight = (
        randoms(*shape, dtype=torch.bfloat16, device=CPU) for shape in ((3, 4, 64), (4, 64))
    )
    assert torch.equal(operators.rms_norm(x, weight, EPS), dense.rms_norm(x, weight, EPS))
    assert compiled.calls == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [8, 100, 1024, 5120])
@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_the_real_kernels_agree_with_plain_torch(rows: int, width: int, dtype: torch.dtype) -> None:
    assert_same(FlashinferOperators(flashinfer_library(GPU)), rows, width, dtype, GPU)
