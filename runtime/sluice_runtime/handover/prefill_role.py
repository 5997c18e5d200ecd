"""A prefill engine's rooms: prompts that decode engines ask for, from request to attestation.

Belongs to the engine's loop, which calls it between steps; nothing here waits. A room's pages are
leased from the moment when its request may take pages until the room ends: received, cancelled,
lost or too late. Knows neither sockets nor how pages are read.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

import msgspec
from sluice_contract.wire.load import HandoverQueues
from sluice_contract.wire.spans import Record, record_part

from sluice_runtime.handover.messages import (
    Bootstrap,
    Cancel,
    ChunkRead,
    Failed,
    Finished,
)
from sluice_runtime.handover.ports import (
    ComputedPages,
    FromDecode,
    Grammars,
    PagePublisher,
    PeerLost,
    PrefillPort,
)
from sluice_runtime.handover.rooms import HandoverLimits, PromptHash, is_probe, prompt_hash
from sluice_runtime.process.spans import PREFILL
from sluice_runtime.scheduler.batch import FinishedChunk
from sluice_runtime.scheduler.limits import (
    fits_empty_pool,
    least_answer,
    queue_full,
    refusal,
    tenant_requests,
)
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import Generate, HandBack, HandoverLoad, Refusal, TokenDelta

_log = logging.getLogger("sluice.handover")
_ONLY_PREFILL: Final = (
    "this engine computes prompts for decode engines; send requests to the service's router"
)

_NO_ANSWER: Final = 0
"""Token that is announced for a prompt that fills the context, which is only scored and not
continued."""


@dataclass(slots=True, eq=False)
class _Room:
    number: int
    peer: int
    request_id: str
    """Request id within this engine."""
    label: str
    """Name of the request in logs."""
    prompt_tokens: int
    held_tokens: int
    deadline: float
    computed: PromptHash = field(default_factory=PromptHash)
    """Hash of the tokens computed, or found cached, so far."""
    leased: bool = False
    """Whether the scheduler leases the room's pages."""
    first_token: TokenDelta | None = None
    """First token, if it is computed but earlier chunks are not announced yet."""
    finished: bool = False
    """Whether the first token was sent."""
    traceparent: str = ""
    opened_seconds: float = 0.0
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class PrefillPorts:
    """Ports of the role to decode engines, and to the publisher of pages."""

    decode: PrefillPort
    pages: PagePublisher


