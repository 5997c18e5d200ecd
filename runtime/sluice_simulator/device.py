"""The device of a replay: for each batch it returns tokens and seconds.

This one has a cost model, and represents keys and values by a row's length. The next token depends
on that length only, so chunks, retractions and steps in flight change no answer. A benchmark has a
device that runs a real model and measures it, on the same virtual clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice_runtime.scheduler.batch import Batch, SampledTokens, StepShape, shape_of

from sluice_simulator.costs import Cost
from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.tokens import END_OF_ANSWER, answer_id, request_number


@dataclass(slots=True)
class Row:
    """A request that has a row; lengths are in tokens."""

    request: int
    """Number of the request in the trace."""
    length: int
    last_length: int
    """Length of the row when the answer's last token is sampled."""
    token: int

    @property
    def steps_left(self) -> int:
        """Number of decode steps before the one that ends the answer; negative once it has
        ended."""
        return self.last_length - self.length - 1

    def next_token(self) -> int:
        return END_OF_ANSWER if self.length >= self.last_length else self.token


class SimulatedRows:
    """The rows of a simulated engine; requests are known by their number in the trace."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self._requests = requests
        self._rows: dict[int, Row] = {}

    def forward(self, batch: Batch) -> SampledTokens:
        """One token for each of the batch's sampling rows."""
        rows, drawn = self._rows, []
        for number in batch.dropped_rows:
            del rows[number]
        for added in batch.added_rows:
            rows[added.row] = self._row(request_number(added.request_id), added.computed_tokens)
        for extend in batch.extend_rows:
            row = rows[extend.row]
            if batch.layers is None or batch.layers.last:
                row.length = extend.start + len(extend.token_ids)
            if extend.samples:
                drawn.append(row.next_token())
        for number in batch.decode_rows:
            row = rows[number]
            row.length += 1
            drawn.append(row.next_token())
        return SampledTokens(batch.step, tuple(drawn))

    def answering(self) -> list[Row]:
        """Rows whose answer has not ended."""
        return [row for row in self._rows.values() if row.length < row.last_length]

    def _row(self, index: int, length: int) -> Row:
        """The row at an index. `length`: the length to give a row whose prompt was computed
        elsewhere."""
        request = self._requests[index]
        last = request.prompt_tokens + request.output_tokens - 1
        return Row(index, length, last, answer_id(index))


class Device(Protocol):
    """Runs batches, one after another; requests are named by their number in the trace."""

    @property
    def host_seconds(self) -> float:
        """CPU time per step; the device waits for it unless another batch is queued."""
        ...

    @property
    def ahead(self) -> int:
        """Number of batches that are launched before an earlier batch's results are known: 1 or
        0."""
        ...

    def run(self, batch: Batch) -> tuple[SampledTokens, float]:
        """The batch's tokens, and the seconds that they took."""
        ...


@dataclass(frozen=True, slots=True)
class Leap:
    """Decode steps taken at once, each a little longer than the previous one, as contexts grow."""

    requests: tuple[int, ...]
    """Numbers of the requests that got a token in every step."""
    steps: int
    first_seconds: float
    """Time from the previous results to the first step's results, of device and host together."""
    last_seconds: float
    busy_seconds: float
    """Time of all steps that the device computes."""

    @property
    def mean_seconds(self) -> float:
        return (self.first_seconds + self.last_seconds) / 2

    @property
    def seconds(self) -> float:
        return self.mean_seconds * self.steps


class Leaper(Protocol):
    """A device whose decode steps can be known in advance."""

    def foresee(self, seconds: float) -> int:
        """Number of decode steps that begin within `seconds` and end no answer."""
        ...

    def leap(self, steps: int) -> Leap:
        """Takes this many steps at once; not more than were foreseen."""
        ...


class SimulatedDevice:
    """Simulated device, whose times follow from lengths by a formula."""

    def __init__(
        self, requests: Sequence[TraceRequest], cost: Cost, *, overlap: bool = False
    ) -> None:
        self._rows = SimulatedRows(requests)
        self._cost = cost
        self.host_seconds = cost.coefficients.host
        self.ahead = int(overlap)

    def run(self, batch: Batch) -> tuple[SampledTokens, float]:
        return self._rows.forward(batch), self.seconds(shape_of(batch))

    def seconds(self, shape: StepShape) -> float:
        """Duration of a step; one that only reports outcomes takes no time."""
        if not (shape.extend_tokens or shape.decode_rows):
            return 0.0
        return self._cost.seconds(shape)

    def foresee(self, seconds: float) -> int:
        rows = self._rows.answering()
        most = min((row.steps_left for row in rows), default=0)
        if most < 1 or seconds == math.inf:
            return max(most, 0)
        # The last step may begin just before the time is over and end later. A loop that plans
        # ahead has planned one more step by then.
        begun = bisect_left(
            range(1, most), seconds, key=lambda steps: self._leap(rows, steps).seconds
        )
        return min(most, begun + 1 + self.ahead)

    def leap(self, steps: int) -> Leap:
        rows = self._rows.answering()
        taken = self._leap(rows, steps)
        for row in rows:
            row.length += steps
        return taken

    def _leap(self, rows: Sequence[Row], steps: int) -> Leap:
        count, context = len(rows), sum([row.length + 1 for row in rows])
        first, last = (
            self.seconds(StepShape(0, 0, count, context + count * step)) for step in (0, steps - 1)
        )
        return Leap(
            requests=tuple([row.request for row in rows]),
            steps=steps,
            first_seconds=self._period(first),
            last_seconds=self._period(last),
            busy_seconds=(first + last) / 2 * steps,
        )

    def _period(self, seconds: float) -> float:
        """Time from one step's results to the next one's."""
        return max(seconds, self.host_seconds) if self.ahead else seconds + self.host_seconds
