"""A prefill and a decode engine without a model, in one thread, with a wire that tests can cut.

Both run the engine's loop over a `FakeRunner`, which keeps token ids where a real one keeps keys
and values; so a wrong page, or one that was given away, changes the answer or is noticed.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec
from sluice_runtime.engine.executors import executor_for
from sluice_runtime.engine.loop import Clock, EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.engine.role import EngineRole
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.handover.decode_role import DecodePorts, DecodeRole
from sluice_runtime.handover.messages import (
    Attested,
    Bootstrap,
    Cancel,
    Chunk,
    HandoverMessage,
    Received,
    ToDecode,
    ToPrefill,
)
from sluice_runtime.handover.ports import (
    ComputedPages,
    DecodeEvent,
    FromDecode,
    FromPrefill,
    PageRead,
    PagesRead,
    PeerLost,
    PeerMemory,
    PrefillEvent,
    ReadCounts,
    RoomLost,
)
from sluice_runtime.handover.prefill_role import PrefillPorts, PrefillRole
from sluice_runtime.handover.publishing import Checksum, HostPublisher, chunk_of
from sluice_runtime.handover.rooms import HandoverLimits, HeldRooms
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Abort, Generate, PrefillEngine, Sampling, TokenDelta

from tests.runtime.engine.test_loop import FakeLink
from tests.runtime.grammar.fake_compiler import no_grammars
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import FakeRunner

ENGINE = PrefillEngine("10.0.0.1", 8998, "epoch", "prefill-0")
Meddle = Callable[[Any], list[Any]]


def ask(name: str, prompt: Sequence[int] | int, max_tokens: int, **fields: Any) -> Generate:
    tokens = list(range(prompt)) if isinstance(prompt, int) else list(prompt)
    values = {"prefill": ENGINE} | fields
    return Generate(name, tokens, max_tokens, values.pop("sampling", Sampling()), **values)


@dataclass
class Engine:
    """One engine's loop, and what it says to its API process."""

    settings: SchedulerSettings
    overlap: bool
    clock: Clock
    grammars: GrammarQueue = field(default_factory=no_grammars)

    def __post_init__(self) -> None:
        pages = self.settings.limits.kv_pool_tokens // self.settings.page_size
        self.link = FakeLink()
        self.runner = FakeRunner(pages, self.settings.page_size)
        self.scheduler = Scheduler(self.settings, PageAllocator(pages, None, self.runner.freed))

    def begin(self, role: EngineRole) -> None:
        """`role` is made from the scheduler."""
        size = self.settings.page_size
        executor = executor_for(self.runner, overlap=self.overlap)
        self.loop = EngineLoop(
            self.link,
            Pipeline(self.grammars, self.scheduler, executor),
            lambda pace: StepLog(size, pace),
            self.clock,
            role,
        )

    def slots(self, page_ids: Sequence[int]) -> list[int | None]:
        size = self.settings.page_size
        return [self.runner._slots[page * size + at] for page in page_ids for at in range(size)]

    def checksum(self, page_ids: Sequence[int], room: int) -> int:
        return zlib.crc32(repr(self.slots(page_ids)).encode(), room)

    def check_empty(self) -> None:
        """Nothing is held, by anybody."""
        self.scheduler.check_integrity()
        status = self.scheduler.status()
        assert status.pages_free + status.pages_evictable == status.pages_total
        assert not self.scheduler._kv.has_leases
        assert not self.scheduler._table
        assert not self.loop.busy
        assert not len(self.grammars)


