"""The kernel is called as its reference says, and what comes out is what torch computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sluice_kernels import reference
from sluice_kernels.triton import operators
from sluice_runtime.kv.pool import KvScales, KvShape, PagePool
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.rope import (
    Frequencies,
    KernelStep,
    LinearScaling,
    QuantisingStep,
    Rope,
    TorchStep,
    YarnScaling,
    angles_of,
    inverse_frequencies,
    pair_order,
    rotate,
    rotation,
    storing_step,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.runtime.layers.layouts import layout

DIM, HEADS, KV_HEADS, PAGE = 64, 4, 2, 16
SHAPE = KvShape(2, KV_HEADS, DIM, torch.float32)
SCALES = KvScales(torch.tensor([[1, 1], [0.01, 0.02]]), torch.tensor([[1, 1], [0.03, 0.04]]))
OF_8_BITS = replace(SHAPE, scales=SCALES)


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


def test_of_8_bits_the_pool_stores_what_the_kernel_turned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And nothing of rows of padding, which graphs have."""
    monkeypatch.setattr(operators, "rotate_and_store", reference.rotate_and_store_padded)
    torch.manual_seed(0)
    where = layout(PAGE)
    n = int(where.begins[-1])
    angles = angles_of(inverse_frequencies(Rope(10_000.0), DIM), torch.arange(n))
    qkv = torch.randn(n, HEADS + 2 * KV_HEADS, DIM)
    ours, wanted = (PagePool(OF_8_BITS, where.page_table.numel(), PAGE) for _ in range(2))
    padded = where.pages.clone()
    padded[:2] = torch.tensor([ours.padding_page, -1])
    step = QuantisingStep.of_step(ours, replace(where, pages=padded), angles)
    seen = step.queries(1, qkv, None)
    turn = rotation(angles, qkv.dtype)
    expected = TorchStep(wanted, where, turn).queries(1, qkv, None)
    torch.testing.assert_close(seen, expected)
    assert not ours.data[ours.padding_page].view(torch.uint8).any()
    assert not ours.data[where.pages[0], 1, :, where.offsets[0]].view(torch.uint8).any()
    pages = where.pages[2:].unique()
    for mine, theirs in zip(ours.gather(1, pages), wanted.gather(1, pages), strict=True):
        written = mine != 0
        torch.testing.assert_close(mine[written], theirs[written], atol=0, rtol=0.13)
        assert int(written.sum()) > 0.9 * (n - 2) * KV_HEADS * DIM
    assert isinstance(storing_step(ours, where, angles), TorchStep)
    on_gpu: Any = SimpleNamespace(
        data=SimpleNamespace(is_cuda=True), shape=OF_8_BITS, padding_page=ours.padding_page
    )
    assert isinstance(storing_step(on_gpu, where, angles), QuantisingStep)


class Operators(TorchDispatchMode):
    """Names of those that were called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_of_8_bits_a_layer_computes_nothing_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each operator is a launch, in each layer."""
    turned = torch.zeros(48, HEADS, DIM)
    monkeypatch.setattr(operators, "rotate_and_store", lambda *_: turned)
    where = layout(PAGE)
    n = int(where.begins[-1])
    angles = angles_of(inverse_frequencies(Rope(10_000.0), DIM), torch.arange(n))
    pool = PagePool(OF_8_BITS, where.page_table.numel(), PAGE)
    of_step = {"arange", "zeros_like", "lt", "ge", "bitwise_or"}
    with Operators() as once:
        step = QuantisingStep.of_step(pool, where, angles)
    assert once.names >= of_step
    with Operators() as layer:
        step.queries(1, torch.zeros(n, HEADS + 2 * KV_HEADS, DIM), None)
    assert not layer.names & of_step
    assert "index_put_" in layer.names


