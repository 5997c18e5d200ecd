"""Comparisons for `benchmarks.batching`: traces made from a seed, and variants of one engine.

The others are compared with the first variant. Knows no device.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sluice_runtime.scheduler.settings import StepTarget
from sluice_simulator.traces.request import BLOCK_TOKENS, Trace, TraceRequest, trace_of


@dataclass(frozen=True)
class Variant:
    """One side of a comparison: changes of the settings, a static batch, an overlapped loop."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    static: bool = False
    overlap: bool = False


@dataclass(frozen=True)
class Comparison:
    """One workload under several variants; the first variant is the one to compare with."""

    workload: Trace
    settings: dict[str, Any]
    variants: tuple[Variant, ...]


STATIC = Variant("static batches", static=True)
CONTINUOUS = Variant("continuous")


def chunks(*sizes: int) -> tuple[Variant, ...]:
    return (
        Variant("chunk off", {"chunk_size": None}),
        *(Variant(f"chunk {size}", {"chunk_size": size}) for size in sizes),
    )


TARGET = Variant(
    "target 50 ms", {"target": StepTarget(seconds=0.05, share=0.99, start_tokens=1_024)}
)
OVERLAP = (Variant("overlap off"), Variant("overlap on", overlap=True))
CACHE = (
    Variant("prefix cache off", {"prefix_cache": False}),
    Variant("prefix cache on", {"prefix_cache": True}),
)
MIXED = (Variant("mixed off", {"mixed": False}), Variant("mixed on", {"mixed": True}))


def answers(draw: random.Random, mean: int) -> int:
    """A number of tokens distributed as answers are: many short ones, a few long; at most 8 ×
    `mean`."""
    return max(1, min(8 * mean, round(draw.expovariate(1 / mean))))


def chats(count: int, tokens: int, rate: float | None, seed: int = 0) -> Trace:
    """Short prompts and answers of about `tokens` tokens."""
    draw = random.Random(seed)
    now, requests = 0.0, []
    for _ in range(count):
        prompt = draw.randint(tokens // 2, tokens * 3 // 2)
        requests.append(TraceRequest(now, prompt, answers(draw, tokens)))
        now += draw.expovariate(rate) if rate else 0.0
    return trace_of(f"{count} chats of {tokens} tokens", requests)


def offline(count: int, shortest: int, longest: int) -> Trace:
    """Requests that are all there at once, with prompts and answers of lengths from one range."""
    draw = random.Random(0)
    sizes = [
        (draw.randint(shortest, longest), draw.randint(shortest, longest)) for _ in range(count)
    ]
    return trace_of(f"{count} offline", [TraceRequest(0.0, *size) for size in sizes])


def long_prompt(prompt: int, streams: int, context: int, answer: int) -> Trace:
    """One long prompt that arrives while streams decode, in the middle of their answers."""
    others = [TraceRequest(0.0, context, answer) for _ in range(streams)]
    later = 1e-6 * (prompt + streams * context)
    return trace_of(f"{prompt:,} beside {streams}", [*others, TraceRequest(later, prompt, 16)])


def behind_a_long_prompt(prompt: int, chats: int, rate: float) -> Trace:
    """Short prompts that come while a long one is being computed."""
    others = [TraceRequest((index + 1) / rate, 500, 100) for index in range(chats)]
    return trace_of(f"{chats} behind {prompt:,}", [TraceRequest(0.0, prompt, 1), *others])


def same_documents(count: int, documents: int, blocks: int, question: int, rate: float) -> Trace:
    """Questions about a few documents, for which a prefix cache is made."""
    draw = random.Random(0)
    now, requests = 0.0, []
    for index in range(count):
        document = draw.randrange(documents)
        ids = (*range(document * blocks, (document + 1) * blocks), 1_000_000 + index)
        tokens = blocks * BLOCK_TOKENS + question
        requests.append(TraceRequest(now, tokens, answers(draw, question), ids))
        now += draw.expovariate(rate)
    return trace_of(f"{count} about {documents} documents", requests)


def at_size() -> Iterator[Comparison]:
    """Comparisons that are simulated at the size of a GPU."""
    static_or_not = (STATIC, CONTINUOUS)
    yield Comparison(chats(100, 50, None), {"max_running_requests": 16}, static_or_not)
    yield Comparison(chats(1_000, 50, None), {"max_running_requests": 64}, static_or_not)
    yield Comparison(offline(1_000, 100, 1_024), {"max_running_requests": 64}, static_or_not)
    yield Comparison(chats(2_000, 200, 30.0), {}, static_or_not)
    beside = long_prompt(100_000, 20, 2_048, 400)
    yield Comparison(beside, {}, (*chunks(512, 2_048, 8_192), TARGET))
    yield Comparison(offline(1_000, 100, 1_024), {}, (*chunks(512, 2_048, 8_192), TARGET))
    yield Comparison(behind_a_long_prompt(100_000, 20, 8.0), {}, (*chunks(2_048, 8_192), TARGET))
    for workload in (beside, offline(1_000, 100, 1_024), chats(2_000, 200, 30.0)):
        yield Comparison(workload, {"chunk_size": 2_048}, MIXED)
    for workload in (chats(2_000, 200, 30.0), offline(1_000, 100, 1_024)):
        yield Comparison(workload, {}, OVERLAP)
    for workload in (same_documents(400, 20, 16, 200, 8.0), chats(2_000, 200, 30.0)):
        yield Comparison(workload, {}, CACHE)


def on_this_machine() -> Iterator[Comparison]:
    """Comparisons for real, on the virtual clock."""
    yield Comparison(chats(48, 50, None), {"max_running_requests": 8}, (STATIC, CONTINUOUS))
    yield Comparison(long_prompt(2_048, 16, 64, 80), {}, chunks(128, 256, 512))
    yield Comparison(long_prompt(2_048, 16, 64, 80), {"chunk_size": 256}, MIXED)
    yield Comparison(same_documents(24, 3, 2, 32, 8.0), {}, CACHE)
    yield Comparison(offline(64, 16, 256), {}, chunks(128, 512))


def in_the_loop() -> Iterator[Comparison]:
    """Comparisons for real, by the wall clock: only there is planning hidden by a running step."""
    for workload in (offline(64, 16, 256), chats(96, 50, 16.0)):
        yield Comparison(workload, {}, OVERLAP)


def padding(trace: Trace, rows: int) -> float:
    """Share of a static batch's row-steps that are wasted: the row has ended, others of the batch
    have not."""
    outputs = [request.output_tokens for request in trace.requests]
    batches = [outputs[first : first + rows] for first in range(0, len(outputs), rows)]
    return 1 - sum(outputs) / sum(max(batch) * len(batch) for batch in batches)