class Wire:
    """Both ends of the control connection; every message is encoded and decoded."""

    def __init__(self, staged: bool = False) -> None:
        self.meddle: Meddle = lambda message: [message]
        self.said: list[HandoverMessage] = []
        self._to_prefill: deque[PrefillEvent] = deque()
        self._to_decode: deque[DecodeEvent] = deque()
        self.rooms: set[int] = set()
        self.held = HeldRooms()
        self.peer = 1
        self.memory = PeerMemory("session", 0, 4, 1 << 20, staged)

    def cut(self) -> None:
        """The connection is lost, for both."""
        self._to_prefill.append(PeerLost(self.peer, "cut"))
        self._to_decode += [
            RoomLost(room, "prefill engine prefill-0: cut") for room in sorted(self.rooms)
        ]
        self.peer += 1

    def to_prefill(self, message: Any) -> None:
        for each in self._meddled(message, ToPrefill):
            self._to_prefill.append(FromDecode(self.peer, each))
            if isinstance(each, Received) and self.held.attest(each.room, self.peer):
                self.to_decode(Attested(each.room))

    def from_another(self, message: Cancel | Received) -> None:
        """To the prefill engine, from a decode engine that is not here."""
        self._to_prefill.append(FromDecode(self.peer + 1000, message))

    def to_decode(self, message: Any) -> None:
        for each in self._meddled(message, ToDecode):
            if each.room in self.rooms:
                self._to_decode.append(FromPrefill(each, self.memory))

    def _meddled(self, message: Any, kind: Any) -> list[Any]:
        self.said.append(message)
        passed = self.meddle(message)
        return [msgspec.msgpack.decode(msgspec.msgpack.encode(each), type=kind) for each in passed]


@dataclass
class PrefillEnd:
    """The prefill engine's port."""

    wire: Wire

    def events(self) -> list[PrefillEvent]:
        queue = self.wire._to_prefill
        return [queue.popleft() for _ in range(len(queue))]

    def send(self, peer: int, message: Any) -> None:
        if peer == self.wire.peer:
            self.wire.to_decode(message)

    def hold(self, room: int, peer: int) -> None:
        self.wire.held.hold(room, peer)

    def release_hold(self, room: int) -> None:
        self.wire.held.release_hold(room)


@dataclass
class DecodeEnd:
    """The decode engine's."""

    wire: Wire

    def open(self, prefill: PrefillEngine, bootstrap: Bootstrap) -> None:
        self.wire.rooms.add(bootstrap.room)
        self.wire.to_prefill(bootstrap)

    def send(self, message: Any) -> None:
        self.wire.to_prefill(message)

    def close(self, room: int) -> None:
        self.wire.rooms.remove(room)

    def events(self) -> list[DecodeEvent]:
        queue = self.wire._to_decode
        arrived = [queue.popleft() for _ in range(len(queue))]
        return [event for event in arrived if event.room in self.wire.rooms]


class Pages:
    """Copies pages when it is asked for results, unless a test holds them."""

    def __init__(self, source: Engine, target: Engine) -> None:
        self.source, self.target = source, target
        self.waiting: list[PageRead] = []
        self.held = False
        self.begun = True
        """Whether reads begin at once; one that has begun cannot be cancelled."""
        self.cancelled: list[PageRead] = []
        self.result: Callable[[PageRead], PagesRead] = lambda read: PagesRead(read.number)
        self.copied = 0
        self.results = 0

    def submit(self, read: PageRead) -> None:
        self.waiting.append(read)

    def cancel(self, room: int) -> None:
        if not self.begun:
            self.cancelled += [read for read in self.waiting if read.room == room]

    def finished(self) -> list[PagesRead]:
        if self.held:
            return []
        reads, self.waiting = self.waiting, []
        self.results += len(reads)
        return [self._copy(read) for read in reads]

    def counts(self) -> ReadCounts:
        return ReadCounts(self.copied * self.source.settings.page_size, 0.5)

    def _copy(self, read: PageRead) -> PagesRead:
        result, size = self.result(read), self.source.settings.page_size
        if read in self.cancelled:
            return PagesRead(read.number, "cancelled")
        if result.error:
            return result
        slots = self.source.slots(read.page_ids)
        for number, page in enumerate(read.local_page_ids):
            part = slots[number * size : (number + 1) * size]
            self.target.runner._slots[page * size : (page + 1) * size] = part
        self.copied += len(read.page_ids)
        if self.source.checksum(read.page_ids, read.room) != read.checksum:
            return PagesRead(read.number, "checksum")
        return result


