"""A request of a light fleet, and the order in which an engine computes the prompts of its queue.

The order is that of the scheduler's policy `slack` for one tenant, by its own parts, in a form that
takes no time while all that waits is in time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from sluice_runtime.scheduler.policies.ageing import PASSED_OVER_SECONDS, OverdueTurns
from sluice_runtime.scheduler.policies.orders import given_up


@dataclass(slots=True, eq=False)
class Work:
    """One request from its arrival to its end."""

    number: int
    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    computed_tokens: int = 0
    moves: int = 0
    """Number of times that an engine has handed it back."""
    first_token_seconds: float = -1.0
    ended_seconds: float = -1.0

    @property
    def reserved_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens // 2


class SlackOrder:
    """Order of one engine's prompts. `token_seconds`: time of a prompt token in the last step with
    prompts."""

    def __init__(self, ttft_seconds: float) -> None:
        self.token_seconds = 0.0
        self._ttft_seconds = ttft_seconds
        self._overdue = OverdueTurns[Work]()

    def of(self, waiting: Sequence[Work], queued_tokens: int, now: float) -> Iterator[Work]:
        """The waiting requests in order; `waiting` has them in order of arrival, and none has
        begun."""
        if now + queued_tokens * self.token_seconds <= self._deadline(waiting[0]):
            return self._overdue.order(tuple(waiting), deque())
        work = (
            (place, work.prompt_tokens * self.token_seconds, self._deadline(work))
            for place, work in enumerate(waiting)
        )
        late = given_up(work, now)
        by_slack = [work for place, work in enumerate(waiting) if place not in late]
        by_slack += [work for place, work in enumerate(waiting) if place in late]
        bound = now - PASSED_OVER_SECONDS
        overdue = deque(takewhile(lambda work: work.arrival_seconds < bound, waiting))
        return self._overdue.order(by_slack, overdue)

    def _deadline(self, work: Work) -> float:
        return work.arrival_seconds + self._ttft_seconds

    def admitted(self, work: Work) -> None:
        """Notes a request whose prompt is begun."""
        self._overdue.admitted(work)
