"""CPU time of one scheduler step, `next_batch` and `process` together, at 256 running requests.

Prefix cache, 16-token pages, mixed batches, and a pool too small for the admitted requests. Waves
of short answers teach the scheduler to reserve little; the long answers after them outgrow the
reserve, so that one request in ten is sent back to the queue. Every other prompt begins with one of
eight system prompts, and every 32nd is long and cut. Answers are inserted when they end, and
prefixes evicted. Clients set no max_tokens. A stand-in draws the tokens. The garbage collector
stays on, as in the engine's process. Then requests join together over one long cached prefix, with
and without drafts from their own tokens: the longest of the next steps, and one after them. Last,
the plan of drafts alone, for 256 rows whose drafts are mostly right. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from sluice_runtime.engine.sizing.host import collect_garbage_rarely
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.policies import POLICIES
from sluice_runtime.scheduler.prefill_planner import Drafts
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.speculation import Speculation
from sluice_runtime.wire.messages import Generate, Sampling

ROWS = 288
"""Most running requests. On average 256 run: after a wave of retractions, fewer run for a while."""
POOL_PAGES = 10_500
PAGE_SIZE = 16
CHUNK_SIZE = 1024
CONTEXT_TOKENS = 16_384
LONG_PROMPT_TOKENS = 2_048
LONG_PROMPT_EVERY = 32
SYSTEM_PROMPTS = 8
SYSTEM_TOKENS = 96
SHORT_WAVE = 200
LONG_WAVE = 400
SHORT_ANSWER_TOKENS = (16, 64)
LONG_ANSWER_TOKENS = (600, 700)
STOP, TOKEN = 0, 7
QUEUE = 8
STEP_SECONDS = 0.02
"""Seconds of a step on the scheduler's clock."""
JOINING = (64, 200)
"""Requests that join together."""
JOINED_PREFIX_TOKENS = 32_000
JOINED_TAIL_TOKENS = 20
JOINED_CHUNK_SIZE = 8_192
"""Tokens of a step while requests join; all of them fit into one."""
JOIN_STEPS = 100
"""Steps after the requests have arrived; the last ten are those of running requests alone."""
JOIN_TURNS = 5
DRAFTING_ROWS = 256
DRAFT_TOKENS = 4
DRAFTED_STEPS = 60
PHRASE = (11, 12, 13, 14, 15)
"""All tokens of the rows that draft."""
RIGHT = 0.8
"""Probability that a draft is right."""
LONG_QUEUE = 128
"""Waiting requests that a policy looks up in the prefix cache."""


@dataclass
class Traffic:
    """Requests one after the other, and a stand-in for the model's answers."""

    draw: random.Random = field(default_factory=lambda: random.Random(0))
    systems: list[list[int]] = field(default_factory=list)
    left: Counter[str] = field(default_factory=Counter)
    """Tokens that each answer still lacks."""
    rows: dict[int, str] = field(default_factory=dict)
    made: int = 0

    def __post_init__(self) -> None:
        self.systems = [self._tokens(SYSTEM_TOKENS) for _ in range(SYSTEM_PROMPTS)]

    def next(self, now: float) -> Generate:
        self.made += 1
        name = f"r{self.made}"
        short = self.made % (SHORT_WAVE + LONG_WAVE) < SHORT_WAVE
        self.left[name] = self.draw.randint(*(SHORT_ANSWER_TOKENS if short else LONG_ANSWER_TOKENS))
        long = self.made % LONG_PROMPT_EVERY == 0
        own = self._tokens(LONG_PROMPT_TOKENS if long else self.draw.randint(32, 256))
        prompt = [*self.draw.choice(self.systems), *own] if self.made % 2 else own
        most = CONTEXT_TOKENS - len(prompt)
        key = f"tenant-{self.draw.randrange(8)}"
        return Generate(
            name,
            prompt,
            most,
            Sampling(),
            stop_token_ids=[STOP],
            priority=self.draw.randrange(3),
            routing_key=key,
            arrival_seconds=now,
        )

    def answer(self, batch: Batch) -> SampledTokens:
        """Sampled tokens for a batch, in place of the runner's."""
        for row in batch.added_rows:
            self.rows[row.row] = row.request_id
        names = [self.rows[row] for row in batch.sampling_rows]
        self.left.subtract(names)
        tokens = tuple(TOKEN if self.left[name] > 0 else STOP for name in names)
        return SampledTokens(batch.step, tokens)

    def _tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(10, 50_000) for _ in range(count)]