def test_on_a_gpu_the_kernel_is_taken() -> None:
    where = layout(PAGE)
    with FakeTensorMode(allow_non_fake_inputs=True):
        pool = PagePool(SHAPE, 40, PAGE, torch.device("cuda"))
        angles = angles_of(
            Frequencies(torch.ones(DIM // 2, device="cuda")), torch.arange(5, device="cuda")
        )
        step = storing_step(pool, where, angles)
        assert isinstance(step, KernelStep)
        qkv = torch.empty(5, HEADS + 2 * KV_HEADS, DIM, device="cuda")
        assert step.queries(0, qkv, None).shape == (5, HEADS, DIM)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("rotated", [DIM, 48, 2])
def test_heads_in_another_order_are_rotated_in_part_or_by_neighbours(
    rotated: int, interleaved: bool
) -> None:
    """As a family's own code rotates the order of the checkpoint."""
    torch.manual_seed(0)
    x, positions = torch.randn(5, HEADS, DIM), torch.arange(5)
    rope = Rope(10_000.0, rotated=rotated, interleaved=interleaved)
    order = pair_order(rope, DIM)
    order = torch.arange(DIM) if order is None else order
    angles = angles_of(inverse_frequencies(rope, DIM), positions)
    seen = torch.empty_like(x)
    seen[..., order] = rotate(x[..., order], rotation(angles, x.dtype))
    whole = angles_of(inverse_frequencies(Rope(10_000.0), rotated), positions)
    cos, sin = whole.cos[:, None], whole.sin[:, None]
    first, second = slice(0, rotated // 2), slice(rotated // 2, rotated)
    if interleaved:
        first, second = slice(0, rotated, 2), slice(1, rotated, 2)
    expected = x.clone()
    expected[..., first] = x[..., first] * cos - x[..., second] * sin
    expected[..., second] = x[..., second] * cos + x[..., first] * sin
    torch.testing.assert_close(seen, expected)


def test_a_magnitude_scales_what_turns() -> None:
    plain = Frequencies(torch.tensor([1.0, 0.5]))
    scaled = Frequencies(plain.values, torch.tensor([3.0, 1.0]))
    seen, expected = (angles_of(frequencies, torch.arange(4)) for frequencies in (scaled, plain))
    torch.testing.assert_close(seen.cos, expected.cos * torch.tensor([3.0, 1.0]))
    torch.testing.assert_close(seen.sin, expected.sin * torch.tensor([3.0, 1.0]))


def test_a_ropes_own_magnitude_scales_all_numbers() -> None:
    """Also where that of its scaling makes up for it."""
    scaling = YarnScaling(4.0, 32.0, 1.0, 64, truncate=True, attention_factor=2.0)
    magnitudes = inverse_frequencies(Rope(1e4, scaling, rotated=4, magnitude=0.5), 8).magnitudes
    assert magnitudes is not None
    assert magnitudes.tolist() == [1.0, 1.0, 0.5, 0.5]


SCALED: dict[str, LinearScaling | YarnScaling] = {
    "yarn": YarnScaling(32.0, 32.0, 1.0, 4096, truncate=True),
    "yarn, not truncated": YarnScaling(32.0, 32.0, 1.0, 4096, truncate=False),
    "linear": LinearScaling(8.0),
}


@pytest.mark.process
@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("name", SCALED)
def test_scaled_frequencies_are_those_of_transformers(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    scaling = SCALED[name]
    written = {"rope_theta": 150_000.0, "rope_type": name.split(",")[0], "factor": scaling.factor}
    if isinstance(scaling, YarnScaling):
        written |= {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": scaling.truncate}
        written["original_max_position_embeddings"] = 4096
    config = LlamaConfig(head_dim=DIM, rope_parameters=written)
    wanted, magnitude = ROPE_INIT_FUNCTIONS[str(written["rope_type"])](config)
    seen = inverse_frequencies(Rope(150_000.0, scaling), DIM)
    torch.testing.assert_close(seen.values, wanted)
    if magnitude == 1:
        assert seen.magnitudes is None
    else:
        assert seen.magnitudes is not None
        torch.testing.assert_close(seen.magnitudes, torch.full((DIM // 2,), magnitude))
