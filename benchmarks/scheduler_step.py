"""CPU time of one scheduler step, `next_batch` and `process` together, at 256 running requests.

A pool that is a little too small, 16-token pages, mixed batches, prefix cache: requests arrive as
others finish, every other one begins with one of eight system prompts, a long prompt is always
being cut, finished answers are inserted, prefixes evicted and rows retracted. A stand-in draws the
tokens. The garbage collector stays on. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import dataclass, field

from sluice_runtime.messages import Generate, Sampling
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings

RUNNING = 256
PAGE_SIZE = 16
CHUNK_SIZE = 1024
LONG_PROMPT_TOKENS = 2_048
SYSTEM_PROMPTS = 8
SYSTEM_TOKENS = 96
POOL_PAGES = 10_150


@dataclass
class Traffic:
    """Keeps the queue a few requests long; every 32nd prompt is long."""

    draw: random.Random = field(default_factory=lambda: random.Random(0))
    made: int = 0
    systems: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.systems = [self._tokens(SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]

    def next(self) -> Generate:
        self.made += 1
        long = self.made % 32 == 0
        length = LONG_PROMPT_TOKENS if long else self.draw.randint(32, 256)
        answer = self.draw.randint(256, 768)
        system = self.draw.choice(self.systems) if self.made % 2 else []
        prompt = [*system, *self._tokens(length)]
        return Generate(f"r{self.made}", prompt, answer, Sampling())

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(50_000) for _ in range(count)]


def scheduler() -> Scheduler:
    settings = SchedulerSettings(
        limits=Limits(16_384, POOL_PAGES * PAGE_SIZE),
        page_size=PAGE_SIZE,
        chunk_size=CHUNK_SIZE,
        max_prefill_tokens=16_384,
        min_prefill_tokens=PAGE_SIZE,
        max_running_requests=320,
        max_queued_requests=4_096,
        mixed=True,
        conservativeness=0.05,
    )
    return Scheduler(settings, PageAllocator(POOL_PAGES))


@dataclass
class Measured:
    """Seconds of CPU a step, and what the steps were."""

    seconds: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    requests: int = 0
    cuts: int = 0
    retractions: int = 0
    evicted_pages: int = 0
    cached_tokens: int = 0


def measure(steps: int, warm_up: int) -> Measured:
    engine, traffic, measured = scheduler(), Traffic(), Measured()
    for step in range(warm_up + steps):
        while engine.status().queued_requests < 8:
            engine.add(traffic.next())
        began = time.process_time()
        batch = engine.next_batch(float(step))
        planned = time.process_time()
        assert batch is not None
        result = tokens_for(batch)
        resumed = time.process_time()
        engine.process(batch, result, float(step))
        ended = time.process_time()
        if step >= warm_up:
            measured.seconds.append((planned - began) + (ended - resumed))
            measured.running.append(len(batch.decode_rows))
        measured.cached_tokens += batch.cached_tokens
    status = engine.status()
    measured.requests = traffic.made
    measured.cuts, measured.retractions = status.chunk_cuts, status.retractions
    measured.evicted_pages = status.evicted_pages
    return measured


def tokens_for(batch: Batch) -> SampledTokens:
    return SampledTokens(batch.step, (7,) * len(batch.sampling_rows))


def report(figure: str, value: float, **more: object) -> None:
    print(json.dumps({"figure": figure, "value": round(value, 4), **more}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    measured = measure(arguments.steps, warm_up=1000)
    milliseconds = sorted(1000 * seconds for seconds in measured.seconds)
    facts = {
        "unit": "ms CPU",
        "running": round(statistics.mean(measured.running)),
        "chunk_cuts": measured.cuts,
        "retractions": measured.retractions,
        "evicted_pages": measured.evicted_pages,
        "cached_tokens": measured.cached_tokens,
        "requests": measured.requests,
    }
    report("scheduler_step.p50", milliseconds[len(milliseconds) // 2], **facts)
    report("scheduler_step.p99", milliseconds[len(milliseconds) * 99 // 100], **facts)


if __name__ == "__main__":
    main()
