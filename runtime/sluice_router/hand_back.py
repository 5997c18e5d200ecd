"""Hand-backs: the router asks for requests that wait while another engine has room, and picks anew.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import aiohttp
import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import LoadReport
from sluice_contract.wire.private_calls import HAND_BACK_PATH, MAX_HAND_BACK

from sluice_router.attempts import EngineCalls
from sluice_router.canary import by_side
from sluice_router.engines import Clock, EngineState, Fleet, condition
from sluice_router.targets import Target

MAX_MOVES: Final = 2
"""Times that one request is asked back."""
MIN_WAIT_SECONDS: Final = 0.5
"""Wait of a request that is asked back: a shorter one may be for the step that runs."""
IDLE_WORK_SECONDS: Final = 0.5
"""Work of queued prompts below which an engine has room for more."""
ANSWER_SECONDS: Final = 5.0
PAUSE_SECONDS: Final = 10.0
"""Pause for an engine that gave nothing back: the room goes to other queues."""

logger: Final = logging.getLogger("sluice.router.hand_back")


@dataclass(slots=True, eq=False)
class Unanswered:
    """A request at an engine, or a pair, that has not sent the first byte of its answer."""

    request_id: str
    target: Target
    since_seconds: float
    moved: int
    model: str | None = None
    waits_for: Role | None = None
    """Role of the engine that was asked to give it back; None: none was."""
    engine_keys: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.engine_keys = self.target.keys


class UnansweredRequests:
    """Requests of one router, in the order in which they were sent."""

    def __init__(self) -> None:
        self._requests: dict[Unanswered, None] = {}

    def __iter__(self) -> Iterator[Unanswered]:
        return iter(self._requests)

    @contextmanager
    def sent(self, request: Unanswered) -> Iterator[None]:
        """Holds a request as unanswered as long as the `with` block lasts."""
        self._requests[request] = None
        try:
            yield
        finally:
            del self._requests[request]


@dataclass(frozen=True)
class HandBackCall:
    """One call to an engine, for requests of this router."""

    queue: EngineState
    """Engine at which the requests wait."""
    engine: EngineState
    """Engine that has the answers: that of the queue, or a decode engine of these requests."""
    requests: tuple[Unanswered, ...]
    """Requests in the order in which they are to leave."""
    most: int
    waits_for: Role


class Look(NamedTuple):
    """Values that a plan goes by, besides the engines and requests."""

    now: float
    stale_seconds: float
    interval_seconds: float
    """Time until the next look."""
    draw: Callable[[], float]
    """Uniform in [0, 1)."""


class _Queue(NamedTuple):
    engine: EngineState
    report: LoadReport
    length: int


def plan_hand_backs(
    engines: Sequence[EngineState],
    requests: Iterable[Unanswered],
    look: Look,
    not_asked: Collection[str] = (),
) -> list[HandBackCall]:
    """Calls to engines, each for some requests. `not_asked`: keys of engines that get none."""
    waiting = _by_engine(requests, look.now)
    calls: list[HandBackCall] = []
    named = set[Unanswered]()
    for role in (Role.MIXED, Role.DECODE, Role.PREFILL) if waiting else ():
        places = [engine for engine in engines if engine.role is role]
        for call in _of_role(role, places, waiting, look, not_asked, named):
            named.update(call.requests)
            calls.append(call)
    return calls


def _by_engine(requests: Iterable[Unanswered], now: float) -> Mapping[str, list[Unanswered]]:
    """Requests that may move, by the key of each engine that has part in them."""
    waiting = defaultdict[str, list[Unanswered]](list)
    for request in requests:
        if request.moved < MAX_MOVES and now - request.since_seconds >= MIN_WAIT_SECONDS:
            for key in request.engine_keys:
                waiting[key].append(request)
    return waiting


def _of_role(
    role: Role,
    places: Sequence[EngineState],
    waiting: Mapping[str, list[Unanswered]],
    look: Look,
    not_asked: Collection[str],
    named: Collection[Unanswered],
) -> Iterator[HandBackCall]:
    queues, rooms = _queues_and_rooms(places, waiting, look)
    others = {key: engine for engine in places if (key := engine.key) in rooms}
    for queue in sorted(queues, key=lambda queue: -queue.length):
        if queue.engine.key in not_asked or not (room := sum(rooms.values())):
            continue
        free = {
            key: min(rooms[key], _prompts_computed(queue, place, look.interval_seconds))
            for key, place in others.items()
            if rooms[key] and place.hands_over == queue.engine.hands_over
        }
        share = math.floor(sum(free.values()) / max(1, queue.report.routers) + look.draw())
        most = min(share, room, sum(free.values()), queue.length, MAX_HAND_BACK)
        served = [others[key] for key in free]
        movable = [r for r in waiting[queue.engine.key] if r not in named]
        movable = [r for r in movable if _is_served_by_one(r, queue.engine, served)]
        most = min(most, len(movable))
        if most > 0:
            _take(rooms, free, most)
            yield from _calls(queue.engine, movable, most, role)


def _queues_and_rooms(
    places: Sequence[EngineState], waiting: Mapping[str, list[Unanswered]], look: Look
) -> tuple[list[_Queue], dict[str, int]]:
    """Engines of a role with a queue in which requests of ours wait, and room by key."""
    queues, rooms = [], dict[str, int]()
    for engine in places:
        if (received := engine.fresh(look.now, look.stale_seconds)) is None:
            continue
        if length := queue_length(received.report):
            if engine.key in waiting:
                queues.append(_Queue(engine, received.report, length))
        elif condition(engine, look.now) == "ready" and (room := room_of(engine, received.report)):
            rooms[engine.key] = room
    return queues, rooms


def queue_length(report: LoadReport) -> int:
    """Requests that wait for a place: of a decode engine for pages."""
    queues = report.figures.queues
    return queues.prealloc if report.role is Role.DECODE else report.figures.queued_requests


def room_of(engine: EngineState, report: LoadReport) -> int:
    """Requests that an engine without a queue could begin now, our own counted live."""
    figures, received = report.figures, engine.received
    if figures.queued_work_seconds > IDLE_WORK_SECONDS:
        return 0
    assert received is not None
    present = max(0, figures.requests - received.own_inflight) + engine.inflight
    rows = report.max_running_requests - present
    pages = figures.kv_pages_available
    used = figures.kv_pages_total - pages
    pages_each = used / figures.running_requests if figures.running_requests else 0
    return max(0, min(rows, math.floor(pages / pages_each) if pages_each else rows))


def _prompts_computed(queue: _Queue, place: EngineState, seconds: float) -> int:
    """How many prompts like those of the queue an engine computes until routers look again: more
    would make a queue there. A rate that it has not measured is taken to be that of the queue's."""
    figures = queue.report.figures
    assert place.received is not None
    own = place.received.report.figures.prefill_tokens_per_second
    rate = own or figures.prefill_tokens_per_second
    if queue.report.role is Role.DECODE or rate is None or not figures.queued_tokens:
        return queue.length
    return max(1, math.floor(seconds * rate * figures.queued_requests / figures.queued_tokens))


