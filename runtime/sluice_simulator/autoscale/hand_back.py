"""Destinations of requests that an engine hands back before it has begun them.

A router that knows of a queue and of an engine of that role with room has the oldest requests
handed back, and picks again. A request moves twice at most, and only where the queue ahead of it
takes longer than its own prompt at the other engine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.replica import Replica
from sluice_simulator.autoscale.work import Work

MAX_MOVES: Final = 2


class Room:
    """An engine without a queue, and its room, as a router knows it."""

    def __init__(self, replica: Replica, seconds: float) -> None:
        self.replica = replica
        self.rows = replica.free_rows()
        self.tokens = replica.free_tokens()
        self.seconds = math.inf if replica.role is Role.DECODE else seconds
        """Seconds of prompts that it may get until the router looks again: more would be a queue
        there, too."""

    def take(self, work: Work) -> None:
        """Counts a request that goes there."""
        self.rows -= 1
        self.tokens -= work.reserved_tokens
        self.seconds -= self.replica.seconds_of(work)


def rooms_of(replicas: Iterable[Replica], seconds: float) -> list[Room]:
    """Engines with room; it holds until a look so much later."""
    rooms = [Room(replica, seconds) for replica in replicas]
    return [room for room in rooms if room.rows]


def target_of(
    work: Work, source: Replica, ahead_seconds: float, rooms: Sequence[Room], now: float
) -> Room | None:
    """The least loaded engine with room, if its prompts take less time than the queue ahead."""
    best: Room | None = None
    for room in rooms:
        if room.replica is source or room.replica.draining or not room.rows:
            continue
        if work.reserved_tokens > room.tokens or room.seconds <= 0:
            continue
        if best is None or room.replica.load(now) < best.replica.load(now):
            best = room
    if best is None:
        return None
    decode = source.role is Role.DECODE
    return best if decode or ahead_seconds > best.replica.seconds_with(work) else None
