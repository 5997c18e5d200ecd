"""Orders by whose request it is: its routing key (a tenant, a session, an adapter)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sluice_runtime.scheduler.policies.context import PolicyContext
from sluice_runtime.scheduler.request import Request

PICKS: Final = 10
"""Requests of one key that are admitted before the next key has its turn."""


def round_robin(waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
    """Good for several tenants: ten requests of each routing key in turn, however many wait."""
    queues: dict[str, deque[Request]] = {}
    for request in waiting:
        queues.setdefault(request.routing_key, deque()).append(request)
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
    running = Counter(request.routing_key for request in context.running if request.routing_key)
    return sorted(waiting, key=lambda request: -running[request.routing_key])
