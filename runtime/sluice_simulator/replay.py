"""One engine under a trace: the engine's loop, with a cost model as device and a clock that jumps.

In exact mode every step is scheduled. In fleet mode (with a `Leaper`), consecutive decode steps
that change only lengths are one leap, so that a simulation's time depends on its events rather than
its steps.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from sluice_runtime.scheduler.batch import Batch, ForwardMode, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import Generate, Sampling

from sluice_simulator.device import Device, Leaper
from sluice_simulator.fast_forward import FastForwardScheduler
from sluice_simulator.record import Record
from sluice_simulator.traces.request import Trace
from sluice_simulator.traces.tokens import END_OF_ANSWER, prompt_ids

GREEDY: Final = Sampling(temperature=0.0)
LEAST_LEAP: Final = 2
LEAST_OVERLAPPED_LEAP: Final = 6
"""Fewest steps for which a leap is worthwhile with overlap: before the leap the step in flight must
end, so that nothing runs while the next one is planned."""
MAX_BESIDE_QUEUE: Final = 32
"""Most decode steps of a leap while requests wait: the queue must then be sorted again, since its
order may depend on the time."""


@dataclass(frozen=True)
class Options:
    """Options of a simulation. Only `static` makes the simulated engine differ from a real one."""

    max_tokens: int = 2048
    """The max_tokens of requests, or the length of the trace's answer if that is greater."""
    sample_seconds: float = 1.0
    """Time between two samples of the pool."""
    static: bool = False
    """Static batching, as a baseline: a batch is filled once, and the next one begins when all its
    answers have ended."""


@dataclass(frozen=True)
class Replayed:
    """A finished simulation."""

    record: Record
    status: Status


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A batch that the device is computing."""

    batch: Batch
    tokens: SampledTokens
    seconds: float
    planned_seconds: float
    ended_seconds: float


class Replay:
    """One run of a simulation; make a new object for each run."""

    def __init__(
        self,
        trace: Trace,
        settings: SchedulerSettings,
        device: Device,
        options: Options,
        leaper: Leaper | None = None,
    ) -> None:
        pages = settings.limits.kv_pool_tokens // settings.page_size
        self._requests = trace.requests
        self._scheduler = FastForwardScheduler(settings, PageAllocator(pages))
        self._device = device
        self._leaper = leaper
        self._options = options
        self._most_at_once = settings.max_running_requests if options.static else None
        self._record = Record(trace.requests, options.sample_seconds)
        self._pending: deque[ReplayedStep] = deque()
        self._free_seconds = 0.0
        """Time at which the device has nothing more to do."""
        self._arrived = 0
        self._now = 0.0

    def run(self) -> Replayed:
        """Runs until every request of the trace has ended."""
        while True:
            self._arrive()
            batch = self._plan()
            if len(self._pending) > (self._device.ahead if batch else 0):
                self._land()
            elif batch is None and self._arrived < len(self._requests):
                self._now = self._requests[self._arrived].arrival_seconds
            elif batch is None:
                return Replayed(self._record, self._scheduler.status())

    def _arrive(self) -> None:
        """Adds requests that have arrived; with static batching, only once the batch has ended."""
        first, most = self._arrived, self._most_at_once
        if most is not None and self._record.open_requests(first):
            return
        while self._arrived < len(self._requests):
            request = self._requests[self._arrived]
            full = most is not None and self._arrived - first >= most
            if full or request.arrival_seconds > self._now:
                return
            message = Generate(
                request_id=str(self._arrived),
                prompt_ids=prompt_ids(request, self._arrived),
                max_tokens=max(self._options.max_tokens, request.output_tokens),
                sampling=GREEDY,
                stop_token_ids=[END_OF_ANSWER],
                arrival_seconds=request.arrival_seconds,
                priority=request.priority,
                routing_key=request.routing_key,
            )
            self._scheduler.add(message)
            self._arrived += 1

    def _plan(self) -> Batch | None:
        """Schedules the next batch, which the device begins once the previous one has ended."""
        planned = self._now
        if (batch := self._scheduler.next_batch(planned)) is None:
            return None
        tokens, seconds = self._device.run(batch)
        if seconds:
            self._now += self._device.host_seconds
        self._free_seconds = max(self._now, self._free_seconds) + seconds
        self._pending.append(ReplayedStep(batch, tokens, seconds, planned, self._free_seconds))
        return batch

    def _land(self) -> None:
        """Processes the oldest batch in flight. If that batch only decoded, leaps over the decode
        steps that follow."""
        pending = self._pending.popleft()
        self._now = max(self._now, pending.ended_seconds)
        outcomes = self._scheduler.process(pending.batch, pending.tokens, self._now).deltas
        self._record.step(
            pending.batch, outcomes, pending.planned_seconds, pending.seconds, self._now
        )
        if self._leaper and pending.batch.mode is ForwardMode.DECODE:
            self._leap(self._leaper)
        if self._now >= self._record.next_sample_seconds:
            self._record.sample(self._scheduler.status(), self._now)

    def _leap(self, leaper: Leaper) -> None:
        """Leaps over the decode steps before the next event: an arrival, the end of an answer, a
        sample or a shortage of pages."""
        least = LEAST_OVERLAPPED_LEAP if self._pending else LEAST_LEAP
        if (most := self._max_steps(leaper)) < least:
            return
        if self._pending:
            if self._pending[0].batch.mode is ForwardMode.DECODE:
                self._land()
            return
        if steps := self._scheduler.fast_forward_decode(most, self._now):
            leap = leaper.leap(steps)
            self._free_seconds = ended = self._now + leap.seconds
            self._record.leap(leap, ended)
            if self._device.ahead:
                # With overlap the next step was planned when the last one began.
                self._now = self._free_seconds - leap.last_seconds
                self._arrive()
                self._plan()
            self._now = max(self._now, ended)

    def _max_steps(self, leaper: Leaper) -> int:
        until = self._record.next_sample_seconds
        if self._arrived < len(self._requests) and self._most_at_once is None:
            until = min(until, self._requests[self._arrived].arrival_seconds)
        most = leaper.foresee(until - self._now)
        return min(most, MAX_BESIDE_QUEUE) if self._scheduler.status().queued_requests else most
