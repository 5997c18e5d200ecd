"""A decode engine's rooms: prompts that prefill engines compute for it.

A request gets pages, its prefill engine is asked for the prompt, and its pages are read while they
are announced. It decodes when the prefill engine attests that it held the pages. The role belongs
to the engine's loop, which calls it between steps; nothing here waits. Pages that a read may still
write get no other owner, even after the request's end. Knows neither sockets nor memory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import HandoverQueues
from sluice_contract.wire.spans import Attributes, Record, record_part

from sluice_runtime.handover.arrival import Arrival, ArrivalError
from sluice_runtime.handover.leased_reads import LeasedReads
from sluice_runtime.handover.messages import (
    Bootstrap,
    Cancel,
    Chunk,
    ChunkRead,
    Failed,
    Finished,
    Received,
)
from sluice_runtime.handover.ports import (
    DecodePort,
    FromPrefill,
    Grammars,
    PagePort,
    PagesRead,
    RoomLost,
)
from sluice_runtime.handover.rooms import HandoverLimits, is_probe, prompt_hash
from sluice_runtime.process.spans import TRANSFER
from sluice_runtime.scheduler.batch import FinishedChunk, Preallocated
from sluice_runtime.scheduler.hand_back import HANDED_BACK
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import (
    Generate,
    HandBack,
    HandoverLoad,
    PrefillEngine,
    Refusal,
    TokenDelta,
)

_log = logging.getLogger("sluice.handover")
_ONLY_DECODE: Final = "this engine only decodes; send requests to the service's router"
_REQUEST_AT_FAULT: Final = frozenset({"invalid", "uncompiled", "out_of_memory"})
"""Refusals by a prefill engine that are the request's fault, so that the error need not name the
engine."""
_TOLD: Final[Mapping[Refusal, Refusal]] = {
    "invalid": "invalid",
    "uncompiled": "uncompiled",
    "out_of_memory": "out_of_memory",
    "overloaded": "overloaded",
    "unavailable": "prefill_unavailable",
}
"""Refusal for the client, by the prefill engine's refusal. All other refusals count as failures of
the prefill engine."""


@dataclass(frozen=True, slots=True)
class DecodePorts:
    """Ports of the role to prefill engines, to their pages, and to random numbers."""

    prefill: DecodePort
    pages: PagePort
    draw_room: Callable[[], int]
    """Draws a room's number: 63 random bits."""


@dataclass(slots=True, eq=False)
class _Room:
    number: int
    request: Generate
    prefill: PrefillEngine
    page_ids: tuple[int, ...]
    prompt_hash: str
    arrival: Arrival
    opened_seconds: float
    deadline: float
    received: bool = False
    """Whether `Received` was sent."""
    copies: dict[int, int] = field(default_factory=dict)
    """End of the chunk by number of its read, for chunks whose `ChunkRead` the prefill engine
    awaits."""


