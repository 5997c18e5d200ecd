"""A request of a light fleet, and the order in which an engine computes the prompts of its queue.

The order is the scheduler's own (`policies.orders.least_slack_first` within the bounds of
`policies.ageing`, for one tenant), in a form that takes no time while all that waits is in time.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from sluice_runtime.scheduler.policies.ageing import ADMISSIONS_PER_AGED, PASSED_OVER_SECONDS

if TYPE_CHECKING:
    from sluice_simulator.autoscale.replica import Replica


@dataclass(slots=True, eq=False)
class Work:
    """One request on its way."""

    number: int
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int = 0
    moves: int = 0
    """Number of times that an engine has handed the request back."""
    first_token_seconds: float = -1.0
    ended_seconds: float = -1.0
    prefill: Replica | None = None
    """Where its prompt is computed, of two pools, and where it is answered."""
    decode: Replica | None = None

    @property
    def reserved_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens // 2


class SlackOrder:
    """Of one engine. `token_seconds`: of a prompt token, as the last step with prompts took."""

    def __init__(self, ttft_seconds: float) -> None:
        self.token_seconds = 0.0
        self._ttft_seconds = ttft_seconds
        self._since_aged = 0
        self._aged: Work | None = None

    def of(self, waiting: Sequence[Work], queued_tokens: int, now: float) -> Iterator[Work]:
        """The waiting requests, which lie there in the order of arrival, none of them begun."""
        oldest = waiting[0].arrival_seconds
        if now + queued_tokens * self.token_seconds <= oldest + self._ttft_seconds:
            yield from tuple(waiting)
            return
        late = self._late(waiting, now)
        in_time = [work for work in waiting if work not in late]
        by_slack = chain(in_time, [work for work in waiting if work in late])
        if now - oldest <= PASSED_OVER_SECONDS:
            yield from by_slack
        else:
            yield from self._aged_among(deque(waiting), by_slack, now - PASSED_OVER_SECONDS)

    def admitted(self, work: Work) -> None:
        """Called for every request whose prompt is begun."""
        self._since_aged = 0 if work is self._aged else self._since_aged + 1

    def _late(self, waiting: Sequence[Work], now: float) -> set[Work]:
        """Requests that are given up, so that as many others as possible are in time (Moore and
        Hodgson)."""
        late, kept = set[Work](), list[tuple[float, int]]()
        ends = now
        for place, work in enumerate(waiting):
            seconds = work.prompt_tokens * self.token_seconds
            heapq.heappush(kept, (-seconds, -place))
            ends += seconds
            if ends > work.arrival_seconds + self._ttft_seconds:
                largest, last = heapq.heappop(kept)
                ends += largest
                late.add(waiting[-last])
        return late

    def _aged_among(
        self, waiting: deque[Work], by_slack: Iterator[Work], overdue_before: float
    ) -> Iterator[Work]:
        """Every fourth place is for the oldest, while that is overdue."""
        placed, since = set[Work](), self._since_aged
        for _ in range(len(waiting)):
            while waiting and waiting[0] in placed:
                waiting.popleft()
            self._aged = None
            if since >= ADMISSIONS_PER_AGED - 1 and waiting[0].arrival_seconds < overdue_before:
                work, since = waiting.popleft(), 0
                self._aged = work
            else:
                work, since = next(w for w in by_slack if w not in placed), since + 1
            placed.add(work)
            yield work
