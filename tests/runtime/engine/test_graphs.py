"""A decode step by a graph computes what it computes without, and touches no row's pages.

On a CPU graphs are recordings (`recorded_graph`) over flashinfer's own wrappers, whose kernels are
in torch (`flashinfer_kernels`); marked `gpu` the same cases run over real graphs and kernels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.config.accelerators import TIERS
from sluice_runtime.engine.device import Device, HostDevice, StreamDevice
from sluice_runtime.engine.graphs import (
    Capture,
    CudaCapture,
    DecodeGraphs,
    GraphParts,
    RowColumns,
    _HostRows,
    batch_for,
    first_batches,
    graph_batches,
    numbers_of,
)
from sluice_runtime.kv.pool import CPU, KvScales, KvShape, PagePool
from sluice_runtime.layers.attention import GraphAttention, GraphRows, RowNumbers, TokenLayout
from sluice_runtime.layers.attention_plan import plan_rows
from sluice_runtime.layers.backend import BACKENDS
from sluice_runtime.layers.flashinfer_graphs import GraphWrappers
from sluice_runtime.layers.flashinfer_library import flashinfer_state
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.families.registry import family_of, spec_from
from sluice_runtime.model.files import resolve
from sluice_runtime.model.layer_tensors import Placement, Reader
from sluice_runtime.model.load import build_decoder
from sluice_runtime.model.weights import RandomWeights
from torch import Tensor

from tests.examples import examples
from tests.runtime.engine.late_device import LateDevice
from tests.runtime.layers.flashinfer_backend import flashinfer_backend
from tests.runtime.layers.flashinfer_kernels import flashinfer_on_cpu
from tests.runtime.recorded_graph import capture

LARGEST, PAGE_SIZE, PAGES = 40, 4, 400
TABLE_ROWS = LARGEST + 3
SCALES = (0.01, 0.02)
"""Scales of keys stored in 8 bits, by key head."""
E4M3_STEP = 1 / 8
"""Most that two neighbouring numbers of e4m3 are apart, as a share."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """These tensors are so small that threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Site:
    """A model on flashinfer's wrappers, and what captures its steps."""

    model: Decoder
    place: torch.device
    begin_capture: Callable[[], Capture]

    @property
    def tolerance(self) -> float:
        size = self.model.spec.embedding_scale or 1
        return size * (1e-5 if self.model.dtype is torch.float32 else 3e-2)

    @property
    def close_pages(self) -> dict[str, Any]:
        """Tolerances of stored keys and values. Those of 8 bits are in units of a scale, and a
        value that lies between two of them may be rounded to either."""
        atol, rtol = self.tolerance, self.tolerance
        if self.model.kv_scales is not None and self.model.dtype is torch.bfloat16:
            atol, rtol = atol / min(SCALES), E4M3_STEP
        return {"atol": atol, "rtol": rtol, "equal_nan": True}

    def pool(self) -> PagePool:
        """Full of NaN, except for the padding page: what nobody wrote is not read."""
        spec = self.model.spec
        shape = KvShape(
            spec.layers, spec.kv_heads, spec.head_dim, self.model.dtype, self.model.kv_scales
        )
        pool = PagePool(shape, PAGES, PAGE_SIZE, self.place)
        pool.poison(range(PAGES))
        return pool

    def wrappers(self, pool: PagePool) -> GraphWrappers:
        assert self.model.backend.graph_wrappers is not None
        return self.model.backend.graph_wrappers(pool, self.model.spec.heads)

    def graphs(self, pool: PagePool, largest: int = LARGEST) -> DecodeGraphs:
        """Its sampling keeps no tokens: see `test_flashinfer_engine`."""
        batches = graph_batches(largest)
        graphs = self.uncaptured(pool, batches)
        graphs.capture(self.parts(self.wrappers(pool).wrapper), self.begin_capture(), batches)
        return graphs

    def uncaptured(self, pool: PagePool, batches: tuple[int, ...]) -> DecodeGraphs:
        last_tokens = torch.arange(TABLE_ROWS + 1, device=self.place)
        sizes = self.model.spec.hidden_size, batches
        return DecodeGraphs(pool, *sizes, self.device, last_tokens)

    def parts(self, attention: Callable[[GraphRows], GraphAttention]) -> GraphParts:
        model = self.model
        assert model.backend.decode_inputs is not None

        def sample(hidden: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
            return model.head_logits(hidden).argmax(-1)

        return GraphParts(model.hidden, attention, model.backend.decode_inputs, sample)

    @property
    def device(self) -> Device:
        if self.place.type == "cpu":
            return LateDevice()
        pinned: dict[str, Any] = {"dtype": torch.uint8, "pin_memory": True}
        return StreamDevice(self.place, lambda size: torch.empty(size, **pinned), torch.cuda.Event)


QWEN, GEMMA, GPT_OSS = (
    resolve(f"dummy://{name}").config for name in ("qwen3-tiny", "gemma3-tiny", "gpt-oss-tiny")
)
MODELS: dict[str, dict[str, Any]] = {
    "group4": {**QWEN, "num_attention_heads": 8, "num_key_value_heads": 2},
    "group2": {**QWEN},
    "windows": {
        **GEMMA,
        "sliding_window": 7,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "sinks": {**GPT_OSS, "sliding_window": 7},
}
"""By query heads of a key head, of which four or more decode on tensor cores. Windows are shorter
than most contexts."""
SITES = [
    *(pytest.param(("cuda", dim, heads), id=f"cuda-dim{dim}-{heads}", marks=pytest.mark.gpu)
      for dim in (128, 64) for heads in ("group4", "group2")),
    pytest.param(("cuda-fp8", 128, "group4"), id="cuda-fp8", marks=pytest.mark.gpu),
    *(pytest.param(("cuda", dim, "windows"), id=f"cuda-dim{dim}-windows", marks=pytest.mark.gpu)
      for dim in (128, 256)),
    pytest.param(("cuda", 64, "sinks"), id="cuda-dim64-sinks", marks=pytest.mark.gpu),
    pytest.param(("cpu", 16, "group2"), id="cpu"),
    pytest.param(("cpu", 16, "windows"), id="cpu-windows"),
    pytest.param(("cpu", 16, "sinks"), id="cpu-sinks", marks=pytest.mark.full),
    pytest.param(("cpu-fp8", 16, "sinks"), id="cpu-fp8-sinks"),
    pytest.param(("cpu-fp8", 16, "group2"), id="cpu-fp8", marks=pytest.mark.full),
]  # fmt: skip


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Site:
    """On a GPU with flashinfer's kernels, for heads of 64, 128 and 256, and with real graphs."""
    kind, head_dim, heads = request.param
    kind, _, fp8 = kind.partition("-")
    place, dtype = torch.device(kind), torch.float32
    spec = spec_from({**MODELS[heads], "head_dim": head_dim})
    kinds = family_of(spec).layer_kinds(spec)
    if kind == "cpu":
        backend = flashinfer_backend(flashinfer_on_cpu(monkeypatch), kinds)
    else:
        capability = torch.cuda.get_device_capability()
        state = flashinfer_state(
            "bfloat16",
            head_dim,
            capability,
            fp8_pages=bool(fp8),
            kinds=kinds,
            activation=spec.activation,
        )
        if state.missing:
            pytest.skip(state.missing)
        backend, dtype = BACKENDS["flashinfer"](place, "fa2", kinds), torch.bfloat16
    reader = Reader(spec, RandomWeights(0, place), dtype, Placement(place))
    model = build_decoder(reader, backend)
    if fp8:
        by_head = torch.tensor(SCALES).expand(spec.layers, -1)
        model = replace(model, kv_scales=KvScales(by_head, 2 * by_head))
    return Site(model, place, CudaCapture if place.type == "cuda" else lambda: capture)


def decode_step(
    contexts: Sequence[int],
    draw: random.Random,
    place: torch.device = CPU,
    extends: Sequence[int] = (),
) -> TokenLayout:
    """Rows in any order of the table, whose pages are anywhere. `extends`: tokens of the first
    rows; the others decode."""
    rows = torch.tensor(draw.sample(range(TABLE_ROWS), len(contexts)))
    table = torch.full((TABLE_ROWS, max(contexts) // PAGE_SIZE + 1), PAGES)
    free = draw.sample(range(PAGES), PAGES)
    for row, context in zip(rows.tolist(), contexts, strict=True):
        count = -(-context // PAGE_SIZE)
        table[row, :count] = torch.tensor([free.pop() for _ in range(count)])
    lengths = torch.tensor(contexts)
    counts = torch.tensor([*extends, *[1] * (len(contexts) - len(extends))])
    begins = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    numbers = RowNumbers(rows.numpy(), begins.numpy(), lengths.numpy())
    at = torch.cat([torch.arange(end - n, end) for n, end in zip(counts, lengths, strict=True)])
    pages = table[rows.repeat_interleave(counts), at // PAGE_SIZE]
    host = TokenLayout(pages, at % PAGE_SIZE, table, rows, begins, lengths, len(extends), numbers)
    tensors: dict[str, Any] = {
        name: value.to(place) for name, value in vars(host).items() if isinstance(value, Tensor)
    }
    return replace(host, **tensors)


def remember(pool: PagePool, layout: TokenLayout, generator: torch.Generator) -> None:
    """Keys and values of all tokens before those of the step."""
    shape, place, numbers = pool.shape, pool.data.device, layout.numbers
    before = numbers.contexts - np.diff(numbers.begins)
    for row, context in zip(numbers.rows, before, strict=True):
        at = torch.arange(int(context), device=place)
        pages, offsets = layout.page_table[int(row)][at // PAGE_SIZE], at % PAGE_SIZE
        size = (2, len(at), shape.layers, shape.kv_heads, shape.head_dim)
        keys, values = torch.randn(size, generator=generator).to(place, shape.dtype)
        for layer in range(shape.layers):
            pool.write(layer, pages, offsets, keys[:, layer], values[:, layer])


@torch.inference_mode()
def both(
    site: Site, graphs: DecodeGraphs, pool: PagePool, layout: TokenLayout
) -> tuple[Tensor | None, Tensor, PagePool]:
    """By a graph, without, and the pool of the step without."""
    apart = site.pool()
    apart.data.copy_(pool.data)
    token_ids = torch.arange(len(layout.pages), device=site.place)
    token_ids %= site.model.spec.vocabulary_size
    positions = torch.from_numpy(layout.numbers.of_single_tokens().contexts - 1).to(site.place)
    wanted = site.model.hidden(token_ids, positions, apart, layout)
    return graphs.hidden(token_ids, layout), wanted, apart


def test_a_padded_step_computes_what_it_computes_without_a_graph(site: Site) -> None:
    """In any order of sizes: what a larger step left does no harm. On a CPU of some sizes."""
    draw, generator = random.Random(1), torch.Generator().manual_seed(1)
    pool = site.pool()
    graphs = site.graphs(pool)
    close: dict[str, Any] = {"atol": site.tolerance, "rtol": site.tolerance}
    replayed = 0
    sizes = draw.sample(range(1, LARGEST + 1), LARGEST)
    for count in sizes if site.place.type == "cuda" else sizes[:4]:
        pool.poison(range(PAGES))
        layout = decode_step([draw.randint(1, 20) for _ in range(count)], draw, site.place)
        remember(pool, layout, generator)
        seen, wanted, apart = both(site, graphs, pool, layout)
        assert seen is not None
        assert graphs.replays == replayed + 1
        replayed = graphs.replays
        torch.testing.assert_close(seen, wanted, **close)
        stored = (each.data[:PAGES].float() for each in (pool, apart))
        torch.testing.assert_close(*stored, **close, equal_nan=True)


def test_a_graph_captured_between_steps_disturbs_none(site: Site) -> None:
    draw, generator = random.Random(4), torch.Generator().manual_seed(4)
    pool = site.pool()
    batches = graph_batches(LARGEST)
    graphs = site.uncaptured(pool, batches)
    parts = site.parts(site.wrappers(pool).wrapper)
    graphs.capture(parts, site.begin_capture(), first_batches(batches))
    assert graphs.missing == (12, 24)
    layout = decode_step([draw.randint(1, 20) for _ in range(9)], draw, site.place)
    remember(pool, layout, generator)
    close: dict[str, Any] = {"atol": site.tolerance, "rtol": site.tolerance}
    for _ in range(2):
        seen, wanted, _ = both(site, graphs, pool, layout)
        torch.testing.assert_close(seen, wanted, **close)
        before = pool.data[:PAGES].clone()
        graphs.capture_batch(12)
        stored = (pages.float() for pages in (pool.data[:PAGES], before))
        torch.testing.assert_close(*stored, rtol=0, atol=0, equal_nan=True)
    step = graphs.staged(layout.numbers)
    assert step is not None
    assert step.batch == 12


def test_rows_of_several_tokens_are_computed_by_the_same_graphs(site: Site) -> None:
    """Prompts and verified rows, alone and beside rows that decode."""
    draw, generator = random.Random(3), torch.Generator().manual_seed(3)
    pool = site.pool()
    graphs = site.graphs(pool)
    close: dict[str, Any] = {"atol": site.tolerance, "rtol": site.tolerance}
    for replays, extends in enumerate([(1,), (5, 3), (17, 1, 9)], 1):
        pool.poison(range(PAGES))
        contexts = [count + draw.randint(0, 12) for count in extends]
        contexts += [draw.randint(1, 20) for _ in range(4 * (replays - 1))]
        layout = decode_step(contexts, draw, site.place, extends)
        remember(pool, layout, generator)
        seen, wanted, apart = both(site, graphs, pool, layout)
        assert graphs.replays == replays
        torch.testing.assert_close(seen, wanted, **close)
        stored = (each.data[:PAGES].float() for each in (pool, apart))
        torch.testing.assert_close(*stored, **site.close_pages)


def test_long_contexts_are_not_read_again_for_each_token(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = site.pool()
    token = pool.shape.bytes_per_token
    graphs = site.graphs(pool, largest=8)
    draw, generator = random.Random(4), torch.Generator().manual_seed(4)
    layout = decode_step([20, 30], draw, site.place, extends=[4])  # 17, 18 and 19 tokens more
    remember(pool, layout, generator)
    monkeypatch.setattr("sluice_runtime.engine.graphs.AGAIN_BYTES", 54 * token - 1)
    assert both(site, graphs, pool, layout)[0] is None
    monkeypatch.setattr("sluice_runtime.engine.graphs.AGAIN_BYTES", 54 * token)
    assert both(site, graphs, pool, layout)[0] is not None


@torch.inference_mode()
def test_a_step_that_no_graph_serves_runs_without(site: Site) -> None:
    draw, pool = random.Random(2), site.pool()
    graphs = site.graphs(pool, largest=4)
    fits = decode_step([1] * 4, draw, site.place)
    assert graphs.hidden(fits.offsets, fits) is not None
    larger = decode_step([1] * 5, draw, site.place)
    assert graphs.hidden(larger.offsets, larger) is None
    # Rows that share pages may have more of them together than graphs have room for.
    shared = replace(
        fits, numbers=replace(fits.numbers, contexts=fits.numbers.contexts + 5 * PAGES)
    )
    assert graphs.hidden(fits.offsets, shared) is None


def test_graphs_are_captured_largest_first(site: Site) -> None:
    pool, order, batches = site.pool(), [], graph_batches(16)
    graphs, wrappers = site.uncaptured(pool, batches), site.wrappers(pool)

    def attention_of(rows: GraphRows) -> GraphAttention:
        order.append(len(rows.last_page_len))
        return wrappers.wrapper(rows)

    graphs.capture(site.parts(attention_of), site.begin_capture(), batches)
    assert order == [16, 12, 8, 4, 2, 1]


@torch.inference_mode()
def test_rows_of_padding_list_the_padding_page_alone(site: Site) -> None:
    """Also where a larger step listed a row's pages before."""
    draw, pool = random.Random(3), site.pool()
    graphs = site.graphs(pool, largest=4)
    whole = decode_step([9, 9, 9, 9], draw, site.place)
    assert graphs.hidden(whole.offsets, whole) is not None
    few = decode_step([1, 9, 5], draw, site.place)
    assert graphs.hidden(few.offsets, few) is not None
    listed = graphs._inputs.indices[:7].tolist()
    assert listed[:1] == few.page_table[few.rows[0], :1].tolist()
    assert listed[1:4] == few.page_table[few.rows[1], :3].tolist()
    assert listed[4:6] == few.page_table[few.rows[2], :2].tolist()
    assert listed[6:] == [pool.padding_page]


@torch.inference_mode()
def test_a_decode_step_begins_with_last_tokens_and_ends_with_next_ones(site: Site) -> None:
    """Padded or not; a row's number is its last token here."""
    draw, generator = random.Random(6), torch.Generator().manual_seed(6)
    pool = site.pool()
    graphs = site.graphs(pool, largest=8)
    for count in (8, 5, 8, 1):
        pool.poison(range(PAGES))
        layout = decode_step([draw.randint(1, 20) for _ in range(count)], draw, site.place)
        remember(pool, layout, generator)
        hidden = graphs.hidden(layout.rows, layout)
        assert hidden is not None
        wanted = site.model.head_logits(hidden).argmax(-1)
        staged = graphs.staged(layout.numbers)
        assert staged is not None
        assert torch.equal(graphs.decode(staged, layout.page_table), wanted)


@given(st.lists(st.integers(1, 90), max_size=6), st.integers(0, 5), st.sampled_from([1, 4, 16]))
@examples(30)
def test_rows_of_padding_have_one_token_on_one_page_of_their_own(
    contexts: list[int], more: int, page_size: int
) -> None:
    rows, batch = len(contexts), len(contexts) + more
    (buffer,) = HostDevice().inbox(numbers_of(12)).buffers
    columns = RowColumns.views(buffer.array, 12)
    buffer.array[:] = 99  # what another step left
    columns.indptr[0] = 0
    numbers = RowNumbers(np.arange(rows), np.arange(rows + 1), np.array(contexts, np.int64))
    pages = _HostRows(buffer, 12).fill(numbers, batch, 50, page_size)
    wanted = plan_rows(np.arange(batch + 1), np.array([*contexts, *[1] * more]), page_size)
    assert columns.rows[:batch].tolist() == [*range(rows), *[50] * more]
    assert columns.indptr[: batch + 1].tolist() == wanted.kv_indptr.tolist()
    assert columns.last_page_len[:batch].tolist() == wanted.last_page_len.tolist()
    assert pages == wanted.kv_indptr[-1]


@pytest.mark.parametrize("largest", [1, 127, 128, 256, 600])
def test_columns_are_apart_and_aligned(largest: int) -> None:
    numbers = np.zeros(numbers_of(largest), np.int32)
    for column in vars(RowColumns.views(numbers, largest)).values():
        assert (column.ctypes.data - numbers.ctypes.data) % 512 == 0
        column += 1
    assert numbers.max() == 1
    assert numbers.sum() == 4 * largest + 1


def test_small_batches_are_close_together_and_large_ones_apart() -> None:
    usual = graph_batches(512)
    assert usual[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert usual[-17:] == (*(256, 272), *range(288, 497, 16), 512)
    assert len(usual) == 52
    assert graph_batches(600)[-4:] == (512, 544, 576, 600)


@pytest.mark.parametrize(
    "largest", [1, 3, *(tier.sizes.cuda_graph_max_batch for tier in TIERS), 4096]
)
def test_every_batch_up_to_the_largest_has_the_next_graph(largest: int) -> None:
    batches = graph_batches(largest)
    assert list(batches) == sorted(set(batches))
    for rows in range(1, largest + 1):
        assert batch_for(rows, batches) == min(size for size in batches if size >= rows)
    assert batch_for(largest + 1, batches) is None
    assert batch_for(0, batches) is None


def test_none_are_captured_where_none_are_wanted() -> None:
    assert graph_batches(0) == ()
    assert batch_for(1, ()) is None
