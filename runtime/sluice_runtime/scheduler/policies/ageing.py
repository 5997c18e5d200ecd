"""No policy starves anyone: tenants share what is admitted, and one admission in four is for
whoever has waited too long.

Those that waited longer than a bound are taken in the order of the queue, and admission stops at
the first request that does not fit. So each waits at most for the bound and then for four times as
many admissions as there were requests before it. Under overload, when everyone has waited too long,
the policy still decides about the other three.

Requests that were sent back in the middle of an answer have begun before all others, and go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from sluice_runtime.scheduler.policies.by_key import shared_by_tenants
from sluice_runtime.scheduler.policies.context import Policy, PolicyContext, Turn
from sluice_runtime.scheduler.policies.simple import first_come_first_served
from sluice_runtime.scheduler.request import Request

PASSED_OVER_SECONDS: Final = 30.0
"""Longest that a request waits for the policy alone."""
ADMISSIONS_PER_AGED: Final = 4


class AdmissionOrder:
    """One engine's order: its policy, bounded, and what it must know of earlier admissions.

    `resumes_first`: whether requests that were sent back go before all others; if not, the policy
    places them.
    """

    def __init__(self, policy: Policy, seed: int = 0, *, resumes_first: bool = True) -> None:
        self._policy = policy
        self._seed = seed
        self._resumes_first = resumes_first
        self._turn = Turn()
        self._since_aged = 0
        """Admissions since the last that was one of age."""
        self._aged: set[str] = set()
        """Requests that the last order had placed by age."""

    def __call__(
        self, waiting: Iterable[Request], context: Callable[[], PolicyContext]
    ) -> Iterator[Request]:
        """The waiting requests in order. Nothing is looked at before the first is asked for."""
        if self._policy is first_come_first_served and not _several_tenants(waiting):
            # The queue has this order, with those that were sent back in front.
            yield from waiting
            return
        view = replace(context(), turn=self._turn, seed=self._seed)
        resumed: list[Request] = []
        others: list[Request] = []
        for request in waiting:
            first = self._resumes_first and request.output_tokens > 0
            (resumed if first else others).append(request)
        yield from resumed
        yield from self._interleaved(others, view)

    def admitted(self, request: Request) -> None:
        """To be told of every request that leaves the queue for the batch."""
        if request.request_id in self._aged:
            self._since_aged = 0
            return
        key = request.turn_key
        self._turn = Turn(key, self._turn.picks + 1 if key == self._turn.key else 1)
        self._since_aged += 1

    def _interleaved(self, waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
        """The policy's order, with every fourth place for the next of those that are overdue."""
        self._aged.clear()
        bound = context.now - PASSED_OVER_SECONDS
        overdue = deque(r for r in waiting if r.waiting_since_seconds < bound)
        if not overdue:
            yield from self._shared(waiting, context)
            return
        by_policy, placed = iter(self._shared(waiting, context)), set[str]()
        since = self._since_aged
        for _ in waiting:
            while overdue and overdue[0].request_id in placed:
                overdue.popleft()
            if overdue and since >= ADMISSIONS_PER_AGED - 1:
                request, since = overdue.popleft(), 0
                self._aged.add(request.request_id)
            else:
                request = next(r for r in by_policy if r.request_id not in placed)
                since += 1
            placed.add(request.request_id)
            yield request

    def _shared(self, waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
        """The policy's order, in which tenants take turns where several wait. What preempts goes by
        priority first, which a tenant has within bounds."""
        ordered = self._policy(waiting, context)
        if not _several_tenants(waiting):
            return ordered
        by_priority = not self._resumes_first
        return shared_by_tenants(ordered, context.running, by_priority=by_priority)


def _several_tenants(waiting: Iterable[Request]) -> bool:
    return len({request.tenant for request in waiting}) > 1
