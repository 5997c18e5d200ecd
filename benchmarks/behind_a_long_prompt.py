"""Short prompts that come while a long one is computed: how long they wait, chunked and not.

On this machine, 16 streams decode and a prompt of 32 chunks comes. Others of 64 tokens follow over
the first half of the time that it takes unchunked. Also measured: the memory that a step needs
beyond what is always resident. At the size of a GPU, simulated: 20 others of 500 tokens behind a
prompt of 100,000, in its first second or all the while.

`--only split`: the gaps of the 16 streams during a prompt whose first 32,768 tokens are cached. The
promise is between the time of a step that only decodes and of one with a page of the prompt.
Compared are chunks of a page, and chunks in groups of layers. Also simulated, to 100,000 tokens.
Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sluice_runtime.engine.build import Engine
from sluice_runtime.scheduler.settings import StepTarget
from sluice_runtime.wire.messages import Generate
from sluice_simulator.costs import cost_named
from sluice_simulator.device import SimulatedDevice
from sluice_simulator.replay import Options, Replay
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

from benchmarks.batching import GPU, settings_on
from benchmarks.cpu_serving import as_an_engine_process, write_model
from benchmarks.interference import (
    GREEDY,
    LARGEST_CHUNK,
    Clock,
    Observed,
    engine_for,
    observe_prompt,
    percentile_99,
    report,
    start_streams,
    step,
)

CHUNK = 256
CHUNKS = 32
OTHERS = 20
OTHER_TOKENS = 64
ANSWER = 4
CACHED_TOKENS = 32_768
NEW_TOKENS = 128
LEARNING_TURNS = 3
"""Turns in which an engine learns how long its steps take."""


@dataclass(frozen=True)
class Waits:
    """Seconds from each arrival to its first token, and the peak of memory in MiB."""

    others: list[float]
    prompt: float
    peak: float = 0.0
    """MiB of memory at the worst moment, beyond what is resident between two steps."""


def observe(engine: Engine, turn: int, arrivals: list[float]) -> Waits:
    """Waits of the long prompt and of others, which arrive at `arrivals`, in seconds after it."""
    streams = start_streams(engine, turn, 400, time.perf_counter)
    first: dict[str, float] = {}
    names = {f"{turn}-other-{index}": at for index, at in enumerate(arrivals)}
    long, waiting = f"{turn}-long", dict(names)
    tokens = CHUNK * CHUNKS
    engine.scheduler.add(Generate(long, [i % 1000 for i in range(tokens)], ANSWER, GREEDY))
    resident, began = _reset_peak(), time.perf_counter()
    while len(first) < 1 + len(names):
        now = time.perf_counter() - began
        for name in [name for name, at in waiting.items() if at <= now]:
            prompt = [turn * 50 + index for index in range(OTHER_TOKENS)]
            engine.scheduler.add(Generate(name, prompt, ANSWER, GREEDY))
            del waiting[name]
        _, answered = step(engine, time.perf_counter)
        now = time.perf_counter() - began
        for name in answered - first.keys() - set(streams):
            first[name] = now
    peak = _memory("VmHWM") - resident
    for name in (*streams, *first):
        engine.scheduler.abort(name)
    while engine.scheduler.status().running_requests:
        step(engine, time.perf_counter)
    engine.scheduler.next_batch(time.perf_counter())
    return Waits([first[name] - at for name, at in names.items()], first[long], peak)


def measured(turns: int, threads: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, context=2 * CHUNK * CHUNKS)
        pool = {"kv_pool_tokens": 2 * CHUNK * CHUNKS}
        engines = {
            "unchunked": engine_for(folder, -1, threads, **pool),
            "chunked": engine_for(folder, CHUNK, threads, **pool),
        }
        alone = {kind: observe(engine, 0, []).prompt for kind, engine in engines.items()}
        arrivals = [alone["unchunked"] / 2 * (n + 1) / OTHERS for n in range(OTHERS)]
        runs = {
            kind: [observe(engine, 1 + turn, arrivals) for turn in range(turns)]
            for kind, engine in engines.items()
        }
    compare("cpu", {kind: _together(seen) for kind, seen in runs.items()})
    for kind, seen in runs.items():
        peak = statistics.median(run.peak for run in seen)
        report(f"behind_a_long_prompt.cpu.{kind}.peak_memory", peak, "MiB")


def split(turns: int, threads: int, clock: Clock) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, context=2 * CACHED_TOKENS)

        def engine_with(milliseconds: int) -> Engine:
            slo = {"itl_milliseconds": milliseconds, "percentile": 95}
            pool = CACHED_TOKENS + 16_384
            more = {"slo": slo, "kv_pool_tokens": pool, "prefix_cache": True}
            return engine_for(folder, LARGEST_CHUNK, threads, **more)

        engine = engine_with(1)  # the promise is used up: every chunk in a mixed step is one page
        decode = _decode_step(engine, clock)
        pages = _behind_cached(engine, turns, clock)
        page = statistics.median(seconds for run in pages for seconds in run.steps)
        promise = round(1000 * (decode + page) / 2)
        report("behind_a_long_prompt.split.decode_step", 1000 * decode, "ms")
        report("behind_a_long_prompt.split.step_with_a_page", 1000 * page, "ms")
        gaps_of("smallest_chunk", pages, promise)
        del engine
        gaps_of("layer_groups", _behind_cached(engine_with(promise), turns, clock), promise)


def simulated_split() -> None:
    """Reports the split simulated at the size of a GPU: pages of 64 tokens, a promise of 10 ms."""
    cost, promise = cost_named(GPU), 0.010
    streams = [TraceRequest(index * 0.01, 2_000, 3_000) for index in range(OTHERS)]
    trace = trace_of("behind", [*streams, TraceRequest(3.0, 100_000, 20)])
    base = replace(
        settings_on(cost, 8_192),
        page_size=64,
        min_prefill_tokens=64,
        target=StepTarget(promise, 0.95, 1_024),
    )
    for kind, layers in (("smallest_chunk", 1), ("layer_groups", cost.layers)):
        device = SimulatedDevice(trace.requests, cost)
        record = Replay(trace, replace(base, layers=layers), device, Options()).run().record
        name = f"behind_a_long_prompt.split.simulated.{kind}"
        gaps = list(zip(record.gaps.values, record.gaps.counts, strict=True))
        kept = sum(count for gap, count in gaps if gap <= promise)
        report(f"{name}.kept", kept / sum(count for _, count in gaps), "of the gaps")
        first = record.timelines[-1].first_token_seconds or 0.0
        report(f"{name}.first_token_of_the_prompt", first - 3.0, "s")


def _decode_step(engine: Engine, clock: Clock) -> float:
    names = start_streams(engine, -1, 200, clock)
    seconds = []
    for _ in range(50):
        began = clock()
        step(engine, clock)
        seconds.append(clock() - began)
    for name in names:
        engine.scheduler.abort(name)
    while engine.scheduler.status().running_requests:
        step(engine, clock)
    engine.scheduler.next_batch(clock())
    return statistics.median(seconds)


def _behind_cached(engine: Engine, turns: int, clock: Clock) -> list[Observed]:
    """Gaps behind the cached prompt, without the turns in which the engine learns."""
    cached = [token % 1000 for token in range(CACHED_TOKENS)]
    engine.scheduler.add(Generate("cached", cached, 1, GREEDY))
    while "cached" not in step(engine, clock)[1]:
        pass
    seen = []
    for turn in range(LEARNING_TURNS + turns):
        new = [turn * 50 + token % 40 for token in range(NEW_TOKENS)]
        seen.append(observe_prompt(engine, cached + new, turn, clock))
    return seen[LEARNING_TURNS:]


def gaps_of(name: str, runs: list[Observed], promise: float) -> None:
    """Reports the gaps of the streams during the prompt; `promise` in milliseconds."""
    name = f"behind_a_long_prompt.split.{name}"
    gaps = [gap for run in runs for gap in run.gaps]
    worst = statistics.median(max(run.gaps) for run in runs)
    kept = sum(gap <= promise / 1000 for gap in gaps) / len(gaps)
    report(f"{name}.worst_gap", 1000 * worst, "ms", promise=promise, kept=round(kept, 3))
    report(f"{name}.p99_gap", 1000 * percentile_99(gaps), "ms")
    prompt = statistics.median(run.prompt for run in runs)
    steps = round(statistics.median(len(run.steps) for run in runs))
    report(f"{name}.first_token_of_the_prompt", 1000 * prompt, "ms", steps=steps)


def _together(seen: list[Waits]) -> Waits:
    others = [wait for run in seen for wait in run.others]
    return Waits(others, statistics.median(run.prompt for run in seen))


def simulated() -> None:
    cost = cost_named(GPU)
    base = settings_on(cost, 2_048)
    kinds = {
        "unchunked": replace(base, chunk_size=None),
        "chunked": base,
        "slo": replace(base, chunk_size=8_192, target=StepTarget(0.05, 0.99, 1_024)),
    }
    for when, seconds in (("first_second", 1.0), ("all_the_while", 5.0)):
        arrivals = [seconds * (n + 1) / OTHERS for n in range(OTHERS)]
        others = [TraceRequest(at, 500, 100) for at in arrivals]
        trace = trace_of("behind", [TraceRequest(0.0, 100_000, 1), *others])
        runs: dict[str, Waits] = {}
        for kind, how in kinds.items():
            device = SimulatedDevice(trace.requests, cost)
            lines = Replay(trace, how, device, Options()).run().record.timelines
            runs[kind] = _waits(trace, [line.first_token_seconds or 0.0 for line in lines])
        compare(f"simulated.{when}", runs)


def _waits(trace: Trace, first: list[float]) -> Waits:
    waits = [at - r.arrival_seconds for at, r in zip(first, trace.requests, strict=True)]
    return Waits(waits[1:], waits[0])


def compare(where: str, runs: Mapping[str, Waits]) -> None:
    """Reports each run against the first one."""
    slowest = next(iter(runs.values()))
    for kind, run in runs.items():
        name = f"behind_a_long_prompt.{where}.{kind}"
        median = statistics.median(run.others)
        better = {"times_better": round(statistics.median(slowest.others) / median, 1)}
        report(f"{name}.first_token_of_others_p50", 1000 * median, "ms", **better)
        better = {"times_better": round(max(slowest.others) / max(run.others), 1)}
        report(f"{name}.first_token_of_others_worst", 1000 * max(run.others), "ms", **better)
        longer = {"times_longer": round(run.prompt / slowest.prompt, 2)}
        report(f"{name}.first_token_of_the_prompt", 1000 * run.prompt, "ms", **longer)


def _memory(field: str) -> float:
    """MiB in a field of this process's status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise OSError(f"no {field}")


def _reset_peak() -> float:
    """Starts a new count of the peak; returns MiB that are resident, after freed memory is given
    back."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", choices=("simulated", "measured", "split"))
    parser.add_argument(
        "--cpu-clock",
        action="store_true",
        help="split: the process's CPU time, with one thread, on a machine shared with others",
    )
    arguments = parser.parse_args()
    if arguments.only == "split":
        as_an_engine_process("benchmarks.behind_a_long_prompt")
        clock = time.process_time if arguments.cpu_clock else time.perf_counter
        split(arguments.turns, 1 if arguments.cpu_clock else arguments.threads, clock)
        simulated_split()
        return
    if arguments.only != "simulated":
        as_an_engine_process("benchmarks.behind_a_long_prompt")
        measured(arguments.turns, arguments.threads)
    if arguments.only != "measured":
        simulated()


if __name__ == "__main__":
    main()
