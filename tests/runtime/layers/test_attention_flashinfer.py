"""Attention by flashinfer's wrappers agrees with plain torch, for every kind of step.

On a CPU the wrappers are the library's own, over kernels in torch (`flashinfer_kernels`); marked
`gpu` the same cases run over the real ones.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sluice_runtime.kv.pool import CPU, KvScales, KvShape, PagePool
from sluice_runtime.layers.attention import AttentionRule, LayerKind, TokenLayout
from sluice_runtime.layers.attention_flashinfer import FlashinferAttention
from sluice_runtime.layers.attention_plan import PrefillKernels
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.flashinfer_library import (
    Target,
    flashinfer_library,
    flashinfer_state,
    target_at,
)
from sluice_runtime.layers.rope import Rope, angles_of, inverse_frequencies
from torch import Tensor

from tests.pairwise import matrix
from tests.runtime.layers.flashinfer_kernels import flashinfer_on_cpu
from tests.runtime.layers.layouts import ROWS, Row, layout

DIM, LAYERS, DTYPE, TOLERANCE = 64, 2, torch.bfloat16, 3e-2
STEPS: dict[str, tuple[tuple[Row, ...], int]] = {
    "prefill": (((40, 40), (1, 1), (16, 16)), 3),
    "chunk with a prefix": (((7, 30), (16, 48), (1, 17)), 3),
    "decode": (((1, 1), (1, 16), (1, 17), (1, 100)), 0),
    "mixed": (ROWS, 2),
    "mixed, mostly prompt": (((120, 130), (1, 33), (1, 1)), 1),
}
HEADS = {"1": (2, 2), "2": (4, 2), "3": (6, 2), "4": (8, 2), "5": (10, 2), "16": (16, 1)}
HOPPER = Target(torch.device("cpu"), (9, 0), 132, "fa3")
AMPERE = Target(torch.device("cpu"), (8, 0), 108, "fa2")
TARGETS = {"fa3": HOPPER, "fa2": AMPERE}
WINDOWED, SINKS = ([LayerKind(window, sinks) for window in (None, 18)] for sinks in (False, True))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    return flashinfer_on_cpu(monkeypatch)


def filled(
    where: TokenLayout,
    page_size: int,
    kv_heads: int,
    beyond: float,
    place: torch.device = CPU,
    dim: int = DIM,
    scales: KvScales | None = None,
    layers: int = LAYERS,
) -> PagePool:
    """A pool with the rows' earlier tokens; `beyond`: in all slots that no row has."""
    shape = KvShape(layers, kv_heads, dim, DTYPE, scales)
    pool = PagePool(shape, where.page_table.numel(), page_size)
    pool.clear(torch.arange(pool.pages + 1), beyond)
    generator = torch.Generator().manual_seed(1)
    for row, context in zip(where.numbers.rows, where.numbers.contexts, strict=True):
        positions = torch.arange(int(context))
        pages = where.page_table[int(row)][positions // page_size]
        size = (2, len(positions), layers, kv_heads, dim)
        keys, values = torch.randn(size, generator=generator).to(DTYPE)
        for layer in range(layers):
            pool.write(layer, pages, positions % page_size, keys[:, layer], values[:, layer])
    there = PagePool(shape, pool.pages, page_size, place)
    there.data.copy_(pool.data)
    return there


def attended(
    attention: Any,
    where: TokenLayout,
    pool: PagePool,
    heads: int,
    windows: tuple[int | None, ...] = (None,) * LAYERS,
    *,
    sinks: bool = False,
) -> Tensor:
    """[layers, n, heads, dim], one step over all layers, where the pool is. `windows`: by layer."""
    place, generator = pool.data.device, torch.Generator().manual_seed(2)
    n, kv_heads, dim = int(where.begins[-1]), pool.shape.kv_heads, pool.shape.head_dim
    size = len(windows), n, heads + 2 * kv_heads, dim
    qkv = torch.randn(size, generator=generator).to(place, DTYPE)
    weight = torch.rand(heads + kv_heads, dim, generator=generator).to(place, DTYPE)
    frequencies = inverse_frequencies(Rope(10_000.0), dim).to(place)
    angles = angles_of(frequencies, torch.arange(n, device=place))
    drawn = torch.randn(len(windows), heads, generator=generator).to(place, DTYPE) * 3
    by_layer = dict(enumerate(drawn)) if sinks else {}
    rules = {window: AttentionRule(window, by_layer) for window in windows}
    steps = {window: attention(pool, where, angles, rule) for window, rule in rules.items()}
    norm = HeadNorm(weight, 1e-6)
    attended = [steps[window].attend(i, qkv[i], norm) for i, window in enumerate(windows)]
    return torch.stack(attended)


def assert_same(
    target: Target,
    library: Any,
    name: str,
    page_size: int,
    group: str,
    dim: int = DIM,
    scales: KvScales | None = None,
    windows: tuple[int | None, ...] = (None,) * LAYERS,
    *,
    sinks: bool = False,
) -> None:
    torch.manual_seed(0)
    (rows, extends), (heads, kv_heads) = STEPS[name], HEADS[group]
    where = layout(page_size, rows, extends)
    wanted_pool = filled(where, page_size, kv_heads, 0.0, dim=dim, scales=scales)
    wanted = attended(TorchAttention, where, wanted_pool, heads, windows, sinks=sinks)
    pool = filled(where, page_size, kv_heads, float("nan"), target.place, dim, scales)
    attention = FlashinferAttention(target, library)
    seen = attended(attention, moved(where, target.place), pool, heads, windows, sinks=sinks)
    close: dict[str, Any] = {"atol": TOLERANCE, "rtol": TOLERANCE}
    torch.testing.assert_close(seen.cpu(), wanted, **close)
    stored = (each.data.cpu().float().nan_to_num(0.0) for each in (pool, wanted_pool))
    if scales is None:  # of 8 bits a GPU may round what lies between two numbers otherwise
        torch.testing.assert_close(*stored, **close)


def moved(where: TokenLayout, place: torch.device) -> TokenLayout:
    tensors: dict[str, Any] = {
        name: value.to(place) for name, value in vars(where).items() if isinstance(value, Tensor)
    }
    return replace(where, **tensors)


@pytest.mark.parametrize(
    ("name", "page_size", "group", "target"),
    matrix(STEPS, (1, 16), HEADS, TARGETS, others=pytest.mark.full),
)
def test_every_kind_of_step_agrees_with_plain_torch(
    name: str, page_size: int, group: str, target: str, library: Any
) -> None:
    assert_same(TARGETS[target], library, name, page_size, group)


KERNELS = [(1, "2", "fa2"), (16, "4", "fa3")]


@pytest.mark.parametrize(
    ("name", "kernel", "windows"),
    matrix(STEPS, KERNELS, [(None, 18), (1, 18), (500, None)], others=pytest.mark.full),
    ids=str,
)
def test_layers_with_and_without_a_window_agree_with_plain_torch(
    name: str, kernel: tuple[int, str, str], windows: tuple[int | None, ...], library: Any
) -> None:
    """Windows of one token, of more than a page, and of more than any context."""
    page_size, group, target = kernel
    assert_same(TARGETS[target], library, name, page_size, group, windows=windows)


KERNELS_OF_SINKS = [(1, "2", "fa2"), (16, "16", "fa3")]


@pytest.mark.parametrize(
    ("name", "kernel", "windows"),
    matrix(STEPS, KERNELS_OF_SINKS, [(None, 18), (None, None)], others=pytest.mark.full),
    ids=str,
)
def test_layers_with_sinks_agree_with_plain_torch(
    name: str, kernel: tuple[int, str, str], windows: tuple[int | None, ...], library: Any
) -> None:
    page_size, group, target = kernel
    assert_same(TARGETS[target], library, name, page_size, group, windows=windows, sinks=True)


def test_a_step_is_planned_once_for_each_window(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[int] = []

    def counted(plan: Any) -> Any:
        def call(*args: Any, **given: Any) -> Any:
            planned.append(given["window_left"])
            return plan(*args, **given)

        return call

    monkeypatch.setattr(library, "fast_decode_plan", counted(library.fast_decode_plan))
    for name in ("BatchPrefillWithPagedKVCacheWrapper", "BatchDecodeWithPagedKVCacheWrapper"):
        wrapper = getattr(library, name)
        monkeypatch.setattr(wrapper, "plan", counted(wrapper.plan))
    attention = FlashinferAttention(HOPPER, library)
    for name, parts in (("prefill", 1), ("decode", 1), ("mixed", 2)):
        planned.clear()
        where = layout(16, *STEPS[name])
        attended(attention, where, filled(where, 16, 2, float("nan"), layers=4), 8, (None, 18) * 2)
        assert sorted(planned) == [-1] * parts + [17] * parts


BY_LAYER = KvScales(torch.tensor([[0.5] * 2, [0.02] * 2]), torch.tensor([[1.0] * 2, [0.01] * 2]))
BY_HEAD = KvScales(torch.tensor([[0.5, 0.02], [1, 1]]), torch.tensor([[0.03, 0.03], [0.01, 0.5]]))
SCALES = {"one a layer": BY_LAYER, "one a head": BY_HEAD}


@pytest.mark.parametrize(
    ("name", "group", "scales"), matrix(STEPS, ["2", "4"], SCALES, others=pytest.mark.full)
)
def test_of_8_bits_every_kind_of_step_agrees_with_plain_torch(
    name: str, group: str, scales: str, library: Any
) -> None:
    own, windows = SCALES[scales], (None, 18)
    assert_same(AMPERE, library, name, 16, group, scales=own, windows=windows)
    assert_same(AMPERE, library, name, 16, group, scales=own, windows=windows, sinks=True)


@pytest.mark.parametrize(
    ("scales", "layer", "keys", "values"),
    [
        (None, 0, None, None),
        (BY_LAYER, 0, 0.5, 1.0),
        (BY_LAYER, 1, 0.02, 0.01),
        (BY_HEAD, 0, None, 0.03),
        (BY_HEAD, 1, 1.0, [0.01, 0.01, 0.5, 0.5]),
    ],
)
def test_a_wrapper_is_given_the_types_and_the_layers_scales(
    scales: KvScales | None, layer: int, keys: Any, values: Any, library: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Keys of heads with scales of their own have none there: queries have them."""
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper
    plans, runs = [], []

    def plan(self: Any, *args: Any, **given: Any) -> Any:
        plans.append(given)
        return original_plan(self, *args, **given)

    def run(self: Any, q: Tensor, cache: Any, **given: Any) -> Any:
        runs.append((q, cache, given))
        return original_run(self, q, cache, **given)

    original_plan, original_run = wrapper.plan, wrapper.run
    monkeypatch.setattr(wrapper, "plan", plan)
    monkeypatch.setattr(wrapper, "run", run)
    where = layout(16, *STEPS["decode"])
    attended(FlashinferAttention(AMPERE, library), where,
             filled(where, 16, 2, float("nan"), scales=scales), 4)  # fmt: skip
    pages = DTYPE if scales is None else torch.float8_e4m3fn
    assert (plans[0]["q_data_type"], plans[0]["kv_data_type"]) == (DTYPE, pages)
    q, cache, given = runs[layer]
    assert (q.dtype, cache[0].dtype, cache[1].dtype) == (DTYPE, pages, pages)
    told: dict[str, Any] = {name: given.get(f"{name}_scale") for name in "kv"}
    assert told["k"] is None if keys is None else told["k"] == pytest.approx(keys)
    if isinstance(values, list):
        assert told["v"].shape == (4, 1)
        assert told["v"].flatten().tolist() == pytest.approx(values)
    else:
        assert told["v"] is None if values is None else told["v"] == pytest.approx(values)


def test_one_object_computes_steps_of_changing_rows(library: Any) -> None:
    attention = FlashinferAttention(AMPERE, library)
    for name, (rows, extends) in STEPS.items():
        where = layout(16, rows, extends)
        wanted = attended(TorchAttention, where, filled(where, 16, 2, 0.0), 8)
        seen = attended(attention, where, filled(where, 16, 2, float("nan")), 8)
        torch.testing.assert_close(seen, wanted, atol=TOLERANCE, rtol=TOLERANCE, msg=name)


class Copy:
    """A copy of a pinned buffer that the device has not made yet."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def record(self) -> None:
        self.log.append("record")

    def synchronize(self) -> None:
        self.log.append("synchronize")


def test_a_wrapper_plans_again_only_when_its_last_plan_was_copied(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Copy] = []

    def event(_: torch.device) -> Copy:
        copies.append(Copy())
        return copies[-1]

    flashinfer = "sluice_runtime.layers.attention_flashinfer"
    monkeypatch.setattr(f"{flashinfer}.copy_event", event)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    where = layout(16, *STEPS["decode"])
    attention = FlashinferAttention(AMPERE, library)
    for _ in range(2):
        attended(attention, where, filled(where, 16, 2, float("nan")), 8)
    decode, _ = copies
    assert decode.log == ["synchronize", "record"] * 2


def fa3_missing(dim: int) -> str | None:
    """Why this machine's GPU has no FA3 kernels."""
    capability = torch.cuda.get_device_capability()
    if capability[0] != HOPPER.capability[0]:
        return "FA3 is for Hopper"
    return flashinfer_state("bfloat16", dim, capability).fa3_missing


@pytest.mark.gpu
@pytest.mark.parametrize("group", HEADS)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("prefill", ["fa2", "fa3"])
@pytest.mark.parametrize("dim", [128, 64], ids=["dim128", "dim64"])
def test_the_real_kernels_agree_with_plain_torch(
    dim: int, prefill: PrefillKernels, name: str, page_size: int, group: str
) -> None:
    if prefill == "fa3" and (missing := fa3_missing(dim)):
        pytest.skip(missing)
    target = target_at(torch.device("cuda", 0), prefill)
    assert_same(target, flashinfer_library(torch.device("cuda")), name, page_size, group, dim)


@pytest.mark.gpu
@pytest.mark.parametrize("group", ["2", "4"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("scales", SCALES)
@pytest.mark.parametrize("dim", [128, 64], ids=["dim128", "dim64"])
def test_of_8_bits_the_real_kernels_agree_with_plain_torch(
    dim: int, scales: str, name: str, group: str
) -> None:
    capability = torch.cuda.get_device_capability()
    if missing := flashinfer_state("bfloat16", dim, capability, fp8_pages=True).missing:
        pytest.skip(missing)
    target = target_at(torch.device("cuda", 0), "fa2")
    assert_same(
        target, flashinfer_library(torch.device("cuda")), name, 16, group, dim, SCALES[scales]
    )


@pytest.mark.gpu
@pytest.mark.parametrize("group", ["2", "4"])
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("scales", [None, *SCALES])
@pytest.mark.parametrize(
    ("dim", "kinds"),
    [
        pytest.param(256, WINDOWED, id="dim256-windows"),
        pytest.param(128, WINDOWED, id="dim128-windows"),
        pytest.param(64, SINKS, id="dim64-sinks"),
    ],
)
def test_of_other_layers_the_real_kernels_agree_with_plain_torch(
    dim: int, kinds: list[LayerKind], scales: str | None, name: str, group: str
) -> None:
    capability, fp8 = torch.cuda.get_device_capability(), scales is not None
    state = flashinfer_state("bfloat16", dim, capability, fp8_pages=fp8, kinds=kinds)
    if state.missing:
        pytest.skip(state.missing)
    target, library = (
        target_at(torch.device("cuda", 0), "fa2"),
        flashinfer_library(torch.device("cuda")),
    )
    own, windows = SCALES[scales] if scales else None, (None, 18)
    sinks = kinds is SINKS
    assert_same(target, library, name, 16, group, dim, own, windows=windows, sinks=sinks)
