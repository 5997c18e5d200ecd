"""Norms whose weights are finer than what they norm, and gated activations."""

from __future__ import annotations

import math

import pytest
import torch
from sluice_runtime.layers.dense import (
    ClampedSwiglu,
    add_rms_norm,
    gelu_and_multiply,
    linear,
    rms_norm,
)


@pytest.mark.parametrize("shape", [(8,), (3, 8)], ids=["of all", "of each head"])
def test_a_norm_of_float32_is_rounded_once(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(5, 3, 8).to(torch.bfloat16), torch.rand(shape) + 1
    wide = x.double()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * weight
    seen = rms_norm(x, weight, 1e-6)
    assert seen.dtype is torch.bfloat16
    assert ((seen - wanted).abs() <= 1.001 * 2**-8 * wanted.abs()).all(), "more than one rounding"


def test_what_is_added_keeps_its_type() -> None:
    x, delta = torch.ones(2, 8, dtype=torch.bfloat16), torch.ones(2, 8, dtype=torch.bfloat16)
    assert add_rms_norm(x, delta, torch.full((8,), 3.0), 0.0).tolist() == [[3.0] * 8] * 2
    assert x.tolist() == [[2.0] * 8] * 2


def test_a_clamped_gate() -> None:
    gate_up = torch.tensor([[9.0, -9.0, 1.0, 9.0, -9.0, 0.5]])
    sigmoid = [1 / (1 + math.exp(-1.5 * gate)) for gate in (2.0, -9.0, 1.0)]
    wanted = [2 * sigmoid[0] * 3, -9 * sigmoid[1] * -1, sigmoid[2] * 1.5]
    seen = ClampedSwiglu(1.5, 2.0)(gate_up.clone())
    torch.testing.assert_close(seen, torch.tensor([wanted]))


def test_the_tanh_form_of_gelu() -> None:
    gate, up = 0.7, 3.0
    inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
    wanted = 0.5 * gate * (1 + math.tanh(inner)) * up
    seen = gelu_and_multiply(torch.tensor([[gate, up]]))
    torch.testing.assert_close(seen, torch.tensor([[wanted]]))


@pytest.mark.parametrize(
    ("dtype", "onednn_has"),
    [
        (torch.bfloat16, "_is_mkldnn_bf16_supported"),
        (torch.float16, "_is_mkldnn_fp16_supported"),
    ],
    ids=["bfloat16", "float16"],
)
def test_a_weight_is_reordered_only_where_onednn_multiplies_its_type(
    dtype: torch.dtype, onednn_has: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reordered = []

    def reorder(weight: torch.Tensor) -> torch.Tensor:
        reordered.append(weight)
        return weight

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", reorder)
    weight = torch.randn(3, 8).to(dtype)
    monkeypatch.setattr(torch.ops.mkldnn, onednn_has, lambda: False)
    linear(weight)
    assert not reordered
    monkeypatch.setattr(torch.ops.mkldnn, onednn_has, lambda: True)
    linear(weight)
    assert len(reordered) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_a_product_of_16_bits_on_any_processor(dtype: torch.dtype) -> None:
    x, weight = torch.ones(2, 8, dtype=dtype), torch.ones(3, 8, dtype=dtype)
    assert linear(weight)(x).tolist() == [[8.0] * 3] * 2
