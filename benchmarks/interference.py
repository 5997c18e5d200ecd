"""A prompt of 8 chunks during 16 streaming requests: the gaps between the streams' tokens.

The same requests run in turns with chunking on and off, with fixed chunks of many sizes, and with
the chunk chosen for each step to keep a target. A gap is the time from one step's tokens to the
next one's, by the engine's clock, for every stream while the long prompt is being computed. Gaps
are compared with one mixed step, the median of steps that computed a chunk. The target is a little
more than such a step takes, or what --target says. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate, Sampling

from benchmarks.cpu_serving import as_an_engine_process, write_model

STREAMS = 16
CHUNKS = 8
FIXED_CHUNKS = (64, 96, 128, 160, 192, 256, 384, 512)
"""Tokens of the fixed chunks; the best of those that keep the target is reported."""
LARGEST_CHUNK = 1024
"""Most tokens that may be chosen for a step."""
LEARNING_STEPS = 200
"""Steps before the chosen chunk is measured: fewer say little about a 99th percentile."""
TARGET_STEPS = 1.25
"""The target, in mixed steps of the chunk that --chunk names."""
GREEDY = Sampling(temperature=0.0)


@dataclass
class Observed:
    """Seconds of gaps, of `steps` that computed a part of the long prompt, and of the prompt."""

    gaps: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    prompt: float = 0.0
    """Seconds from the arrival of the long prompt to its first token."""


Runs = dict[str, list[Observed]]
Clock = Callable[[], float]


def engine_for(folder: Path, chunk: int, threads: int, **settings: Any) -> Engine:
    """An engine with chunks of `chunk` prompt tokens. Decode rows share a step's budget, so the
    number of streams is added to it."""
    config = resolved(
        EngineConfig.model_validate(
            {
                "model": {"uri": str(folder)},
                "kv_pool_tokens": 16_384,
                "chunk_size": chunk if chunk == -1 else chunk + STREAMS,
                "prefix_cache": False,
                "threads": threads,
                **settings,
            }
        )
    )
    return build_engine(config, resolve(config.model.uri))


def observe(engine: Engine, prompt_tokens: int, turn: int, clock: Clock) -> Observed:
    """The gaps of the streams during a prompt. It arrives once the streams decode, and all requests
    are dropped at the end."""
    return observe_prompt(engine, [i % 1000 for i in range(prompt_tokens)], turn, clock)


def observe_prompt(engine: Engine, prompt: list[int], turn: int, clock: Clock) -> Observed:
    """The gaps of the streams during `prompt`; see `observe`."""
    names = start_streams(engine, turn, 200, clock)
    long = f"{turn}-long"
    engine.scheduler.add(Generate(long, prompt, 4, GREEDY))
    observed, arrived = Observed(), clock()
    last = dict.fromkeys(names, arrived)
    while True:
        began = clock()
        extends, answered = step(engine, clock)
        now = clock()
        if extends:
            observed.steps.append(now - began)
        for name in answered & last.keys():
            observed.gaps.append(now - last[name])
            last[name] = now
        if long in answered:
            observed.prompt = now - arrived
            break
    for name in (*names, long):
        engine.scheduler.abort(name)
    while engine.scheduler.status().running_requests:
        step(engine, clock)
    engine.scheduler.next_batch(clock())
    return observed


def start_streams(engine: Engine, turn: int, tokens: int, clock: Clock) -> list[str]:
    """Adds the streams' requests and runs steps until all of them decode; returns their names."""
    names = [f"{turn}-{index}" for index in range(STREAMS)]
    for index, name in enumerate(names):
        engine.scheduler.add(Generate(name, [index + 1] * 64, tokens, GREEDY, ignore_eos=True))
    decoding: set[str] = set()
    while len(decoding) < STREAMS:
        decoding |= step(engine, clock)[1]
    return names


def step(engine: Engine, clock: Clock) -> tuple[bool, set[str]]:
    """Whether the step computed prompt tokens, and which requests got a token."""
    batch = engine.scheduler.next_batch(clock())
    assert batch is not None
    result = engine.runner.forward(batch)
    deltas = engine.scheduler.process(batch, result, clock()).deltas
    return bool(batch.extend_rows), {delta.request_id for delta in deltas if delta.token_ids}


