"""Connections and wires of a simulated fleet: the ports that the engines' roles use.

A message takes the network's latency. A read of pages takes the time of its bytes on the wires of
both engines; a wire carries one read at a time.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from sluice_runtime.handover.messages import (
    Attested,
    Bootstrap,
    Cancel,
    Chunk,
    ChunkRead,
    Failed,
    Finished,
    Received,
)
from sluice_runtime.handover.ports import (
    DecodeEvent,
    FromDecode,
    FromPrefill,
    PageRead,
    PagesRead,
    PeerMemory,
    PrefillEvent,
    ReadCounts,
)
from sluice_runtime.handover.rooms import HeldRooms
from sluice_runtime.wire.messages import PrefillEngine


class Calendar:
    """Schedule of events; times are seconds of the trace."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), event))

    def run(self) -> None:
        """Runs all events, including those that they add."""
        while self._events:
            self.now, _, event = heapq.heappop(self._events)
            event()


@dataclass(frozen=True, slots=True)
class Network:
    """Properties of each engine's wire, and of the network between any two engines."""

    bytes_per_second: float
    latency_seconds: float
    """Latency of a message, and of a read besides the time of its bytes."""
    page_bytes: int


@dataclass
class HandOvers:
    """Measurements over all rooms."""

    read_bytes: int = 0
    hidden_bytes: int = 0
    """Bytes of reads that ended before the prompt's last chunk was computed."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of each prompt from its last chunk until its request could decode."""


class Wires:
    """Connections between numbered engines."""

    def __init__(self, calendar: Calendar, network: Network) -> None:
        self.calendar = calendar
        self.network = network
        self.seen = HandOvers()
        self.prefills: dict[int, PrefillEnd] = {}
        self.decodes: dict[int, DecodeEnd] = {}
        self._free_seconds: defaultdict[int, float] = defaultdict(float)
        """Time from which the wire of an engine is free, by engine."""
        self._finished: dict[int, float] = {}
        """Time at which the last chunk was computed, by room."""

    def later(self, event: Callable[[], None]) -> None:
        """Calls `event` after the latency of the network."""
        self.calendar.at(self.calendar.now + self.network.latency_seconds, event)

    def finished(self, room: int) -> None:
        self._finished[room] = self.calendar.now

    def closed(self, room: int) -> None:
        """Closes a room: its request decodes, or has failed."""
        if (finished := self._finished.pop(room, None)) is not None:
            self.seen.seconds.append(self.calendar.now - finished)

    def read(
        self, room: int, engines: tuple[int, int], pages: int, ended: Callable[[], None]
    ) -> None:
        """Reads `pages` pages over the wires of two engines, and calls `ended` when all bytes have
        arrived."""
        size, free = pages * self.network.page_bytes, self._free_seconds
        begun = max(self.calendar.now, *(free[engine] for engine in engines))
        for engine in engines:
            free[engine] = begun + size / self.network.bytes_per_second

        def end() -> None:
            self.seen.read_bytes += size
            self.seen.hidden_bytes += size if room not in self._finished else 0
            ended()

        self.calendar.at(free[engines[0]] + self.network.latency_seconds, end)


class PrefillEnd:
    """A prefill engine's end of the wires: see `PrefillPort`. `wake`: called when an event has
    come."""

    def __init__(self, wires: Wires, engine: int, wake: Callable[[], None]) -> None:
        self._wires = wires
        self._memory = PeerMemory(str(engine), 0, wires.network.page_bytes, 1 << 62)
        self._wake = wake
        self._come: list[PrefillEvent] = []
        self._held = HeldRooms()
        wires.prefills[engine] = self

    def events(self) -> list[PrefillEvent]:
        come, self._come = self._come, []
        return come

    def send(self, peer: int, message: Chunk | Finished | Attested | Failed) -> None:
        if isinstance(message, Finished):
            self._wires.finished(message.room)
        decode, event = self._wires.decodes[peer], FromPrefill(message, self._memory)
        self._wires.later(lambda: decode.deliver(event))

    def hold(self, room: int, peer: int) -> None:
        self._held.hold(room, peer)

    def release_hold(self, room: int) -> None:
        self._held.release_hold(room)

    def deliver(self, event: FromDecode) -> None:
        message = event.message
        if isinstance(message, Received) and self._held.attest(message.room, event.peer):
            self.send(event.peer, Attested(message.room))
        self._come.append(event)
        self._wake()


class DecodeEnd:
    """Decode engine's end of the wires: see `DecodePort`."""

    def __init__(self, wires: Wires, engine: int, wake: Callable[[], None]) -> None:
        self._wires = wires
        self._engine = engine
        self._wake = wake
        self._rooms: dict[int, PrefillEnd] = {}
        self._come: list[DecodeEvent] = []
        wires.decodes[engine] = self

    def open(self, prefill: PrefillEngine, bootstrap: Bootstrap) -> None:
        self._rooms[bootstrap.room] = self._wires.prefills[prefill.port]
        self._tell(bootstrap)

    def send(self, message: ChunkRead | Received | Cancel) -> None:
        self._tell(message)

    def close(self, room: int) -> None:
        del self._rooms[room]
        self._wires.closed(room)

    def events(self) -> list[DecodeEvent]:
        come, self._come = self._come, []
        return come

    def deliver(self, event: DecodeEvent) -> None:
        self._come.append(event)
        self._wake()

    def _tell(self, message: Bootstrap | ChunkRead | Received | Cancel) -> None:
        prefill, event = self._rooms[message.room], FromDecode(self._engine, message)
        self._wires.later(lambda: prefill.deliver(event))


class PagesEnd:
    """Reads of pages over the wires: see `PagePort`."""

    def __init__(self, wires: Wires, engine: int, wake: Callable[[], None]) -> None:
        self._wires = wires
        self._engine = engine
        self._wake = wake
        self._read: list[PagesRead] = []

    def submit(self, read: PageRead) -> None:
        engines = int(read.memory.session), self._engine
        self._wires.read(read.room, engines, len(read.page_ids), lambda: self._ended(read.number))

    def cancel(self, room: int) -> None:
        """Does nothing: submitted reads are always made."""

    def finished(self) -> list[PagesRead]:
        read, self._read = self._read, []
        return read

    def counts(self) -> ReadCounts:
        return ReadCounts()

    def _ended(self, number: int) -> None:
        self._read.append(PagesRead(number))
        self._wake()
