"""Engines that take turns at a workload, round by round.

A machine shared with others changes its pace within minutes, so runs one after the other would
compare the machine with itself. Ratios are between runs of one round, and the median of the rounds
counts.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, median_low

SCALE = float(os.environ.get("SLUICE_BENCH_SCALE", "1"))
"""Scale of the workloads on GPUs. A scale below 1 shows within a minute whether all of them run;
figures of these runs name the scale, and mean little."""


def scaled(count: int) -> int:
    """Requests, rows, steps or tokens of a workload; 1 at least."""
    return max(1, round(count * SCALE))


@dataclass(frozen=True)
class Measured:
    """Figures of a run from its first request to its last token."""

    tokens: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds

    @property
    def cpu_rate(self) -> float:
        """Tokens a second of CPU time: steady even on a machine shared with others."""
        return self.tokens / self.cpu_seconds


@contextmanager
def stopwatch() -> Iterator[Callable[[int], Measured]]:
    """Yields a function that makes a Measured of the tokens generated since the start."""
    began, cpu_began = time.perf_counter(), time.process_time()
    yield lambda tokens: Measured(
        tokens, time.perf_counter() - began, time.process_time() - cpu_began
    )


Run = Callable[[int], Measured]
"""A run of the workload. Its prompts differ for each number, so that no cache has them."""

Rounds = Mapping[str, Sequence[Measured]]
"""Figures of each engine, round by round."""


def in_turns(runs: Mapping[str, Run], rounds: int, once: Collection[str] = ()) -> Rounds:
    """Runs each engine once a round, each round beginning with another engine. Before that, each
    has a run that does not count.

    Engines in `once` run in the last round alone, after the others and without a run before.
    """
    seen: dict[str, list[Measured]] = {name: [] for name in runs}
    often = [name for name in runs if name not in once]
    for name in often:
        runs[name](rounds)
    for number in range(rounds):
        first = number % len(often)
        for name in (*often[first:], *often[:first]):
            seen[name].append(runs[name](number))
    for name in once:
        if name in runs:
            seen[name].append(runs[name](rounds - 1))
    return seen


def middle(runs: Sequence[Measured]) -> Measured:
    """The run with the median time."""
    seconds = median_low(run.seconds for run in runs)
    return next(run for run in runs if run.seconds == seconds)


def report_rounds(figure: str, ours: str, seen: Rounds) -> None:
    """Reports the median of each engine, and of the ratios of `ours` to each other one."""
    for name, runs in seen.items():
        taken = round(middle(runs).seconds, 2)
        rate, cpu_rate = middle(runs).rate, median(run.cpu_rate for run in runs)
        unit = "output tokens/s"
        report(f"{figure}.{name}", rate, unit=unit, seconds=taken, rounds=len(runs))
        report(f"{figure}.{name}.per_cpu_second", cpu_rate, unit="output tokens/CPU s")
        if name == ours:
            continue
        pairs = list(zip(seen[ours][-len(runs) :], runs, strict=True))
        for suffix, ratios in (
            ("", [mine.rate / theirs.rate for mine, theirs in pairs]),
            (".per_cpu_second", [mine.cpu_rate / theirs.cpu_rate for mine, theirs in pairs]),
        ):
            report(
                f"{figure}.ratio.{name}{suffix}",
                median(ratios),
                unit=f"{ours} / {name}",
                rounds=len(ratios),
                least=round(min(ratios), 3),
                most=round(max(ratios), 3),
            )


def report(figure: str, value: float, **more: object) -> None:
    if SCALE != 1:
        more["scale"] = SCALE
    print(json.dumps({"figure": figure, "value": round(value, 3), **more}), flush=True)
