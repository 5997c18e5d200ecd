"""Record of a simulation: a timeline for each request, the gaps between tokens, and samples of the
KV pool.

It only collects; it makes no decision and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import TokenDelta

from sluice_simulator.device import Leap
from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.tokens import request_number


@dataclass(slots=True)
class Timeline:
    """Times of one request on the trace's clock; None until the event happens."""

    request: TraceRequest
    started_seconds: float | None = None
    first_token_seconds: float | None = None
    last_token_seconds: float = 0.0
    finished_seconds: float | None = None
    tokens: int = 0
    cached_tokens: int = 0
    error: str | None = None


@dataclass(slots=True)
class Weighted:
    """Values with counts; consecutive equal values share an entry."""

    values: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def add(self, value: float, count: int = 1) -> None:
        if self.values and self.values[-1] == value:
            self.counts[-1] += count
        else:
            self.values.append(value)
            self.counts.append(count)


@dataclass(frozen=True, slots=True)
class EngineMoment:
    """State of the engine at one moment."""

    seconds: float
    usage_ratio: float
    running: int
    queued: int


class Record:
    """Record of a run, extended after every step, or after a leap over several steps."""

    def __init__(self, requests: Sequence[TraceRequest], sample_seconds: float) -> None:
        self.timelines = [Timeline(request) for request in requests]
        self.gaps = Weighted()
        self.samples: list[EngineMoment] = []
        self.busy_seconds = 0.0
        self.ended_seconds = 0.0
        self._ended_requests = 0
        self._sample_seconds = sample_seconds
        self._next_sample = 0.0

    def step(
        self,
        batch: Batch,
        outcomes: Iterable[TokenDelta],
        planned: float,
        seconds: float,
        ended: float,
    ) -> None:
        """Records a step with its times of planning and end; it took the device `seconds`."""
        if batch.added_rows:
            self._start(batch, planned)
        self.tokens(outcomes, ended)
        self.busy_seconds += seconds
        self.ended_seconds = ended

    def tokens(self, outcomes: Iterable[TokenDelta], ended: float) -> None:
        """Records tokens and ends of answers that reach clients at `ended`."""
        for outcome in outcomes:
            timeline = self.timelines[int(outcome.request_id)]
            if outcome.token_ids:
                self._token(timeline, ended)
            if outcome.finish_reason:
                timeline.finished_seconds = ended
                timeline.error = outcome.error
                self._ended_requests += 1

    def leap(self, leap: Leap, ended: float) -> None:
        """Records a leap over decode steps, the last of which ended at `ended`."""
        first_token = ended - leap.seconds + leap.first_seconds
        for index in leap.requests:
            timeline = self.timelines[index]
            self.gaps.add(first_token - timeline.last_token_seconds)
            timeline.last_token_seconds = ended
            timeline.tokens += leap.steps
        if leap.steps > 1:
            rest = (leap.seconds - leap.first_seconds) / (leap.steps - 1)
            self.gaps.add(rest, len(leap.requests) * (leap.steps - 1))
        self.busy_seconds += leap.busy_seconds
        self.ended_seconds = ended

    def open_requests(self, arrived: int) -> int:
        """Number of the first `arrived` requests that have not ended."""
        return arrived - self._ended_requests

    @property
    def next_sample_seconds(self) -> float:
        return self._next_sample

    def sample(self, status: Status, now: float) -> None:
        """Samples the state at `now`; the next sample is due an interval later."""
        self.samples.append(
            EngineMoment(now, status.usage_ratio, status.running_requests, status.queued_requests)
        )
        self._next_sample = now + self._sample_seconds

    def _start(self, batch: Batch, now: float) -> None:
        starts = {extend.row: extend.start for extend in batch.extend_rows}
        for added in batch.added_rows:
            timeline = self.timelines[request_number(added.request_id)]
            if timeline.started_seconds is None:
                timeline.started_seconds = now
                timeline.cached_tokens = starts.get(added.row, 0)

    def _token(self, timeline: Timeline, now: float) -> None:
        if timeline.first_token_seconds is None:
            timeline.first_token_seconds = now
        else:
            self.gaps.add(now - timeline.last_token_seconds)
        timeline.last_token_seconds = now
        timeline.tokens += 1
