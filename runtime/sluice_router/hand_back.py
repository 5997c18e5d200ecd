"""No request waits at one engine while another has room: the router asks for it back, and picks
anew.

`plan_hand_backs` is pure. It looks at the last load reports, and at the requests of this router of
which no byte has come. An engine gives back only what it has not begun, which it alone knows: such
a request ends there with a code of its own, and goes elsewhere like one that was never sent.
Every router takes its share of the room, so that together they do not fill one engine's queue.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import aiohttp
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import LoadReport
from sluice_contract.wire.private_calls import HAND_BACK_PATH, MAX_HAND_BACK

from sluice_router.engine_calls import EngineCalls
from sluice_router.engines import Clock, EngineState, Fleet, condition
from sluice_router.targets import Target

MAX_MOVES: Final = 2
"""How often one request is asked back."""
MIN_WAIT_SECONDS: Final = 0.5
"""Below it a request may only wait for the step that runs."""
LOOK_SECONDS: Final = 1.0
"""Between two load reports of an engine."""
IDLE_WORK_SECONDS: Final = 0.5
"""An engine whose queued prompts take less has room for more."""
ANSWER_SECONDS: Final = 5.0

logger: Final = logging.getLogger("sluice.router.hand_back")


@dataclass(slots=True, eq=False)
class Unanswered:
    """A request at an engine, or a pair, that has not sent the first byte of its answer."""

    request_id: str
    target: Target
    since_seconds: float
    moved: int
    model: str | None = None
    waits_for: Role = Role.MIXED
    """Of the engine that was asked to give it back last."""

    def waits_at(self, engine: EngineState) -> bool:
        """Whether the engine has part in it."""
        return engine.key in self.target.keys


class UnansweredRequests:
    """Those of one router, in the order in which they were sent."""

    def __init__(self) -> None:
        self._requests: dict[Unanswered, None] = {}

    def __iter__(self) -> Iterator[Unanswered]:
        return iter(self._requests)

    @contextmanager
    def sent(self, request: Unanswered) -> Iterator[Unanswered]:
        """It is unanswered as long as the `with` block lasts."""
        self._requests[request] = None
        try:
            yield request
        finally:
            del self._requests[request]


@dataclass(frozen=True)
class HandBack:
    """One call to an engine, for requests of this router."""

    engine: EngineState
    requests: tuple[Unanswered, ...]
    """In the order in which they are to leave."""
    most: int
    waits_for: Role


class _Queue(NamedTuple):
    engine: EngineState
    report: LoadReport
    length: int


def plan_hand_backs(
    engines: Sequence[EngineState],
    requests: Iterable[Unanswered],
    now: float,
    *,
    stale_seconds: float,
    draw: Callable[[], float],
) -> list[HandBack]:
    """Which engines are asked for how many requests; `draw` is uniform in [0, 1)."""
    waiting = [r for r in requests if r.moved < MAX_MOVES]
    waiting = [r for r in waiting if now - r.since_seconds >= MIN_WAIT_SECONDS]
    return (
        [
            call
            for role in (Role.MIXED, Role.DECODE, Role.PREFILL)
            for call in _of_role(role, engines, waiting, now, stale_seconds, draw)
        ]
        if waiting
        else []
    )


def _of_role(
    role: Role,
    engines: Sequence[EngineState],
    waiting: Sequence[Unanswered],
    now: float,
    stale_seconds: float,
    draw: Callable[[], float],
) -> Iterator[HandBack]:
    queues, rooms = [], dict[str, int]()
    places = [engine for engine in engines if engine.role is role]
    for engine in places:
        if (received := engine.fresh(now, stale_seconds)) is None:
            continue
        if length := queue_length(received.report):
            queues.append(_Queue(engine, received.report, length))
        elif condition(engine, now) == "ready" and (room := room_of(engine, received.report)):
            rooms[engine.key] = room
    for queue in sorted(queues, key=lambda queue: -queue.length):
        others = [engine for engine in places if rooms.get(engine.key)]
        free = {o.key: min(rooms[o.key], _prompts_computed(queue, o)) for o in others}
        movable = [r for r in waiting if r.waits_at(queue.engine)]
        movable = [r for r in movable if _is_served_by_one(r, queue.engine, others)]
        room = sum(free.values())
        share = math.floor(room / max(1, queue.report.routers) + draw())
        most = min(share, room, queue.length, len(movable))
        if most <= 0:
            continue
        for key in _taken(free, most):
            rooms[key] -= 1
        yield from _calls(queue.engine, movable, most, role)


def queue_length(report: LoadReport) -> int:
    """Requests that wait for a place: of a decode engine for pages."""
    queues = report.queues
    return queues.prealloc if report.role is Role.DECODE else report.queued_requests


def room_of(engine: EngineState, report: LoadReport) -> int:
    """Requests that an engine without a queue could begin now, our own counted live."""
    if report.queued_work_seconds > IDLE_WORK_SECONDS:
        return 0
    received = engine.received
    assert received is not None
    there = max(0, report.requests - received.own_inflight) + engine.inflight
    rows = report.max_running_requests - there
    pages = report.kv_pages_free + report.kv_pages_evictable
    used = report.kv_pages_total - pages
    each = used / report.running_requests if report.running_requests else 0
    return max(0, min(rows, math.floor(pages / each) if each else rows))


def _prompts_computed(queue: _Queue, place: EngineState) -> int:
    """How many prompts like those of the queue an engine computes until routers look again: more
    would make a queue there. A rate that it has not measured is taken to be that of the queue's."""
    report = queue.report
    assert place.received is not None
    rate = place.received.report.prefill_tokens_per_second or report.prefill_tokens_per_second
    if report.role is Role.DECODE or rate is None or not report.queued_tokens:
        return queue.length
    return max(1, math.floor(LOOK_SECONDS * rate * report.queued_requests / report.queued_tokens))