class DecodeRole:
    """Decodes what prefill engines computed."""

    def __init__(
        self,
        scheduler: Scheduler,
        grammars: Grammars,
        page_size: int,
        ports: DecodePorts,
        limits: HandoverLimits | None = None,
        record: Record | None = None,
    ) -> None:
        """`record`: takes spans."""
        self._record = record
        self._scheduler = scheduler
        self._grammars = grammars
        self._page_size = page_size
        self._ports = ports
        self._limits = limits or HandoverLimits()
        self._awaiting: dict[str, Generate] = {}
        """Requests without pages."""
        self._rooms: dict[int, _Room] = {}
        self._requests: dict[str, _Room] = {}
        self._reads = LeasedReads(scheduler, ports.pages)
        self._failures: Counter[str] = Counter()
        self._earlier_retractions = scheduler.status().retractions
        self._next_check = 0.0

    @property
    def busy(self) -> bool:
        """Whether the role has requests in a queue, or reads in progress."""
        return bool(self._awaiting or self._rooms or len(self._reads))

    def refusal(self, message: Generate) -> str | None:
        """Why a request of the API process is refused; None if it is accepted."""
        return None if message.prefill is not None or is_probe(message) else _ONLY_DECODE

    def hand_back(self, message: HandBack, now: float) -> int:
        """Hands back requests without pages, or without an announced part of their prompt; returns
        how many."""
        if message.waits_for is Role.DECODE:
            return self._scheduler.hand_back(message.requests, message.most, now)
        if message.waits_for is not Role.PREFILL:
            return 0
        groups = (list(map(self._requests.get, ids)) for ids in message.requests)
        chosen = [g for rooms in groups if (g := _not_begun(rooms))][: message.most]
        for room in dict.fromkeys(chain.from_iterable(chosen)):
            self._leave(room, HANDED_BACK)
            self._scheduler.fail(room.request.request_id, HANDED_BACK, "handed_back")
        return len(chosen)

    def drain(self, lame_duck_seconds: float) -> None:
        """Does nothing: accepted requests finish anyway."""

    def give_up(self, error: str) -> None:
        """Does nothing: the API process ends its requests."""

    def abort(self, request_id: str) -> None:
        """Leaves the request's room and informs its prefill engine. The scheduler ends the request;
        unknown ids are ignored."""
        self._awaiting.pop(request_id, None)
        if room := self._requests.get(request_id):
            self._failures["Aborted"] += 1
            self._leave(room, "the request was aborted")

    def receive(self, now: float) -> None:
        """Processes prefill engines' messages and finished reads; ends rooms past their
        deadline."""
        for number, result in self._reads.finished():
            if room := self._rooms.get(number):
                self._read(room, result, now)
        for event in self._ports.prefill.events():
            if room := self._rooms.get(event.room):
                self._heard(room, event, now)
        if now >= self._next_check:
            self._next_check = now + self._limits.check_seconds
            self._expire(now)

    def admit(self, message: Generate) -> None:
        """Accepts a request whose grammar, if any, is compiled."""
        if message.prefill is None:
            self._scheduler.add(message)
        else:
            self._awaiting[message.request_id] = message
            self._scheduler.add_remote(message)

    def plan(self, now: float) -> None:
        """Opens rooms for requests that get pages now."""
        for given in self._scheduler.next_preallocations(now):
            self._open(self._awaiting.pop(given.request_id), given, now)

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        """Does nothing: chunks that are computed here are announced to no other engine."""

    def takes(self, delta: TokenDelta, now: float) -> bool:
        """Returns False: all results are for the API process."""
        if delta.finish_reason is not None:
            self._awaiting.pop(delta.request_id, None)
        return False

    def queues(self, status: Status) -> HandoverQueues:
        return HandoverQueues(prealloc=status.awaiting_pages, transfer=len(self._rooms))

    def load(self, status: Status) -> HandoverLoad:
        counts = self._reads.counts()
        return HandoverLoad(
            recomputed=status.retractions - self._earlier_retractions,
            read_bytes=counts.read_bytes,
            read_seconds=counts.read_seconds,
            reads=counts.reads,
            failures=dict(self._failures),
        )

    def _open(self, message: Generate, given: Preallocated, now: float) -> None:
        assert message.prefill is not None
        number = self._ports.draw_room()
        assert number not in self._rooms, "a room was drawn twice"
        prompt = message.token_ids
        room = _Room(
            number=number,
            request=message,
            prefill=message.prefill,
            page_ids=given.page_ids,
            prompt_hash=prompt_hash(prompt),
            arrival=Arrival(len(prompt), given.cached_tokens, self._page_size),
            opened_seconds=now,
            deadline=self._last_second(message),
        )
        self._rooms[number] = self._requests[message.request_id] = room
        asked = Bootstrap(
            number,
            request=msgspec.structs.replace(message, prefill=None),
            held_tokens=given.cached_tokens,
            prompt_hash=room.prompt_hash,
            deadline_seconds=max(0.0, room.deadline - now),
        )
        self._ports.prefill.open(message.prefill, asked)

    def _heard(self, room: _Room, event: FromPrefill | RoomLost, now: float) -> None:
        if isinstance(event, RoomLost):
            refusal: Refusal = "prefill_unavailable" if event.unasked else "prefill_failed"
            self._fail(room, now, "RoomLost", event.error, refusal, names_engine=True)
            return
        message = event.message
        try:
            if isinstance(message, Chunk):
                room.arrival.announced(event)
            elif isinstance(message, Finished):
                self._first_token(room, message, now)
            elif isinstance(message, Failed):
                self._refused(room, message, now)
                return
            else:
                self._attested(room, now)
                return
            self._go_on(room, now)
        except ArrivalError as error:
            self._fail(room, now, "Protocol", str(error))

    def _go_on(self, room: _Room, now: float) -> None:
        """Starts all reads that are possible; once the whole prompt is here, sends `Received`."""
        while (announced := room.arrival.next_read()) is not None:
            self._submit(room, announced)
        room.arrival.check_covered()
        if room.arrival.complete and not room.received:
            room.received = True
            room.deadline = min(self._last_second(room.request), now + self._limits.attest_seconds)
            self._ports.prefill.send(Received(room.number))

    def _submit(self, room: _Room, announced: FromPrefill) -> None:
        chunk = announced.message
        assert isinstance(chunk, Chunk)
        first, last = chunk.start // self._page_size, pages_for(chunk.end, self._page_size)
        pages = chunk.page_ids, room.page_ids[first:last]
        number = self._reads.submit(
            room.request.request_id, room.number, announced.memory, pages, chunk.checksum
        )
        room.arrival.reads.add(number)
        if announced.memory.staged:
            room.copies[number] = chunk.end

    def _read(self, room: _Room, result: PagesRead, now: float) -> None:
        room.arrival.reads.remove(result.number)
        if result.error is not None:
            reason = "Quarantined" if result.may_still_land else "ReadFailed"
            self._fail(room, now, reason, result.error)
            return
        try:
            self._go_on(room, now)
        except ArrivalError as error:
            self._fail(room, now, "Protocol", str(error))
            return
        end = room.copies.pop(result.number, None)
        if end is not None and not room.received:
            self._ports.prefill.send(ChunkRead(room.number, end))

    def _first_token(self, room: _Room, finished: Finished, now: float) -> None:
        asked = room.request
        room.arrival.token(finished, room.prompt_hash)
        if asked.max_tokens and asked.logprobs >= 0 and finished.logprob is None:
            raise ArrivalError("the first token has no logprob")
        seconds = self._limits.transfer_seconds
        room.deadline = min(self._last_second(asked), now + seconds)

    def _attested(self, room: _Room, now: float) -> None:
        """Lets the request decode: its prompt is here and valid."""
        finished = room.arrival.finished
        if not room.received or finished is None:
            raise ArrivalError("pages were attested before they were received")
        self._close(room)
        self._log_done(room, now)
        request_id = room.request.request_id
        self._grammars.resumed(request_id, finished.token_id)
        first = finished.token_id, finished.logprob, finished.prompt_logprobs
        started_seconds = min(now, room.opened_seconds + max(0.0, finished.queue_seconds))
        self._scheduler.resume(request_id, first, finished.cached_tokens, started_seconds)

    def _log_done(self, room: _Room, now: float) -> None:
        asked = room.request
        tokens, prefill = len(asked.token_ids), room.prefill.name
        told: Attributes = {"sluice.prompt_tokens": tokens, "sluice.prefill": prefill}
        record_part(self._record, asked.traceparent, TRANSFER, (asked.arrival_seconds, now), told)
        _log.info(
            "hand-over of %s done: %d tokens from prefill engine %s, %.3f s after arrival",
            asked.label,
            len(asked.token_ids),
            room.prefill.name,
            now - asked.arrival_seconds,
        )

    def _refused(self, room: _Room, failed: Failed, now: float) -> None:
        refusal = _TOLD.get(failed.refusal, "prefill_failed")
        self._fail(room, now, "Refused", failed.error, refusal, tell=False)

    def _expire(self, now: float) -> None:
        for room in [room for room in self._rooms.values() if room.deadline <= now]:
            self._fail(room, now, "TimedOut", f"{_awaited(room)} did not come in time")
        for message in [m for m in self._awaiting.values() if self._last_second(m) <= now]:
            del self._awaiting[message.request_id]
            self._failures["NoPages"] += 1
            error = f"no pages came free in {self._limits.total_seconds:g} s"
            self._scheduler.fail(message.request_id, error, "overloaded")

    def _fail(
        self,
        room: _Room,
        now: float,
        reason: str,
        error: str,
        refusal: Refusal = "prefill_failed",
        *,
        tell: bool = True,
        names_engine: bool = False,
    ) -> None:
        """Ends room and request with an error. `tell`: whether the prefill engine has to be told.
        `names_engine`: whether `error` names the prefill engine already."""
        self._failures[reason] += 1
        self._leave(room, error if tell else None)
        if not names_engine and refusal not in _REQUEST_AT_FAULT:
            engine = room.prefill.name or f"{room.prefill.host}:{room.prefill.port}"
            error = f"prefill engine {engine}: {error}"
        seconds = now - room.request.arrival_seconds
        _log.warning(
            "hand-over of %s failed %.3f s after arrival: %s", room.request.label, seconds, error
        )
        self._scheduler.fail(room.request.request_id, error, refusal)

    def _leave(self, room: _Room, error: str | None) -> None:
        """Closes the room. `error`: reason to send to the prefill engine; None if it knows
        already."""
        if error is not None:
            self._ports.prefill.send(Cancel(room.number, error))
        self._close(room)
        self._reads.cancel(room.number)

    def _close(self, room: _Room) -> None:
        del self._rooms[room.number], self._requests[room.request.request_id]
        self._ports.prefill.close(room.number)

    def _last_second(self, message: Generate) -> float:
        return message.arrival_seconds + self._limits.total_seconds


def _not_begun(rooms: Sequence[_Room | None]) -> list[_Room]:
    """All of `rooms`, if every one exists and none has an announced part of its prompt; else an
    empty list."""
    there = [room for room in rooms if room is not None and not room.arrival.has_begun]
    return there if len(there) == len(rooms) else []


def _awaited(room: _Room) -> str:
    """Text for messages: what a room's request waits for."""
    if room.received:
        return "the attestation"
    return "the prompt" if room.arrival.finished is None else "the pages of the prompt"
