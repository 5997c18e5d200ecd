"""The answer to a question of `sluice explain`: arrangements of two engines, simulated.

The answer has the load up to which each arrangement keeps a promise. Simulated with the engines'
own scheduler and roles: every step of a synthetic trace, at rates of a grid that is searched by
halving. Two engines are the minimum for a split.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import memory_mib_of
from sluice_contract.wire.explain import Answer, Arrangement, ArrangementName, Promise, Question
from sluice_runtime.engine.sizing.plan import running_requests
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings, StepTarget

from sluice_simulator.costs import Cost
from sluice_simulator.explain.models import ExplainedModel, known_model, model_from
from sluice_simulator.explain.roofline import NoCostError, roofline
from sluice_simulator.fleet import FleetReplay, Pool
from sluice_simulator.handover import Network
from sluice_simulator.percentiles import at_shares
from sluice_simulator.record import Record
from sluice_simulator.replay import Options
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

NAMES: Final[tuple[ArrangementName, ...]] = ("whole", "chunked", "mixed", "paced", "apart")
REQUESTS, MOST_REQUESTS = 160, 2_000
"""Minimum and maximum requests of a run: enough for the share of a promise, and quick to
simulate."""
LENGTH: Final = 8
"""Length of a run, in promised TTFTs: a shorter run ends before a queue breaks the promise."""
SPREAD: Final = 0.5
"""Lengths are drawn between (1 - this) and (1 + this) times the average."""
GRID, GRID_STEP, GRID_FIRST = 16, 1.2, 0.12
"""Rates that are tried, as shares of the rate at which the devices would always be busy."""
BYTES_PER_SECOND: Final = 12.5e9
"""Bandwidth between two engines: 100 Gb/s."""


Progress = Callable[[str], None]
"""Receives a line for a person before each part of the simulation."""


def answered(question: Question, progress: Progress = lambda line: None) -> Answer:
    """Simulates every arrangement; the answer may be the reason why none could be.

    Raises:
        ValueError: the model's config.json cannot be used.
    """
    model = _model(question)
    if model is None:
        names = " and ".join(dict.fromkeys(question.model_names))
        text = f"the shape of {names} is not known: give its config.json with --model-config"
        return Answer(cost_source="", kv_pool_tokens=0, missing=text)
    try:
        cost = roofline(model, question.accelerator, question.memory_percent)
    except NoCostError as error:
        return Answer(cost_source="", kv_pool_tokens=0, missing=str(error))
    rows = question.max_running_requests or _chosen_rows(question, model, cost)
    promise = attainable(question, cost)
    question = question.model_copy(update={"max_running_requests": rows, "promise": promise})
    why = impossible(question, cost)
    return Answer(
        cost_source=f"{cost.name}, {cost.source}",
        kv_pool_tokens=cost.kv_pool_tokens,
        max_running_requests=rows,
        promise=None if why else promise,
        arrangements=() if why else _simulated(question, model, cost, progress),
        missing=why,
    )


def _simulated(
    question: Question, model: ExplainedModel, cost: Cost, progress: Progress
) -> tuple[Arrangement, ...]:
    arrangements, rate = list[Arrangement](), busy_rate(question, cost)
    for number, name in enumerate(NAMES, 1):
        progress(f"simulating two engines, each {cost.name}: arrangement {number} of {len(NAMES)}")
        arrangements.append(arrangement(name, question, model, cost, near=rate))
        rate = arrangements[-1].requests_per_second  # often close to the next one's
    return tuple(arrangements)


def _chosen_rows(question: Question, model: ExplainedModel, cost: Cost) -> int:
    """Number of rows that the engine would choose."""
    memory_mib = memory_mib_of(question.accelerator) or 0
    return running_requests(
        cost.kv_pool_tokens,
        question.cuda_graph_max_batch,
        model.shape.vocabulary_size,
        model.shape.context_length_tokens,
        memory_mib << 20,
    ).rows


def _model(question: Question) -> ExplainedModel | None:
    if question.model_config_text is not None:
        model: ExplainedModel | None = model_from(question.model_config_text)
    else:
        model = known_model(question.model_names)
    return replace(model, kv_number_bytes=1) if model and question.has_fp8_pages else model


@dataclass(frozen=True)
class Figures:
    """TTFT and ITL of one run, at the share of the promise."""

    ttft_seconds: float
    itl_seconds: float


def arrangement(
    name: ArrangementName, question: Question, model: ExplainedModel, cost: Cost, near: float = 0.0
) -> Arrangement:
    """The highest rate of the grid at which two engines keep the promise, searched from `near` on,
    in requests a second."""
    busy = 2 * busy_rate(question, cost)
    rates = [busy * GRID_FIRST * GRID_STEP**number for number in range(GRID)]
    play = cache(partial(_played, name, question, model, cost))
    first = min(range(GRID), key=lambda number: abs(rates[number] - near))
    kept = last_kept(GRID, first, lambda number: keeps(play(rates[number]), question))
    played = play(rates[max(kept, 0)])
    return Arrangement(
        name=name,
        requests_per_second=rates[kept] if kept >= 0 else 0.0,
        ttft_seconds=played.ttft_seconds,
        itl_seconds=played.itl_seconds,
    )


def last_kept(count: int, first: int, is_kept: Callable[[int], bool]) -> int:
    """The last of `count` numbers for which `is_kept` holds, which holds up to there; -1: for none.

    Looks at `first`, then further and further away until it has passed the number, then halves the
    interval. It never looks at a number twice.
    """
    low, high, at, stride = -1, count, first, 1
    while high - low > 1:
        if is_kept(at):
            low = at
        else:
            high = at
        if low >= 0 and high < count:
            at = (low + high) // 2
        else:
            at = min(low + stride, count - 1) if low >= 0 else max(high - stride, 0)
            stride *= 2
    return low


def attainable(question: Question, cost: Cost) -> Promise:
    """The promise. Latencies that are only assumed are at least twice those of a request alone, in
    whole milliseconds."""
    promise, (first, step) = question.promise, _alone(question, cost)
    update = dict[str, float]()
    if "ttft" in promise.assumed:
        update["ttft_seconds"] = max(promise.ttft_seconds, math.ceil(2000 * first) / 1000)
    if "itl" in promise.assumed:
        update["itl_seconds"] = max(promise.itl_seconds, math.ceil(2000 * step) / 1000)
    return promise.model_copy(update=update)


def _alone(question: Question, cost: Cost) -> tuple[float, float]:
    """TTFT and ITL of a request that is alone, in seconds."""
    c, prompt = cost.coefficients, question.requests.prompt_tokens
    first = max(c.weights, prompt * c.token) + prompt**2 / 2 * c.product
    return first, c.step + max(c.weights, c.row) + prompt * c.context


def impossible(question: Question, cost: Cost) -> str | None:
    """Explains why the promise cannot be kept even for a request that is alone; None where it
    can."""
    promise, prompt = question.promise, question.requests.prompt_tokens
    first, step = _alone(question, cost)
    tokens, room = prompt + question.requests.answer_tokens, _longest(question, cost)
    if tokens > room:
        return (
            f"requests of {prompt:,} + {question.requests.answer_tokens:,} tokens do not fit: an "
            f"engine takes {room:,}, of the model's context of {cost.context_length:,} and a KV "
            f"pool of {cost.kv_pool_tokens:,}"
        )
    if step > promise.itl_seconds:
        return (
            f"a step that decodes takes {step * 1000:.0f} ms, as all weights are read, so "
            f"{promise.itl_seconds * 1000:g} ms between tokens cannot be kept: a smaller model, a "
            "faster product, or more accelerator.count"
        )
    if first > promise.ttft_seconds:
        return (
            f"a prompt of {prompt:,} tokens takes {first:.2g} s to compute, so a first token in "
            f"{promise.ttft_seconds:g} s cannot be kept: a faster product, or more "
            "accelerator.count"
        )
    return None


def keeps(played: Figures, question: Question) -> bool:
    """Whether a run kept the promise."""
    promise = question.promise
    return played.ttft_seconds <= promise.ttft_seconds and played.itl_seconds <= promise.itl_seconds


def busy_rate(question: Question, cost: Cost) -> float:
    """Requests a second at which one device would be busy all the time with full batches."""
    prompt, answer = question.requests.prompt_tokens, question.requests.answer_tokens
    c, rows = cost.coefficients, _rows(question, cost)
    row = max(c.weights / rows, c.row) + c.step / rows + (prompt + answer / 2) * c.context
    return 1 / (prompt * c.token + prompt**2 / 2 * c.product + answer * row)


def _rows(question: Question, cost: Cost) -> int:
    """Number of requests that run at once, limited by memory too."""
    tokens = question.requests.prompt_tokens + question.requests.answer_tokens
    return max(1, min(question.max_running_requests or 1, cost.kv_pool_tokens // tokens))


def trace_at(question: Question, rate: float, longest: int) -> Trace:
    """Trace with Poisson arrivals; lengths are equal at each rate.

    A prompt that with its answer is over `longest` tokens is cut to fit, for an engine would refuse
    it at any rate.
    """
    draw, now, requests = random.Random(0), 0.0, list[TraceRequest]()  # noqa: S311
    for _ in range(_requests(question, rate)):
        prompt = _drawn(draw, question.requests.prompt_tokens)
        answer = min(_drawn(draw, question.requests.answer_tokens), longest - 1)
        requests.append(TraceRequest(now, min(prompt, longest - answer), answer))
        now += draw.expovariate(1.0) / rate
    return trace_of("explain", requests)


def _longest(question: Question, cost: Cost) -> int:
    """Tokens of the longest request, prompt and answer, that an engine does not refuse."""
    pages = cost.kv_pool_tokens // question.page_size - 1
    return min(cost.context_length, pages * question.page_size)


def _requests(question: Question, rate: float) -> int:
    lasting = math.ceil(rate * LENGTH * question.promise.ttft_seconds)
    return max(REQUESTS, min(lasting, MOST_REQUESTS))


def _drawn(draw: random.Random, mean: int) -> int:
    return max(1, round(mean * draw.uniform(1 - SPREAD, 1 + SPREAD)))


def _played(
    name: ArrangementName, question: Question, model: ExplainedModel, cost: Cost, rate: float
) -> Figures:
    network = Network(BYTES_PER_SECOND, 0.0002, question.page_size * model.kv_bytes)
    trace = trace_at(question, rate, _longest(question, cost))
    replay = FleetReplay(trace, _pools(name, question, cost), network, Options(max_tokens=1))
    return figures(replay.run().record, question.promise.share)


def figures(record: Record, share: float) -> Figures:
    """Figures of a run; a request that failed has no first token in time."""
    first = [
        float("inf")
        if line.first_token_seconds is None or line.error is not None
        else line.first_token_seconds - line.request.arrival_seconds
        for line in record.timelines
    ]
    return Figures(_at(first, [1] * len(first), share), _at(*_gaps(record), share))


def _gaps(record: Record) -> tuple[list[float], list[int]]:
    return record.gaps.values or [0.0], record.gaps.counts or [1]


def _at(values: Sequence[float], counts: Sequence[int], share: float) -> float:
    weighted = sorted(zip(values, counts, strict=True))
    return at_shares(weighted, sum(counts), [share])[0]


def _pools(name: ArrangementName, question: Question, cost: Cost) -> tuple[Pool, ...]:
    settings = _settings(name, question, cost)
    if name != "apart":
        return (Pool(Role.MIXED, 2, cost, settings),)
    return tuple(Pool(role, 1, cost, settings) for role in (Role.PREFILL, Role.DECODE))


def _settings(name: ArrangementName, question: Question, cost: Cost) -> SchedulerSettings:
    page, promise = question.page_size, question.promise
    pool_tokens = cost.kv_pool_tokens // page * page
    chunk = None if name == "whole" or question.chunk_size == -1 else question.chunk_size
    longest = int(question.requests.prompt_tokens * (1 + SPREAD)) + 1
    return SchedulerSettings(
        limits=Limits(cost.context_length, pool_tokens),
        page_size=page,
        chunk_size=chunk,
        max_prefill_tokens=max(question.max_prefill_tokens, longest),
        min_prefill_tokens=page,
        max_running_requests=question.max_running_requests or 1,
        max_queued_requests=MOST_REQUESTS,
        mixed=name in ("mixed", "paced"),
        target=StepTarget(promise.itl_seconds, promise.share) if name == "paced" else None,
        layers=cost.layers,
    )