def _is_served_by_one(
    request: Unanswered, engine: EngineState, others: Sequence[EngineState]
) -> bool:
    """Whether another engine has what the request needs of this one: its adapter."""
    key = None if request.model is None else engine.adapter_key(request.model)
    if key is None or request.model is None:
        return True
    return any(other.adapter_key(request.model) == key for other in others)


def _taken(free: dict[str, int], count: int) -> Iterator[str]:
    """Engines of which a place is taken, those with most of them first."""
    for _ in range(count):
        key = max(free, key=lambda key: free[key])
        free[key] -= 1
        yield key


def _calls(
    engine: EngineState, requests: Sequence[Unanswered], most: int, role: Role
) -> Iterator[HandBack]:
    """One call, or of those that wait for a prefill engine one to each of their decode engines."""
    if role is not Role.PREFILL:
        yield HandBack(engine, tuple(requests[:MAX_HAND_BACK]), min(most, MAX_HAND_BACK), role)
        return
    by_engine = defaultdict[str, list[Unanswered]](list)
    for request in requests[:most]:
        by_engine[request.target.engine.key].append(request)
    for those in by_engine.values():
        chosen = tuple(those[:MAX_HAND_BACK])
        yield HandBack(those[0].target.engine, chosen, len(chosen), role)


@dataclass
class HandBacks:
    """Makes the calls of one router."""

    fleet: Fleet
    requests: UnansweredRequests
    calls: EngineCalls
    clock: Clock
    stale_seconds: float
    draw: Callable[[], float]
    _asked: dict[str, float] = field(default_factory=dict)
    """When each engine was asked last: again only once a later report is there."""
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    def look(self) -> None:
        """Begins the calls that the present reports ask for."""
        engines, now = self.fleet.engines(), self.clock()
        known = {engine.key for engine in engines}
        self._asked = {key: at for key, at in self._asked.items() if key in known}
        fresh = [engine for engine in engines if not self._is_asked(engine)]
        calls = plan_hand_backs(
            fresh, self.requests, now, stale_seconds=self.stale_seconds, draw=self.draw
        )
        for call in calls:
            self._asked[call.engine.key] = now
            task = asyncio.create_task(self._ask(call))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def aclose(self) -> None:
        """Ends the calls."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _is_asked(self, engine: EngineState) -> bool:
        asked, received = self._asked.get(engine.key), engine.received
        return asked is not None and (received is None or received.received_seconds <= asked)

    async def _ask(self, call: HandBack) -> None:
        for request in call.requests:
            request.waits_for = call.waits_for
        body = {
            "ids": [request.request_id for request in call.requests],
            "most": call.most,
            "waits_for": call.waits_for,
        }
        name = call.engine.endpoint.name
        try:
            status, text = await self.calls.post(
                call.engine, HAND_BACK_PATH, json.dumps(body).encode(), ANSWER_SECONDS
            )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            logger.debug("engine %s has not said what it gives back: %r", name, error)
            return
        level = logging.DEBUG if status == 200 else logging.WARNING
        logger.log(level, "engine %s, asked for %d requests: %s", name, call.most, text)