def scheduler(policy: str, **changed: Any) -> Scheduler:
    settings = SchedulerSettings(
        limits=Limits(CONTEXT_TOKENS, POOL_PAGES * PAGE_SIZE),
        page_size=PAGE_SIZE,
        chunk_size=CHUNK_SIZE,
        max_prefill_tokens=CONTEXT_TOKENS,
        min_prefill_tokens=PAGE_SIZE,
        max_running_requests=ROWS,
        max_queued_requests=4_096,
        mixed=True,
        conservativeness=0.3,
        policy=policy,
    )
    return Scheduler(replace(settings, **changed), PageAllocator(POOL_PAGES))


@dataclass
class Measured:
    """CPU time of the steps, and their requests. The warm-up does not count."""

    milliseconds: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    finished: int = 0
    cut_prompts: int = 0
    retractions: int = 0
    evicted_pages: int = 0
    cached_tokens: int = 0

    @property
    def retracted_share(self) -> float:
        """Retractions for each request that ended."""
        return self.retractions / max(1, self.finished)

    def facts(self) -> dict[str, object]:
        return {
            "unit": "ms CPU",
            "running": round(statistics.mean(self.running)),
            "finished": self.finished,
            "retracted_share": round(self.retracted_share, 3),
            "cut_prompts": self.cut_prompts,
            "evicted_pages": self.evicted_pages,
            "cached_tokens": self.cached_tokens,
        }


def measure(policy: str, queue: int, steps: int, warm_up: int = 1000) -> Measured:
    """CPU times of `steps` steps. `queue`: requests that wait before each step."""
    engine, traffic = scheduler(policy), Traffic()
    collect_garbage_rarely()
    for now in range(warm_up):
        _step(engine, traffic, queue, now * STEP_SECONDS, Measured())
    measured, before = Measured(), engine.status()
    for now in range(warm_up, warm_up + steps):
        _step(engine, traffic, queue, now * STEP_SECONDS, measured)
    after = engine.status()
    gc.unfreeze()
    measured.cut_prompts = after.chunk_cuts - before.chunk_cuts
    measured.retractions = after.retractions - before.retractions
    measured.evicted_pages = after.evicted_pages - before.evicted_pages
    return measured


def _step(engine: Scheduler, traffic: Traffic, queue: int, now: float, measured: Measured) -> None:
    for _ in range(queue - engine.status().queued_requests):
        engine.add(traffic.next(now))
    began = time.process_time()
    batch = engine.next_batch(now)
    planned = time.process_time()
    assert batch is not None
    result = traffic.answer(batch)
    resumed = time.process_time()
    deltas = engine.process(batch, result, now).deltas
    ended = time.process_time()
    measured.milliseconds.append(1000 * (planned - began + ended - resumed))
    measured.running.append(len(batch.decode_rows))
    measured.finished += sum(delta.finish_reason is not None for delta in deltas)
    measured.cached_tokens += batch.cached_tokens


def measure_joins(requests: int, draft_tokens: int) -> tuple[float, float]:
    """CPU milliseconds of the longest step while `requests` join over one cached prefix, and of a
    step afterwards."""
    limits = Limits(2 * JOINED_PREFIX_TOKENS, POOL_PAGES * PAGE_SIZE)
    sizes = {"chunk_size": JOINED_CHUNK_SIZE, "max_prefill_tokens": JOINED_CHUNK_SIZE}
    engine = scheduler("fcfs", limits=limits, draft_tokens=draft_tokens, **sizes)
    draw = random.Random(0)
    prefix = [draw.randrange(10, 50_000) for _ in range(JOINED_PREFIX_TOKENS)]
    engine.add(Generate("first", prefix, 2, Sampling()))
    _join_steps(engine, draw, 8, 0.0)
    for number in range(requests):
        tail = [draw.randrange(10, 50_000) for _ in range(JOINED_TAIL_TOKENS)]
        engine.add(Generate(f"r{number}", prefix + tail, 4 * JOIN_STEPS, Sampling()))
    collect_garbage_rarely()
    milliseconds = _join_steps(engine, draw, JOIN_STEPS, 100.0)
    gc.unfreeze()
    return max(milliseconds), statistics.median(milliseconds[-10:])


def _join_steps(engine: Scheduler, draw: random.Random, steps: int, now: float) -> list[float]:
    """CPU milliseconds of each step; every token is drawn at random."""
    milliseconds: list[float] = []
    for number in range(steps):
        began = time.process_time()
        batch = engine.next_batch(now + number * STEP_SECONDS)
        planned = time.process_time()
        if batch is None:
            break
        tokens = tuple([draw.randrange(10, 50_000) for _ in batch.sampling_rows])
        resumed = time.process_time()
        engine.process(batch, SampledTokens(batch.step, tokens), now + number * STEP_SECONDS)
        milliseconds.append(1000 * (planned - began + time.process_time() - resumed))
    return milliseconds


