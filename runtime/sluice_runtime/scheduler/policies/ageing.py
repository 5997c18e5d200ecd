"""Keeps every policy from starving requests: tenants share admissions, and one admission in four is
for a request that has waited too long.

Requests that have waited longer than a bound are taken in the order of the queue, and admission
stops at the first that does not fit. So after the bound, a request waits for at most four
admissions for each request before it. Under overload, when all have waited too long, the policy
still decides three admissions in four.

Requests that were sent back in the middle of an answer began before all others, and go first.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, Generic, TypeVar

from sluice_runtime.scheduler.policies.orders import (
    ALIASES,
    POLICIES,
    PREEMPTING,
    Policy,
    PolicyContext,
    Turn,
    first_come_first_served,
)
from sluice_runtime.scheduler.request import Request

PASSED_OVER_SECONDS: Final = 30.0
"""Time that a request waits before the policy no longer decides alone about it."""
ADMISSIONS_PER_AGED: Final = 4


Waiting = TypeVar("Waiting")


class OverdueTurns(Generic[Waiting]):
    """Gives every fourth admission to a request that has waited too long."""

    def __init__(self) -> None:
        self._since = 0
        """Admissions since the last one of an overdue request."""
        self._given: set[Waiting] = set()
        """Requests that the last order placed because they were overdue."""

    def order(self, by_policy: Iterable[Waiting], overdue: deque[Waiting]) -> Iterator[Waiting]:
        """The policy's order, with every fourth place for the next of `overdue`, oldest first."""
        self._given.clear()
        if not overdue:
            yield from by_policy
            return
        rest, placed, since = iter(by_policy), set[Waiting](), self._since
        while True:
            while overdue and overdue[0] in placed:
                overdue.popleft()
            if overdue and since >= ADMISSIONS_PER_AGED - 1:
                request, since = overdue.popleft(), 0
                self._given.add(request)
            else:
                unplaced = next((r for r in rest if r not in placed), None)
                if unplaced is None:
                    return
                request, since = unplaced, since + 1
            placed.add(request)
            yield request

    def admitted(self, request: Waiting) -> bool:
        """Notes a request that leaves the queue; returns whether its place was one for overdue
        requests."""
        if request in self._given:
            self._since = 0
            return True
        self._since += 1
        return False


class AdmissionOrder:
    """One engine's admission order: its policy with bounded waiting, and its memory of earlier
    admissions.

    `resumes_first`: whether retracted requests go before all others; otherwise the policy places
    them.
    """

    def __init__(self, policy: Policy, seed: int = 0, *, resumes_first: bool = True) -> None:
        self._policy = policy
        self._seed = seed
        self._resumes_first = resumes_first
        self._turn = Turn()
        self._overdue = OverdueTurns[Request]()

    def __call__(
        self, waiting: Iterable[Request], context: Callable[[], PolicyContext]
    ) -> Iterator[Request]:
        """The waiting requests in order; sorted only when the first is asked for."""
        if self._policy is first_come_first_served and not _several_tenants(waiting):
            # The queue is in this order already, with retracted requests in front.
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
        """Called for every request that leaves the queue for the batch."""
        if self._overdue.admitted(request):
            return
        key = request.turn_key
        self._turn = Turn(key, self._turn.picks + 1 if key == self._turn.key else 1)

    def _interleaved(self, waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
        """The policy's order, with every fourth place for the next overdue request."""
        bound = context.now - PASSED_OVER_SECONDS
        overdue = deque(r for r in waiting if r.waiting_since_seconds < bound)
        return self._overdue.order(self._shared(waiting, context), overdue)

    def _shared(self, waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
        """The policy's order, in which tenants take turns if several wait. A preempting policy
        orders by priority before tenants; the router bounds each tenant's priority."""
        ordered = self._policy(waiting, context)
        if not _several_tenants(waiting):
            return ordered
        by_priority = not self._resumes_first
        return shared_by_tenants(ordered, context.running, by_priority=by_priority)


def _several_tenants(waiting: Iterable[Request]) -> bool:
    return len({request.tenant for request in waiting}) > 1


def shared_by_tenants(
    ordered: Iterable[Request], running: Iterable[Request], *, by_priority: bool
) -> Iterator[Request]:
    """Lets tenants take turns, each in its own order: the next place is for the tenant with the
    fewest running and already placed requests. `by_priority`: only among requests of equal
    priority.

    The router has signed the tenant, so clients cannot choose it.
    """
    queues: dict[str, deque[tuple[int, Request]]] = {}
    for place, request in enumerate(ordered):
        queues.setdefault(request.tenant, deque()).append((place, request))
    if len(queues) == 1:
        yield from (request for queue in queues.values() for _, request in queue)
        return
    counts = Counter(request.tenant for request in running)
    heads = [_share_rank(queue[0], counts, by_priority=by_priority) for queue in queues.values()]
    heapq.heapify(heads)
    while heads:
        *_, tenant = heads[0]
        _, request = queues[tenant].popleft()
        yield request
        counts[tenant] += 1
        if queue := queues[tenant]:
            heapq.heapreplace(heads, _share_rank(queue[0], counts, by_priority=by_priority))
        else:
            heapq.heappop(heads)


def _share_rank(
    head: tuple[int, Request], counts: Mapping[str, int], *, by_priority: bool
) -> tuple[int, int, int, str]:
    place, request = head
    priority = request.priority if by_priority else 0
    return -priority, counts[request.tenant], place, request.tenant


def admission_order(policy: str, seed: int = 0) -> AdmissionOrder:
    """A policy with bounded waiting: the order that an engine uses."""
    order = POLICIES[ALIASES.get(policy, policy)]
    return AdmissionOrder(order, seed, resumes_first=policy not in PREEMPTING)