def in_turns(
    engines: Mapping[str, Engine], prompt: int, turns: Iterable[int], clock: Clock
) -> Runs:
    """Runs each engine once a turn; the first turn is a warm-up."""
    runs: Runs = {kind: [] for kind in engines}
    for turn in turns:
        for kind, engine in engines.items():
            observed = observe(engine, prompt, turn, clock)
            runs[kind] += [observed] if turn else []
    return runs


def learn(engine: Engine, prompt: int, clock: Clock) -> None:
    """Runs turns that are not measured, until the engine has learnt how long its steps take."""
    turn = steps = 0
    while steps < LEARNING_STEPS:
        turn -= 1
        steps += len(observe(engine, prompt, turn, clock).steps)


def report(figure: str, value: float, unit: str, **more: object) -> None:
    line = {"figure": figure, "value": round(value, 3), "unit": unit, **more}
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--target", type=int, help="milliseconds between tokens; else measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--cpu-clock",
        action="store_true",
        help="measure the process's CPU time, with one thread: for a machine shared with others",
    )
    arguments = parser.parse_args()
    as_an_engine_process("benchmarks.interference")
    clock = time.process_time if arguments.cpu_clock else time.perf_counter
    threads = 1 if arguments.cpu_clock else arguments.threads
    prompt, turns = CHUNKS * arguments.chunk, range(arguments.turns + 1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        engines = {
            "chunked": engine_for(folder, arguments.chunk, threads),
            "unchunked": engine_for(folder, -1, threads),
        }
        runs = in_turns(engines, prompt, turns, clock)
        one_step = summarise(runs)
        milliseconds = arguments.target or round(1000 * one_step * TARGET_STEPS)
        slo = {"itl_milliseconds": milliseconds, "percentile": 99}
        chosen = {f"fixed.{chunk}": engine_for(folder, chunk, threads) for chunk in FIXED_CHUNKS}
        chosen["slo"] = engine_for(folder, LARGEST_CHUNK, threads, slo=slo)
        learn(chosen["slo"], prompt, clock)
    compare(in_turns(chosen, prompt, turns, clock), milliseconds / 1000)


def summarise(runs: Runs) -> float:
    """Reports medians over the turns, of each turn's worst and 99th-percentile gap; returns the
    seconds of a mixed step."""
    one_step = statistics.median(s for run in runs["chunked"] for s in run.steps)
    report("interference.mixed_step", 1000 * one_step, "ms")
    for kind, observed in runs.items():
        worst = statistics.median(max(run.gaps) for run in observed)
        p99 = statistics.median(percentile_99(run.gaps) for run in observed)
        chunks = round(statistics.median(len(run.steps) for run in observed))
        report(f"interference.{kind}.worst_gap", 1000 * worst, "ms", steps=chunks)
        report(f"interference.{kind}.p99_gap", 1000 * p99, "ms")
        report(f"interference.{kind}.worst_gap_in_steps", worst / one_step, "mixed steps")
        prompt = statistics.median(run.prompt for run in observed)
        report(f"interference.{kind}.first_token_of_the_prompt", 1000 * prompt, "ms")
    return one_step


def compare(runs: Runs, target: float) -> None:
    """Reports the chosen chunk against the best fixed chunk whose gaps keep the target too. The
    gaps of all turns count together, since a 99th percentile needs that many."""
    p99 = {
        kind: percentile_99([g for run in seen for g in run.gaps]) for kind, seen in runs.items()
    }
    ttft = {kind: statistics.median(run.prompt for run in seen) for kind, seen in runs.items()}
    report("interference.slo.target", 1000 * target, "ms")
    for kind in runs:
        keeps = p99[kind] <= target
        report(f"interference.{kind}.p99_gap_of_all", 1000 * p99[kind], "ms", keeps=keeps)
        report(f"interference.{kind}.first_token_of_the_prompt", 1000 * ttft[kind], "ms")
    keeping = [kind for kind in runs if kind != "slo" and p99[kind] <= target]
    report("interference.slo.p99_gap_of_target", p99["slo"] / target, "x")
    if not keeping:
        report("interference.slo.best_fixed", 0, "none of the fixed chunks keeps the target")
        return
    best = min(keeping, key=lambda kind: ttft[kind])
    report("interference.slo.first_token_of_best_fixed", ttft["slo"] / ttft[best], "x", best=best)


def percentile_99(values: list[float]) -> float:
    return sorted(values)[len(values) * 99 // 100]


if __name__ == "__main__":
    main()
