"""Orders by whose request it is: its tenant, and its routing key (a session, an adapter).

The router has signed the tenant; the routing key is the client's to choose, so it counts within its
tenant only.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sluice_runtime.scheduler.policies.context import PolicyContext
from sluice_runtime.scheduler.request import Request

PICKS: Final = 10
"""Requests of one key that are admitted before the next key has its turn."""


def round_robin(waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
    """Good for several tenants: ten requests of each routing key in turn, however many wait."""
    queues: dict[tuple[str, str], deque[Request]] = {}
    for request in waiting:
        queues.setdefault(request.turn_key, deque()).append(request)
    turn = context.turn
    unfinished = turn.key in queues and turn.picks < PICKS
    # The keys in a circle that begins at the one whose turn it is.
    circle = sorted(queues)
    first = (bisect_left if unfinished else bisect_right)(circle, turn.key)
    circle = circle[first:] + circle[:first]
    left = PICKS - turn.picks if unfinished else PICKS
    while queues:
        for key in circle:
            queue = queues.get(key, ())
            for _ in range(min(left, len(queue))):
                yield queues[key].popleft()
            left = PICKS
            if not queue:
                queues.pop(key, None)


def running_keys_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for adapters and sessions: requests join those of their routing key that run already."""
    if not context.running:
        return waiting
    running = Counter(request.turn_key for request in context.running if request.routing_key)
    return sorted(waiting, key=lambda request: -running[request.turn_key])


def shared_by_tenants(
    ordered: Iterable[Request], running: Iterable[Request], *, by_priority: bool
) -> Iterator[Request]:
    """The same order within each tenant; the next place is for the tenant of which the fewest run,
    counting those before it in the order. `by_priority`: among requests of one priority."""
    queues: dict[str, deque[tuple[int, Request]]] = {}
    for place, request in enumerate(ordered):
        queues.setdefault(request.tenant, deque()).append((place, request))
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