def _is_served_by_one(
    request: Unanswered, engine: EngineState, others: Sequence[EngineState]
) -> bool:
    """Whether another engine has what the request needs of this one: its adapter."""
    key = None if request.model is None else engine.adapter_key(request.model)
    if key is None or request.model is None:
        return True
    return any(other.adapter_key(request.model) == key for other in others)


def _take(rooms: dict[str, int], free: Mapping[str, int], count: int) -> None:
    """Takes `count` of the `free` places out of the rooms."""
    for key, places in free.items():
        taken = min(places, count)
        rooms[key] -= taken
        count -= taken


def _calls(
    queue: EngineState, requests: Sequence[Unanswered], most: int, role: Role
) -> Iterator[HandBackCall]:
    """One call, or of those that wait for a prefill engine one to each of their decode engines."""
    by_engine = defaultdict[str, list[Unanswered]](list)
    for request in requests:
        by_engine[queue.key if role is not Role.PREFILL else request.engine_keys[0]].append(request)
    total, left = len(requests), most
    for those in by_engine.values():
        part = min(left, math.ceil(most * len(those) / total))
        left -= part
        if part:
            engine = queue if role is not Role.PREFILL else those[0].target.engine
            yield HandBackCall(queue, engine, tuple(those[:MAX_HAND_BACK]), part, role)


class _Answer(msgspec.Struct):
    requests: int


@dataclass
class HandBacks:
    """Makes the calls of one router."""

    fleet: Fleet
    requests: UnansweredRequests
    calls: EngineCalls
    clock: Clock
    stale_seconds: float
    interval_seconds: float
    draw: Callable[[], float]
    _not_before: dict[str, float] = field(default_factory=dict)
    """Times by key of an engine with a queue: it is asked again once a report is newer."""
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    """Calls under way, by the key of the engine with the queue."""

    def look(self) -> None:
        """Begins the calls that the present reports ask for."""
        engines, now = self.fleet.engines(), self.clock()
        self._running = {key: task for key, task in self._running.items() if not task.done()}
        known = {engine.key: engine for engine in engines}
        self._not_before = {key: at for key, at in self._not_before.items() if key in known}
        not_asked = {key for key, at in self._not_before.items() if not _reported(known[key], at)}
        look = Look(now, self.stale_seconds, self.interval_seconds, self.draw)
        shares = self.fleet.canary
        # A request does not move to an engine of the other revision.
        for group in by_side(shares, engines)[:2] if shares else (engines,):
            not_asked |= self._running.keys()
            for call in plan_hand_backs(group, self.requests, look, not_asked):
                self._not_before[call.queue.key] = now
                self._running[call.queue.key] = asyncio.create_task(self._ask(call))

    async def aclose(self) -> None:
        """Ends the calls."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _ask(self, call: HandBackCall) -> None:
        for request in call.requests:
            request.waits_for = call.waits_for
        body = {
            "ids": [request.request_id for request in call.requests],
            "most": call.most,
            "waits_for": call.waits_for,
        }
        name, left = call.engine.endpoint.name, 0
        try:
            status, text = await self.calls.post(
                call.engine, HAND_BACK_PATH, json.dumps(body).encode(), ANSWER_SECONDS
            )
            left = msgspec.json.decode(text, type=_Answer).requests if status == 200 else 0
            logger.debug("engine %s, asked for %d requests: %d %s", name, call.most, status, text)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            logger.debug("engine %s has not said what it gives back: %r", name, error)
        if not left:
            self._not_before[call.queue.key] = self.clock() + PAUSE_SECONDS


def _reported(engine: EngineState, at: float) -> bool:
    """Whether its last report is from after that moment."""
    return engine.received is not None and engine.received.received_seconds > at