class OneBlock:
    """As a `StagedPublisher` with room for one chunk, which is copied between two turns. The pages'
    own numbers stand for those of the copies."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._waiting: deque[ComputedPages] = deque()
        self._held: ComputedPages | None = None

    def publish(self, pages: ComputedPages) -> None:
        self._waiting.append(pages)

    def chunks(self) -> list[Chunk]:
        if self._held is not None or not self._waiting:
            return []
        self._held = self._waiting.popleft()
        return [chunk_of(self._held, self._checksum(self._held.page_ids, self._held.room))]

    def pending(self, room: int) -> bool:
        return any(pages.room == room for pages in self._waiting)

    def read(self, room: int, end: int) -> None:
        if self._held is not None and (self._held.room, self._held.end) == (room, end):
            self._held = None

    def forget(self, room: int) -> None:
        self._waiting = deque(pages for pages in self._waiting if pages.room != room)
        if self._held is not None and self._held.room == room:
            self._held = None

    def close(self) -> None:
        """Has no thread."""


class Pair:
    """Both engines. `staged`: chunks are announced with copies."""

    def __init__(
        self,
        *,
        overlap: bool = False,
        pool_tokens: int = 256,
        limits: HandoverLimits | None = None,
        grammars: Sequence[GrammarQueue] = (),
        staged: bool = False,
        **changed: Any,
    ) -> None:
        self.now = 0.0
        clock = Clock(monotonic=lambda: self.now, unix=lambda: 1.7e9)
        settings = settings_of(pool_tokens, **changed)
        for_prefill = settings_of(pool_tokens, report_chunks=True, **changed)
        queues = list(grammars) or [no_grammars(), no_grammars()]
        self.prefill = Engine(for_prefill, overlap, clock, queues[0])
        self.decode = Engine(settings, overlap, clock, queues[1])
        self.wire, self.pages = Wire(staged), Pages(self.prefill, self.decode)
        self.rooms = count(1)
        checksum = self.prefill.checksum
        publisher = OneBlock(checksum) if staged else HostPublisher(checksum)
        self.prefill_role = PrefillRole(
            self.prefill.scheduler,
            self.prefill.grammars,
            for_prefill,
            PrefillPorts(PrefillEnd(self.wire), publisher),
            limits,
        )
        ports = DecodePorts(DecodeEnd(self.wire), self.pages, lambda: next(self.rooms))
        self.decode_role = DecodeRole(
            self.decode.scheduler, self.decode.grammars, settings.page_size, ports, limits
        )
        self.prefill.begin(self.prefill_role)
        self.decode.begin(self.decode_role)

    def ask(self, *messages: Generate) -> None:
        self.decode.link.coming.append(list(messages))

    def abort(self, name: str) -> None:
        self.decode.link.coming.append([Abort(name)])

    def turns(self, number: int = 1) -> None:
        for _ in range(number):
            self.decode.loop.step()
            self.prefill.loop.step()

    def run(self, turns: int = 60) -> None:
        """Everything that can happen in time; then all deadlines; then the rest."""
        self.turns(turns)
        for _ in range(8):
            self.now += 61.0
            self.turns(3)
        self.turns(turns)

    def deltas(self, name: str) -> list[TokenDelta]:
        steps = self.decode.link.steps
        return [delta for step in steps for delta in step.deltas if delta.request_id == name]

    def end(self, name: str) -> TokenDelta:
        """The one terminal event of a request."""
        (end,) = [delta for delta in self.deltas(name) if delta.finish_reason]
        return end

    def check_empty(self) -> None:
        self.prefill.check_empty()
        self.decode.check_empty()
        assert not self.prefill_role._requests
        assert not len(self.decode_role._reads)
        assert not self.decode_role._requests
        assert not self.wire.rooms
