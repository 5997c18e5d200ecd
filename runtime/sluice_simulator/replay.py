"""One engine under a trace: the engine's loop, with a cost model as device and a clock that jumps.

Exact: every step is scheduled. Fleet (with a `Leaper`): a run of decode steps that changes nothing
but lengths is taken in one leap, so that the price of a simulation is that of its events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_runtime.messages import Generate, Sampling
from sluice_runtime.scheduler.batch import Batch, ForwardMode
from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.status import Status

from sluice_simulator.device import Device, Leaper
from sluice_simulator.record import Record
from sluice_simulator.traces.request import Trace
from sluice_simulator.traces.tokens import END_OF_ANSWER, prompt_ids

GREEDY: Final = Sampling(temperature=0.0)
LEAST_LEAP: Final = 2
MOST_BESIDE_QUEUE: Final = 32
"""Decode steps after which a queue is put in order again: it may depend on the time."""


@dataclass(frozen=True)
class Options:
    """How to simulate; only `static` changes what the engine would do."""

    max_tokens: int = 2048
    """What clients ask for; a longer answer of the trace is asked for at its length."""
    sample_seconds: float = 1.0
    """Between two samples of the pool."""
    static: bool = False
    """The baseline: a batch is filled once, and the next one begins when all of it has ended."""


@dataclass(frozen=True)
class Replayed:
    """A finished simulation."""

    record: Record
    status: Status


class Replay:
    """One run; made anew for each."""

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
        self._scheduler = Scheduler(settings, PageAllocator(pages))
        self._device = device
        self._leaper = leaper
        self._options = options
        self._most_at_once = settings.max_running_requests if options.static else None
        self._record = Record(trace.requests, options.sample_seconds)
        self._arrived = 0
        self._now = 0.0

    def run(self) -> Replayed:
        """Until every request of the trace has ended."""
        while True:
            self._arrive()
            batch = self._scheduler.next_batch(self._now)
            if batch is not None:
                self._step(batch)
            elif self._arrived < len(self._requests):
                self._now = self._requests[self._arrived].arrival_seconds
            else:
                return Replayed(self._record, self._scheduler.status())

    def _arrive(self) -> None:
        """Hands over what has arrived by now; to a static batch only while there is none."""
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

    def _step(self, batch: Batch) -> None:
        began = self._now
        tokens, seconds = self._device.run(batch)
        if seconds:
            self._now += seconds + self._device.host_seconds
        outcomes = self._scheduler.process(batch, tokens, self._now)
        self._record.step(batch, outcomes, began, self._now)
        if self._leaper and batch.mode is ForwardMode.DECODE:
            self._leap(self._leaper)
        if self._now >= self._record.next_sample_seconds:
            self._record.sample(self._scheduler.status(), self._now)

    def _leap(self, leaper: Leaper) -> None:
        """As far as nothing happens: no arrival, no end of an answer, no sample, no shortage."""
        until = self._record.next_sample_seconds
        if self._arrived < len(self._requests) and self._most_at_once is None:
            until = min(until, self._requests[self._arrived].arrival_seconds)
        most = leaper.foresee(until - self._now)
        if self._scheduler.status().queued_requests:
            most = min(most, MOST_BESIDE_QUEUE)
        if most < LEAST_LEAP or not (steps := self._scheduler.leap(most, self._now)):
            return
        leap = leaper.leap(steps)
        self._now += leap.seconds
        self._record.leap(leap, self._now)
