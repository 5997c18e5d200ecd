"""Each Triton kernel on this machine's GPU compared with what libraries do for the same task.
Figures are microseconds of the device alone, from graphs of many launches. The limit is the bytes
that have to be moved, at the rate of a large copy. A kernel that does not beat the library is
deleted. Modules of flashinfer that were not built ahead are left out, unless FLASHINFER_DISABLE_JIT
is empty."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from statistics import median
from typing import Any

import numpy as np
import torch
from sluice_kernels import flashinfer_ahead
from sluice_kernels.reference import DecodeTensors
from sluice_kernels.triton import operators
from sluice_runtime.engine.sampling.draw import Ranked, Restrictions, RowsOf, SamplingRows, sample
from sluice_runtime.engine.sampling.memory import rows_at_once
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers.attention import LayerKind, RowNumbers, TokenLayout
from sluice_runtime.layers.attention_choice import Prefill
from sluice_runtime.layers.attention_flashinfer import FlashinferAttention
from sluice_runtime.layers.attention_plan import page_indices, parts_of
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.draw import Draws
from sluice_runtime.layers.flashinfer_library import flashinfer_library, flashinfer_state, target_at
from sluice_runtime.layers.rope import Angles, KernelStep, TorchStep, rotation
from torch import Tensor

from benchmarks.turns import report, scaled

GPU = torch.device("cuda", 0)
PAGE, PAGES, LAYERS, DIM = 16, 1024, 4, 128
MODELS = {"qwen3-0.6b": (16, 8, True), "llama3-8b": (32, 8, False)}
"""Query heads, key heads, and whether each has a norm."""
TOKENS = sorted({1, *map(scaled, (64, 256, 8192))})
LAUNCHES, REPLAYS = 20, 15
PREFIXES, CHUNKS = (0, 32_768), (128, 256, 512, 1024, 2048, 8192)
VOCABULARY, SAMPLED_ROWS = scaled(151_936), (1, 64, 256)
RESTRICTIONS = {"none": (1.0, 0), "top_p": (0.9, 0), "top_k": (1.0, 50)}
"""top_p and top_k."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Figure:
    """One task, and the ways to do it."""

    name: str
    moved_bytes: int
    """Bytes that move if everything is read and written once."""
    ways: dict[str, Call]
    """Calls by name, ours first."""


def figures() -> Iterator[Figure]:
    for model in MODELS:
        for tokens in TOKENS:
            yield stored(model, tokens)
    for rows in SAMPLED_ROWS:
        yield listed(rows)
    for rows, restriction in product(SAMPLED_ROWS, RESTRICTIONS):
        yield sampled(rows, restriction)