class PrefillRole:
    """Computes prompts for decode engines."""

    def __init__(
        self,
        scheduler: Scheduler,
        grammars: Grammars,
        settings: SchedulerSettings,
        ports: PrefillPorts,
        limits: HandoverLimits | None = None,
        record: Record | None = None,
    ) -> None:
        """`record`: takes spans."""
        self._record = record
        self._scheduler = scheduler
        self._grammars = grammars
        self._settings = settings
        self._port = ports.decode
        self._publisher = ports.pages
        self._limits = limits or HandoverLimits()
        self._rooms: dict[int, _Room] = {}
        self._requests: dict[str, _Room] = {}
        """Rooms whose request has not ended, also when they have."""
        self._numbers = count()
        self._failures: Counter[str] = Counter()
        self._lame_duck_seconds: float | None = None
        """Seconds of the lame-duck time; set when the role is asked to leave."""
        self._refuses_from = inf
        """When no more rooms are opened."""
        self._draining = False
        """Whether that time has come."""
        self._next_check = 0.0

    @property
    def busy(self) -> bool:
        """Whether a decode engine still needs this one."""
        return bool(self._rooms)

    def refusal(self, message: Generate) -> str | None:
        """Why a request of the API process is refused; None if it is accepted."""
        return None if is_probe(message) else _ONLY_PREFILL

    def hand_back(self, message: HandBack, now: float) -> int:
        """Returns 0: decode engines hand back the requests that wait here."""
        return 0

    def drain(self, lame_duck_seconds: float) -> None:
        """Finishes open rooms, and opens new ones only for a short time: routers that do not know
        yet may still name this engine."""
        self._lame_duck_seconds = lame_duck_seconds

    def give_up(self, error: str) -> None:
        """Ends every room; another prefill engine may serve the request."""
        for room in list(self._rooms.values()):
            self._fail(room, "RoleChanged", error, "unavailable")

    def abort(self, request_id: str) -> None:
        """Does nothing: the API process has no rooms to abort."""

    def receive(self, now: float) -> None:
        """Processes decode engines' messages, and ends rooms past their deadline."""
        if self._lame_duck_seconds is not None and self._refuses_from == inf:
            self._refuses_from = now + self._lame_duck_seconds
        self._draining = now >= self._refuses_from
        self._announce()
        for room in [room for room in self._rooms.values() if room.first_token]:
            self._finish_announced(room, now)
        for event in self._port.events():
            if isinstance(event, PeerLost):
                self._lost(event.peer)
            else:
                self._received(event, now)
        if now >= self._next_check:
            self._next_check = now + self._limits.check_seconds
            self._expire(now)

    def admit(self, message: Generate) -> None:
        """Accepts a request whose grammar, if any, is compiled."""
        room = self._requests.get(message.request_id)
        if room is None:
            self._scheduler.add(message)
        elif room.number in self._rooms:
            room.leased = True
            self._scheduler.add(message, transfer=room.number)
        else:
            del self._requests[message.request_id]
            self._grammars.ended(message.request_id)

    def plan(self, now: float) -> None:
        """Does nothing: there is nothing to request from other engines."""

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        """Announces computed chunks, without tokens that the decode engine holds already."""
        for chunk in chunks:
            room = self._requests.get(chunk.request_id)
            if room is None or room.number not in self._rooms:
                continue
            if chunk.start == 0:
                room.computed = PromptHash()
            room.computed.add(chunk.tokens)
            start = max(chunk.start, room.held_tokens)
            if start >= chunk.end:
                continue
            pages = chunk.page_ids[(start - chunk.start) // self._settings.page_size :]
            self._publisher.publish(ComputedPages(room.number, start, chunk.end, pages))
        self._announce()

    def takes(self, delta: TokenDelta, now: float) -> bool:
        """Whether a result belongs to a room, so that it is not for the API process."""
        room = self._requests.get(delta.request_id)
        if room is None:
            return False
        if delta.finish_reason is None:
            return True
        del self._requests[delta.request_id]
        if room.number not in self._rooms:
            return True
        if delta.finish_reason in ("stop", "length"):
            room.first_token = delta
            self._finish_announced(room, now)
        else:
            error = delta.error or "the prefill engine dropped the request"
            self._fail(room, "Refused", error, delta.refusal or "prefill_failed")
        return True

    def queues(self, status: Status) -> HandoverQueues:
        finished = sum(room.finished for room in self._rooms.values())
        return HandoverQueues(bootstrap=len(self._rooms) - finished, inflight=finished)

    def load(self, status: Status) -> HandoverLoad:
        return HandoverLoad(failures=dict(self._failures), draining=self._draining)

    def _announce(self) -> None:
        """Announces chunks whose pages can be read now."""
        for chunk in self._publisher.chunks():
            if room := self._rooms.get(chunk.room):
                self._port.send(room.peer, chunk)

    def _received(self, event: FromDecode, now: float) -> None:
        message = event.message
        if isinstance(message, Bootstrap):
            self._open(event.peer, message, now)
            return
        room = self._rooms.get(message.room)
        if room is None or room.peer != event.peer:
            return
        if isinstance(message, Cancel):
            self._failures["Cancelled"] += 1
            _log.info("hand-over of %s cancelled: %s", room.label, message.error)
            self._end(room)
        elif isinstance(message, ChunkRead):
            self._publisher.read(message.room, message.end)
        elif room.finished:
            _log.info("hand-over of %s done: %d tokens", room.label, room.prompt_tokens)
            self._end(room)  # its port has attested
        else:
            self._fail(room, "Protocol", "pages were received before they were computed")

    def _open(self, peer: int, asked: Bootstrap, now: float) -> None:
        if refused := self._refused(asked):
            self._failures["Refused"] += 1
            room = self._rooms.get(asked.room)
            if room is not None and room.peer == peer:
                self._end(room)  # its decode engine considers it closed
            self._port.send(peer, Failed(asked.room, *refused))
            return
        goes_on = fits_empty_pool(self._settings.limits, len(asked.request.token_ids))
        request = msgspec.structs.replace(
            asked.request,
            request_id=f"{asked.request.request_id}#{next(self._numbers)}",
            max_tokens=len(asked.request.generated_ids) + 1 if goes_on else 0,
            prefill=None,
            arrival_seconds=now,
        )
        seconds = min(asked.deadline_seconds, self._limits.total_seconds)
        room = _Room(
            number=asked.room,
            peer=peer,
            request_id=request.request_id,
            label=request.label,
            prompt_tokens=len(request.token_ids),
            held_tokens=asked.held_tokens,
            deadline=now + seconds,
            traceparent=request.traceparent,
            opened_seconds=now,
            tenant=request.tenant,
        )
        self._rooms[room.number] = self._requests[room.request_id] = room
        if request.grammar is None:
            self.admit(request)
        else:
            self._grammars.add(request)

    def _refused(self, asked: Bootstrap) -> tuple[str, Refusal] | None:
        """Why no room is opened, as text and refusal; None if one may be opened."""
        if asked.room in self._rooms:
            return "duplicate room", "prefill_failed"
        if self._draining:
            return "the prefill engine is draining and takes no new requests", "unavailable"
        prompt = asked.request.token_ids
        answer_tokens = least_answer(asked.request.max_tokens)
        if error := refusal(self._settings.limits, len(prompt), answer_tokens):
            return f"prefill engine: {error}", "invalid"
        if asked.prompt_hash != prompt_hash(prompt):
            return "the prompt is not the one whose hash was sent", "prefill_failed"
        if asked.request.generated_ids and prompt[-1] in asked.request.stop_token_ids:
            return "the answer to go on from has ended", "prefill_failed"
        held, size = asked.held_tokens, self._settings.page_size
        if held % size or not 0 <= held < len(prompt):
            return f"{held} tokens of {len(prompt)} cannot be held in pages of {size}", (
                "prefill_failed"
            )
        if error := queue_full(self._settings, len(self._requests)):
            return error, "overloaded"
        return self._tenant_full(asked.request.tenant)

    def _tenant_full(self, tenant: str) -> tuple[str, Refusal] | None:
        """Refusal if a tenant's share of the queue is full, even by requests of several decode
        engines; a quarter is kept for others."""
        if not tenant:
            return None
        unfinished = sum(room.tenant == tenant for room in self._requests.values())
        allowed = tenant_requests(self._settings)
        if unfinished < allowed:
            return None
        error = f"{unfinished} of its requests wait or are computed; allowed: {allowed}"
        return f"the queue is full for one tenant: {error}", "overloaded"

    def _finish_announced(self, room: _Room, now: float) -> None:
        """Sends the first token once the last chunk was announced."""
        if (delta := room.first_token) and not self._publisher.pending(room.number):
            room.first_token = None
            self._finish(room, delta, now)

    def _finish(self, room: _Room, delta: TokenDelta, now: float) -> None:
        room.finished, room.deadline = True, now + self._limits.hold_seconds
        tokens, cached = room.prompt_tokens, delta.cached_tokens
        told = {"sluice.prompt_tokens": tokens, "sluice.cached_tokens": cached}
        record_part(self._record, room.traceparent, PREFILL, (room.opened_seconds, now), told)
        self._port.hold(room.number, room.peer)
        self._port.send(
            room.peer,
            Finished(
                room.number,
                token_id=delta.token_ids[0] if delta.token_ids else _NO_ANSWER,
                end=room.prompt_tokens,
                prompt_hash=room.computed.hexdigest(),
                cached_tokens=delta.cached_tokens,
                queue_seconds=delta.queue_seconds or 0.0,
                logprob=delta.logprobs[0] if delta.logprobs else None,
                prompt_logprobs=delta.prompt_logprobs,
            ),
        )

    def _expire(self, now: float) -> None:
        for room in [room for room in self._rooms.values() if room.deadline <= now]:
            what = "fetched" if room.finished else "computed"
            self._fail(room, "TimedOut", f"the prompt was not {what} in time")

    def _lost(self, peer: int) -> None:
        for room in [room for room in self._rooms.values() if room.peer == peer]:
            self._failures["PeerLost"] += 1
            self._end(room)

    def _fail(
        self, room: _Room, reason: str, error: str, refused: Refusal = "prefill_failed"
    ) -> None:
        self._failures[reason] += 1
        _log.warning("hand-over of %s failed: %s", room.label, error)
        self._end(room)
        self._port.send(room.peer, Failed(room.number, error, refused))

    def _end(self, room: _Room) -> None:
        """Closes the room: releases its pages and cancels unfinished prefill."""
        del self._rooms[room.number]
        self._port.release_hold(room.number)
        self._publisher.forget(room.number)
        if room.request_id in self._requests:
            self._grammars.abort(room.request_id)
            self._scheduler.abort(room.request_id)
        if room.leased:
            self._scheduler.end_transfer(room.number)
