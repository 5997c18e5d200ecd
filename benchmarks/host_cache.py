"""The workload "second turn": time to the first token of a conversation that was evicted.

The 33.6 M-parameter Qwen3 of "CPU serving" in bfloat16. A conversation of 8,000 tokens comes, then
its next turn of 64 more. Between them, another prompt pushes it out of a pool that holds one.

The next turn is timed in four cases: the first turn is still in the device's cache (hot), comes
back from the host's memory (memory) or from a file in the page cache (disk), or is computed again
(computed). The engines take turns, round by round; a ratio is the median of the rounds'.

"push" is the cost of copying out: the time to the first token of a prompt that evicts, with a host
cache over without. "of_processor_time" is the ratio of the process's own time until the first
token, which others hardly change. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.executors import Executor
from sluice_runtime.engine.prepare import prepare
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.model.files import resolve
from sluice_runtime.wire.messages import Generate, Sampling

from benchmarks.cpu_serving import as_an_engine_process, write_model
from benchmarks.turns import report

TOKENS = 8000
NEW_TOKENS = 64
ANSWER = 8
ROUNDS = 5
VOCABULARY = 16_384
CACHES: Mapping[str, Mapping[str, Any] | None] = {
    "hot": None,
    "computed": None,
    "memory": {"memory": "2Gi"},
    "disk": {"memory": "2Gi", "disk": {"size": "8Gi"}},
}


class Answer(NamedTuple):
    """Answer to one request. Both times are those to its first token."""

    seconds: float
    processor_seconds: float
    tokens: list[int]


class Served:
    """One engine, driven step by step."""

    def __init__(self, folder: Path, threads: int, cache: Mapping[str, Any] | None) -> None:
        settings = {
            "model": {"uri": str(folder)},
            "kvPoolTokens": (TOKENS + 512) // 16 * 16,
            "contextLength": 12_000,
            "chunkSize": 2048,
            "threads": threads,
            "hostCache": cache,
        }
        config = resolved(EngineConfig.model_validate(settings))
        self.engine: Engine = build_engine(config, resolve(config.model.uri))
        prepare(config, self.engine)
        host = self.engine.scheduler._kv.host
        if host is not None and cache is not None and "disk" in cache:
            host._free_goal = 1 << 30  # all moves to disk at once, not only what leaves memory
        self._executor: Executor = self.engine.executor(overlap=False)

    def ask(self, name: str, prompt: Sequence[int]) -> Answer:
        scheduler, answer, first = self.engine.scheduler, list[int](), (0.0, 0.0)
        began, processor_began = time.monotonic(), time.process_time()
        scheduler.add(Generate(name, list(prompt), ANSWER, Sampling(seed=1), ignore_eos=True))
        while (batch := scheduler.next_batch(time.monotonic())) is not None:
            result = self._executor.launch(batch)()
            for delta in scheduler.process(batch, result, time.monotonic()).deltas:
                if not answer:
                    first = time.monotonic() - began, time.process_time() - processor_began
                answer += delta.token_ids
        return Answer(*first, answer)

    @property
    def hits(self) -> Mapping[str, int]:
        load = self.engine.scheduler.status().host_cache
        return load.hit_tokens if load else {}

    def close(self) -> None:
        if self.engine.host_cache is not None:
            self.engine.host_cache.close()


def tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(VOCABULARY) for _ in range(count)]


class Rounds:
    """Seconds of each round, by engine."""

    def __init__(self, engines: Mapping[str, Served]) -> None:
        self._engines = engines
        self.turns: dict[str, list[Answer]] = {name: [] for name in engines}
        self.pushes: dict[str, list[float]] = {name: [] for name in engines}

    def run(self, number: int) -> None:
        draw = random.Random(number)
        first, other = tokens(draw, TOKENS), tokens(draw, TOKENS)
        new, answers = tokens(draw, NEW_TOKENS), dict[str, list[int]]()
        for name, served in self._engines.items():
            if name != "computed":
                pushing = served.ask(f"{number}-first", first)
                answers[name] = pushing.tokens
                self.pushes[name].append(pushing.seconds)
            if name in ("memory", "disk"):
                served.ask(f"{number}-other", other)
            turn = [*first, *answers["hot"], *new]
            self.turns[name].append(served.ask(f"{number}-second", turn))
        # Tokens computed again may differ by rounding; those that come back do not.
        for tier in ("memory", "disk"):
            mine, hot = self.turns[tier][-1], self.turns["hot"][-1]
            assert mine.tokens == hot.tokens, f"{tier}: another answer"


def main(chosen: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args(chosen)
    if arguments.rounds < 2:
        parser.error("--rounds: at least 2, as nothing is there to evict in the first")
    as_an_engine_process("benchmarks.host_cache")
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        write_model(folder, context=12_000)
        engines: dict[str, Served] = {}
        for name, cache in CACHES.items():
            engines[name] = Served(folder, arguments.threads, cache)
            ends.callback(engines[name].close)
        compare(engines, arguments.rounds)


def compare(engines: Mapping[str, Served], rounds: int) -> None:
    seen = Rounds(engines)
    for number in range(rounds):
        seen.run(number)
    seconds = {name: [turn.seconds for turn in turns] for name, turns in seen.turns.items()}
    processor = {name: [t.processor_seconds for t in turns] for name, turns in seen.turns.items()}
    for name in engines:
        hits = dict(engines[name].hits)
        report(f"host_cache.second_turn.{name}", 1000 * median(seconds[name]), unit="ms", hits=hits)
    for tier in ("memory", "disk"):
        mine, hot, anew = seconds[tier], seconds["hot"], seconds["computed"]
        report(f"host_cache.{tier}.over_hot", ratio(mine, hot), unit="times")
        of_processor_time = ratio(processor[tier], processor["hot"])
        report(f"host_cache.{tier}.over_hot.of_processor_time", of_processor_time, unit="times")
        report(f"host_cache.{tier}.faster_than_computing", ratio(anew, mine), unit="times")
        # In the first round, there was nothing to evict.
        push = ratio(seen.pushes[tier][1:], seen.pushes["hot"][1:])
        report(f"host_cache.{tier}.push", push, unit="on / off")


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return median(one / other for one, other in zip(ones, others, strict=True))


if __name__ == "__main__":
    main()