def report_joins() -> None:
    """Medians over turns, in which the kinds alternate."""
    kinds = [(requests, drafts) for requests in JOINING for drafts in (0, 4)]
    turns = [[measure_joins(*kind) for kind in kinds] for _ in range(JOIN_TURNS)]
    for (requests, drafts), measured in zip(kinds, zip(*turns, strict=True), strict=True):
        longest, after = (statistics.median(values) for values in zip(*measured, strict=True))
        name = f"scheduler_step.joins_{requests}{'_ngram' if drafts else ''}"
        report(f"{name}.longest", longest, unit="ms CPU")
        report(f"{name}.after", after, unit="ms CPU")


def measure_draft_plan(*, draft_model: bool) -> float:
    """CPU milliseconds of planning the drafts of a step in which all rows have some."""
    most = (2 + DRAFT_TOKENS) * DRAFTING_ROWS
    drafting = {"draft_tokens": DRAFT_TOKENS, "draft_model": draft_model}
    engine = scheduler("fcfs", max_running_requests=most, chunk_size=8 * CHUNK_SIZE, **drafting)
    for number in range(DRAFTING_ROWS):
        engine.add(Generate(f"r{number}", [*PHRASE] * 16, 8 * DRAFTED_STEPS, Sampling()))
    original, draw, now = Speculation.plan, random.Random(0), 0.0
    milliseconds: list[float] = []

    def timed(*arguments: Any) -> Drafts:
        began = time.process_time()
        drafts = original(*arguments)
        milliseconds.append(1000 * (time.process_time() - began))
        return drafts

    collect_garbage_rarely()
    with patch.object(Speculation, "plan", timed):
        for _ in range(DRAFTED_STEPS):
            batch = engine.next_batch(now)
            assert batch is not None
            result = _mostly_right(batch, draw)
            passes = max([len(row.token_ids) - 1 for row in batch.verify_rows], default=0)
            now += 0.01 + 1e-6 * len(result.token_ids) + 1e-4 * passes * draft_model
            engine.process(batch, result, now)
    gc.unfreeze()
    assert engine.status().drafted_tokens > DRAFTING_ROWS * DRAFTED_STEPS
    return statistics.median(milliseconds[-DRAFTED_STEPS // 2 :])


def _mostly_right(batch: Batch, draw: random.Random) -> SampledTokens:
    """Drawn tokens that equal a draft with probability `RIGHT`."""
    tokens = [draw.choice(PHRASE) for extend in batch.extend_rows if extend.samples]
    proposed: list[int] = []
    for row in batch.verify_rows:
        drafts = [t if t != NO_TOKEN else draw.choice(PHRASE) for t in row.token_ids[1:]]
        tokens += [t if draw.random() < RIGHT else draw.choice(PHRASE) for t in drafts]
        tokens.append(draw.choice(PHRASE))
        proposed += drafts
    tokens += [draw.choice(PHRASE) for _ in batch.decode_rows]
    return SampledTokens(batch.step, tuple(tokens), drafts=tuple(proposed))


def report_draft_plans() -> None:
    """Medians over turns, in which the kinds alternate."""
    kinds = {"ngram": False, "draft_model": True}
    turns = [
        [measure_draft_plan(draft_model=model) for model in kinds.values()]
        for _ in range(JOIN_TURNS)
    ]
    for kind, milliseconds in zip(kinds, zip(*turns, strict=True), strict=True):
        value = statistics.median(milliseconds)
        report(f"scheduler_step.draft_plan_{kind}", value, unit="ms CPU", rows=DRAFTING_ROWS)


def report(figure: str, value: float, **facts: object) -> None:
    print(json.dumps({"figure": figure, "value": round(value, 4), **facts}), flush=True)


def report_steps(name: str, measured: Measured) -> None:
    ordered = sorted(measured.milliseconds)
    report(f"{name}.p50", ordered[len(ordered) // 2], **measured.facts())
    report(f"{name}.p99", ordered[len(ordered) * 99 // 100], **measured.facts())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--policies", action="store_true", help="every policy, with a long queue")
    arguments = parser.parse_args()
    measured = measure("fcfs", QUEUE, arguments.steps)
    report("scheduler_step.retracted_share", measured.retracted_share, unit="of those that ended")
    report_steps("scheduler_step", measured)
    report_joins()
    report_draft_plans()
    for policy in POLICIES if arguments.policies else ():
        report_steps(f"scheduler_step.{policy}", measure(policy, LONG_QUEUE, arguments.steps // 2))


if __name__ == "__main__":
    main()