def stored(model: str, tokens: int) -> Figure:
    """Norm, rotation and the KV write of one layer."""
    heads, kv_heads, normed = MODELS[model]
    pool = PagePool(KvShape(LAYERS, kv_heads, DIM, torch.bfloat16), PAGES, PAGE, GPU)
    slots = torch.randperm(PAGES * PAGE, device=GPU)[:tokens]
    where = layout(slots // PAGE, slots % PAGE)
    turned = torch.rand(tokens, DIM // 2, device=GPU)
    angles = Angles(turned.cos(), turned.sin())
    weight = torch.rand(heads + kv_heads, DIM, device=GPU).bfloat16()
    norm = HeadNorm(weight, 1e-6) if normed else None
    qkv = torch.randn(tokens, heads + 2 * kv_heads, DIM, device=GPU).bfloat16()
    turn = rotation(angles, torch.bfloat16)
    ways: dict[str, Call] = {
        "ours": partial(KernelStep(pool, where, angles).queries, 1, qkv, norm),
        "torch": partial(TorchStep(pool, where, turn).queries, 1, qkv, norm),
        "flashinfer": partial(Flashinfer(pool, where, angles, norm).call, qkv),
    }
    return Figure(f"rotate_and_store.{model}.{tokens}", 2 * qkv.nbytes + 2 * turned.nbytes, ways)


def layout(pages: Tensor, offsets: Tensor) -> TokenLayout:
    """A layout with pages and offsets alone: the kernels read nothing else of it."""
    none, numbers = pages[:0], RowNumbers(*[np.zeros(0, np.int64)] * 3)
    return TokenLayout(pages, offsets, none, none, none, none, 0, numbers)


class Flashinfer:
    """The task in four calls of flashinfer, with each token as a row of its own."""

    def __init__(
        self, pool: PagePool, where: TokenLayout, angles: Angles, norm: HeadNorm | None
    ) -> None:
        self._norm = norm
        self._cache = pool.data[:, 1, 0], pool.data[:, 1, 1]
        self._kv_heads = pool.shape.kv_heads
        self._turned = torch.cat((angles.cos, angles.sin), -1)
        self._rows = torch.arange(len(where.pages) + 1, device=GPU, dtype=torch.int32)
        self._pages, self._offsets = where.pages.int(), where.offsets.int()

    def call(self, qkv: Tensor) -> None:
        import flashinfer

        kv, rows = self._kv_heads, self._rows
        queries, keys, values = qkv.tensor_split((qkv.shape[1] - 2 * kv, qkv.shape[1] - kv), dim=1)
        if self._norm is not None:
            queries = flashinfer.norm.rmsnorm(queries, self._norm.weight[0], self._norm.eps)
            keys = flashinfer.norm.rmsnorm(keys, self._norm.weight[-1], self._norm.eps)
        queries, keys = queries.flatten(1), keys.flatten(1)
        flashinfer.apply_rope_with_cos_sin_cache_inplace(
            rows[:-1], queries, keys, DIM, self._turned, is_neox=True
        )
        flashinfer.append_paged_kv_cache(
            keys.view(values.shape), values, rows[:-1], self._offsets, self._cache, self._pages,
            rows, self._offsets + 1,
        )  # fmt: skip


def prompts() -> Iterator[Figure]:
    """Figures of one layer's attention of a chunk after a prefix, Llama-3-8B's shape. They show
    whether the rule of `attention_plan.prefill_kernels` holds: its kernels, FA2 and FA3."""
    state = flashinfer_state("bfloat16", DIM, torch.cuda.get_device_capability(GPU))
    engines: Prefill = "fa2" if state.fa3_missing else "auto"
    heads, kv_heads, _ = MODELS["llama3-8b"]
    for prefix, chunk in product(map(scaled, PREFIXES), map(scaled, CHUNKS)):
        ways: dict[str, Call] = {
            "ours": Prompt(engines, prefix, chunk),
            "fa2": Prompt("fa2", prefix, chunk),
            "fa3": Prompt("fa3", prefix, chunk),
        }
        moved = 2 * DIM * (2 * kv_heads * (prefix + chunk) + 2 * heads * chunk)
        yield Figure(f"prompt.{prefix}+{chunk}", moved, ways)


class Prompt:
    """Attention of a chunk. Plans in the first call, so that a missing kernel is an error of one
    way only."""

    def __init__(self, prefill: Prefill, prefix: int, chunk: int) -> None:
        self._prefill = prefill
        self._heads, kv_heads, _ = MODELS["llama3-8b"]
        context, rows = prefix + chunk, np.zeros(1, np.int64)
        begins, contexts = np.array([0, chunk]), np.array([context])
        pages = -(-context // PAGE)
        self._pool = PagePool(KvShape(1, kv_heads, DIM, torch.bfloat16), pages, PAGE, GPU)
        table = torch.randperm(pages, device=GPU)[None]
        row, start, length = (torch.from_numpy(x).to(GPU) for x in (rows, begins, contexts))
        none, numbers = row[:0], RowNumbers(rows, begins, contexts)
        self._layout = TokenLayout(none, none, table, row, start, length, 1, numbers)
        self._queries = torch.randn(chunk, self._heads, DIM, device=GPU).bfloat16()
        self._out = torch.empty_like(self._queries)
        self._run: Call | None = None

    def __call__(self) -> None:
        if self._run is None:
            attention = FlashinferAttention(target_at(GPU, self._prefill), flashinfer_library(GPU))
            ((_, run),) = attention.planned(self._pool, self._layout, self._heads, LayerKind())
            cache = attention.cache(self._pool, 0, self._heads, None)
            self._run = partial(run, self._queries, cache.views, out=self._out)
        self._run()


def listed(rows: int) -> Figure:
    """Inputs of a decode step of rows of 300 to 811 tokens. In torch: the list of pages alone."""
    contexts = np.arange(rows) * 97 % 512 + 300
    numbers = RowNumbers(np.arange(rows), np.arange(rows + 1), contexts)
    (part,) = parts_of(numbers, 0, PAGE, 1, "fa2")
    row, begins = torch.arange(rows, device=GPU), torch.arange(rows + 1, device=GPU)
    table = torch.arange(rows * 64, device=GPU).view(rows, 64)
    lengths = torch.tensor(contexts.tolist(), device=GPU)
    where = TokenLayout(row, row, table, row, begins, lengths, 0, numbers)
    indptr = torch.tensor(part.plan.kv_indptr.tolist(), dtype=torch.int32, device=GPU)
    indices = torch.zeros(part.plan.pages, dtype=torch.int32, device=GPU)
    read = row.int(), lengths.int(), indptr, table, begins
    written = [torch.zeros_like(row) for _ in range(4)]
    arguments: tuple[Any, ...] = (*read, *written, indices, PAGE, PAGES)
    step = DecodeTensors(*arguments)
    ways: dict[str, Call] = {
        "ours": partial(operators.decode_inputs, step),
        "torch": partial(page_indices, where, part, PAGE),
    }
    return Figure(f"decode_inputs.{rows}", 12 * part.plan.pages, ways)


def sampled(rows: int, restriction: str) -> Figure:
    """Figure of drawing one token a row at temperature 0.8, from logits that a 16-bit model could
    have."""
    torch.manual_seed(rows)
    logits = (torch.randn(rows, VOCABULARY, device=GPU) * 3).bfloat16().float()
    top_p, top_k = RESTRICTIONS[restriction]
    reals = torch.tensor((0.8, top_p, 0.0), dtype=torch.float64, device=GPU)[:, None]
    reals, numbers = reals.repeat(1, rows), torch.arange(rows, dtype=torch.int32, device=GPU)
    wholes = torch.stack((torch.full_like(numbers, top_k), numbers)).long()  # top_k, seeds
    uniforms = torch.rand(rows, device=GPU).double()
    parameters = torch.stack((reals[0], uniforms, reals[1], reals[2], wholes[0].double()))
    at_once = rows_at_once(VOCABULARY)
    parts = [sampling_rows(part, restriction) for part in parameters.split(at_once, dim=1)]
    blocks = list(zip(logits.clone().split(at_once), parts, strict=True))
    ways: dict[str, Call] = {
        "ours": partial(operators.sample_rows, logits, numbers, numbers, reals, wholes),
        "torch": lambda: torch.cat([sample(*block) for block in blocks]),
        "flashinfer": partial(flashinfer_sampling, logits, reals[0].float(), top_p, top_k),
    }
    return Figure(f"sample.{VOCABULARY}.{rows}.{restriction}", logits.nbytes, ways)


def sampling_rows(parameters: Tensor, restriction: str) -> SamplingRows:
    """The sampling rows of engines that do not have the kernel."""
    temperature, uniforms, top_p, _, top_k = parameters
    draws, width = Draws(temperature.float(), uniforms, None), RESTRICTIONS[restriction][1]
    every = RowsOf(None, draws.temperatures, top_p.float())
    restrictions = {
        "none": None,
        "top_p": Restrictions(None, every, None),
        "top_k": Restrictions(Ranked(every, top_k.long(), width), None, None),
    }
    return SamplingRows(draws, restrictions[restriction])


def flashinfer_sampling(logits: Tensor, temperature: Tensor, top_p: float, top_k: int) -> Tensor:
    """Tokens drawn by flashinfer, with random numbers of its own."""
    from flashinfer import sampling

    drawn: Tensor
    probabilities = sampling.softmax(logits, temperature)
    if top_k > 0:
        drawn = sampling.top_k_sampling_from_probs(probabilities, top_k)
    elif top_p < 1:
        drawn = sampling.top_p_sampling_from_probs(probabilities, top_p)
    else:
        drawn = sampling.sampling_from_probs(probabilities)
    return drawn


def seconds(call: Call) -> float:
    """Seconds of one call: the median of replays of a graph of LAUNCHES calls."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            call()
    return median(_replayed(graph) for _ in range(REPLAYS)) / LAUNCHES


def _replayed(graph: Any) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def copy_rate() -> float:
    """Bytes/s of a large copy, counting reads and writes."""
    source = torch.randn(scaled(1 << 28), device=GPU)
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda: target.copy_(source))


def measure(figures: Iterable[Figure], rate: float, group: str) -> None:
    """Reports each figure, whose name begins with `group`; `rate`: bytes/s of a large copy."""
    device = torch.cuda.get_device_name(GPU)
    for figure in figures:
        taken: dict[str, float | str] = {}
        for way, call in figure.ways.items():
            try:
                taken[way] = round(1e6 * seconds(call), 2)
            except Exception as error:
                # A library that fails here does not stop the figures of others.
                taken[way] = f"{type(error).__name__}: {str(error)[:200]}"
        ours = taken.pop("ours")
        assert isinstance(ours, float), ours
        limit = round(1e6 * figure.moved_bytes / rate, 2)
        name, unit = f"{group}.{figure.name}", "microseconds"
        report(name, ours, unit=unit, beside=taken, limit_of_memory=limit, device=device)


def main() -> int:
    os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
    if not torch.cuda.is_available():
        print("no CUDA device")
        return 1
    device, rate = torch.cuda.get_device_name(GPU), copy_rate()
    report("kernels.copy", rate / 1e9, unit="GB/s", device=device)
    with suppress(ImportError):  # each of its figures says that it is missing
        flashinfer_ahead.use_built()
    measure(chain(figures(), prompts()), rate, "kernels")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
