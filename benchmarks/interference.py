"""A prompt of 8 chunks beside 16 streaming requests: the gaps between the streams' tokens.

The same requests with chunking on and off, in turns. Gaps are taken by the engine's clock: from one
step's tokens to the next one's, for every stream, while the long prompt is being computed. They are
set against one mixed step, the median of those that computed a chunk. Prints one JSON line a
figure.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sluice_contract.config import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.plan import resolved
from sluice_runtime.messages import Generate, Sampling
from sluice_runtime.model_files import resolve

from benchmarks.cpu_serving import as_an_engine_process, write_model

STREAMS = 16
CHUNKS = 8
GREEDY = Sampling(temperature=0.0)


@dataclass
class Observed:
    """Seconds. `steps`: those that computed a part of the long prompt."""

    gaps: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    prompt: float = 0.0
    """From the arrival of the long prompt to its first token."""


def engine_for(folder: Path, chunk: int, threads: int) -> Engine:
    config = resolved(
        EngineConfig.model_validate(
            {
                "model": {"uri": str(folder)},
                "kv_pool_tokens": 16_384,
                "chunk_size": chunk,
                "threads": threads,
            }
        )
    )
    return build_engine(config, resolve(config.model.uri))


Clock = Callable[[], float]


def observe(engine: Engine, prompt_tokens: int, turn: int, clock: Clock) -> Observed:
    """Streams first; the long prompt arrives once they decode; all are dropped at the end."""
    names = [f"{turn}-{index}" for index in range(STREAMS)]
    for index, name in enumerate(names):
        engine.scheduler.add(Generate(name, [index + 1] * 64, 100, GREEDY, ignore_eos=True))
    for _ in range(8):
        step(engine)
    long = f"{turn}-long"
    engine.scheduler.add(Generate(long, [i % 1000 for i in range(prompt_tokens)], 4, GREEDY))
    observed, arrived = Observed(), clock()
    last = dict.fromkeys(names, arrived)
    while True:
        began = clock()
        extends, answered = step(engine)
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
    step(engine)
    return observed


def step(engine: Engine) -> tuple[bool, set[str]]:
    """Whether the step computed prompt tokens, and which requests got a token."""
    batch = engine.scheduler.next_batch(time.monotonic())
    assert batch is not None
    result = engine.runner.forward(batch)
    outcomes = engine.scheduler.process(batch, result, time.monotonic())
    return bool(batch.extend_rows), {o.request_id for o in outcomes if o.token_ids}


def report(figure: str, value: float, unit: str, **more: object) -> None:
    print(json.dumps({"figure": figure, "value": round(value, 3), "unit": unit, **more}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--turns", type=int, default=7)
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
    prompt = CHUNKS * arguments.chunk
    runs: dict[str, list[Observed]] = {"chunked": [], "unchunked": []}
    with tempfile.TemporaryDirectory() as name:
        write_model(Path(name))
        # Decode rows share the budget: with their number added, a chunk is a chunk.
        chunked = engine_for(Path(name), arguments.chunk + STREAMS, threads)
        whole = engine_for(Path(name), -1, threads)
    for turn in range(arguments.turns + 1):
        seen = {
            "chunked": observe(chunked, prompt, turn, clock),
            "unchunked": observe(whole, prompt, turn, clock),
        }
        for kind, observed in seen.items():
            runs[kind] += [observed] if turn else []  # the first turn warms up
    summarise(runs)


def summarise(runs: dict[str, list[Observed]]) -> None:
    """Medians over the turns, of each turn's worst and 99th-percentile gap."""
    one_step = statistics.median(s for run in runs["chunked"] for s in run.steps)
    report("interference.mixed_step", 1000 * one_step, "ms")
    for kind, observed in runs.items():
        worst = statistics.median(max(run.gaps) for run in observed)
        p99 = statistics.median(sorted(run.gaps)[len(run.gaps) * 99 // 100] for run in observed)
        chunks = round(statistics.median(len(run.steps) for run in observed))
        report(f"interference.{kind}.worst_gap", 1000 * worst, "ms", steps=chunks)
        report(f"interference.{kind}.p99_gap", 1000 * p99, "ms")
        report(f"interference.{kind}.worst_gap_in_steps", worst / one_step, "mixed steps")
        prompt = statistics.median(run.prompt for run in observed)
        report(f"interference.{kind}.first_token_of_the_prompt", 1000 * prompt, "ms")


if __name__ == "__main__":
    main()
