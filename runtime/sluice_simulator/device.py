"""The device of a replay: for each batch it returns tokens and seconds.

The device here uses a cost model. A benchmark has another device, which runs and measures a real
model on the same virtual clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sluice_runtime.scheduler.batch import Batch, SampledTokens, StepShape, shape_of

from sluice_simulator.costs import Cost
from sluice_simulator.rows import Row, SimulatedRows
from sluice_simulator.traces.request import TraceRequest


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
