"""Ports between the engine's loop and the threads that talk to other engines: values and protocols.

The loop calls these methods between steps; none of them waits. Every event or result sets the
loop's `Wakeup`. Knows neither sockets nor the scheduler.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
from sluice_runtime.wire.messages import Generate, PrefillEngine


@dataclass(frozen=True, slots=True)
class PeerMemory:
    """Location and layout of a prefill engine's pages."""

    session: str
    pool_address: int
    page_bytes: int
    pages: int
    staged: bool = False
    """Whether chunks are announced with copies of their pages, as in `Welcome`."""
    parts: int = 1
    """Parts of each page, as in `Welcome`."""


@dataclass(frozen=True, slots=True)
class ComputedPages:
    """Keys and values of tokens [start, end) of a room's prompt, in pages of this engine."""

    room: int
    start: int
    end: int
    page_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FromDecode:
    """A message of a decode engine, over one connection."""

    peer: int
    """Number of the connection; never used again."""
    message: Bootstrap | ChunkRead | Received | Cancel


@dataclass(frozen=True, slots=True)
class PeerLost:
    """Event: a connection from a decode engine ended, and all its rooms with it."""

    peer: int
    error: str


@dataclass(frozen=True, slots=True)
class FromPrefill:
    """A prefill engine's message about one of our rooms, with the location of that engine's
    pages."""

    message: Chunk | Finished | Attested | Failed
    memory: PeerMemory

    @property
    def room(self) -> int:
        return self.message.room


@dataclass(frozen=True, slots=True)
class RoomLost:
    """Event: a room ended because its prefill engine could not be reached, refused the hello, or is
    gone."""

    room: int
    error: str
    """One line that names the engine and what happened."""
    unasked: bool = False
    """Whether the prefill engine never got the request, so that the request cannot be at fault."""


@dataclass(frozen=True, slots=True)
class PageRead:
    """Order to copy pages of a prefill engine into our pages."""

    number: int
    """Number of the read."""
    room: int
    memory: PeerMemory
    page_ids: tuple[int, ...]
    """Source pages, in the prefill engine."""
    local_page_ids: tuple[int, ...]
    """Destination pages in our pool; one for each of `page_ids`."""
    checksum: int
    """Checksum of the pages, as in `Chunk`."""


@dataclass(frozen=True, slots=True)
class PagesRead:
    """Result of a `PageRead`. If `error` is None, every byte has arrived and its checksum is
    right."""

    number: int
    error: str | None = None
    may_still_land: bool = False
    """Whether the failed read may still write into our pages, at any later time."""


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Counts of all reads since the start."""

    read_bytes: int = 0
    read_seconds: float = 0.0
    reads: int = 0


PrefillEvent = FromDecode | PeerLost
DecodeEvent = FromPrefill | RoomLost


class PrefillPort(Protocol):
    """A prefill engine's end of the connections: its bootstrap endpoint."""

    def events(self) -> list[PrefillEvent]:
        """Events since the last call, in order.

        Raises:
            HandoverThreadError: its thread died; the engine cannot continue.
        """
        ...

    def send(self, peer: int, message: Chunk | Finished | Failed) -> None:
        """Sends to a decode engine; dropped when the connection is gone."""
        ...

    def hold(self, room: int, peer: int) -> None:
        """Called when a prompt's pages are complete and held: the port then answers `Received` with
        `Attested` at once, even between turns of the loop."""
        ...

    def release_hold(self, room: int) -> None:
        """Ends a hold, before the pages may be reused: the port no longer answers `Received` with
        `Attested`."""
        ...


class PagePublisher(Protocol):
    """Makes computed pages readable by decode engines."""

    def publish(self, pages: ComputedPages) -> None:
        """Makes `pages` readable; they do not change until the room ends."""
        ...

    def chunks(self) -> list[Chunk]:
        """Chunks that became ready to announce since the last call; chunks of one room are in
        order.

        Raises:
            HandoverThreadError: its thread died; the engine cannot continue.
        """
        ...

    def pending(self, room: int) -> bool:
        """Whether more chunks of this room will come."""
        ...

    def read(self, room: int, end: int) -> None:
        """Called when a decode engine has read the chunk of this room that ends at token `end`."""
        ...

    def forget(self, room: int) -> None:
        """Called when the room has ended; drops what is left of its chunks."""
        ...

    def close(self) -> None: ...


class DecodePort(Protocol):
    """A decode engine's end of the connections: one to each prefill engine."""

    def open(self, prefill: PrefillEngine, bootstrap: Bootstrap) -> None:
        """Connects if necessary, sends a hello, and asks for the prompt. A failure comes as the
        event `RoomLost`."""
        ...

    def send(self, message: ChunkRead | Received | Cancel) -> None:
        """Sends to the engine of the message's room; dropped when the connection is gone."""
        ...

    def close(self, room: int) -> None:
        """Stops the events of a room that has ended on this side."""
        ...

    def events(self) -> list[DecodeEvent]:
        """Events since the last call, in order. A room is closed with `Attested`, `Failed` or
        `RoomLost`.

        Raises:
            HandoverThreadError: its thread died; the engine cannot continue.
        """
        ...


class Grammars(Protocol):
    """The part of the engine's grammar queue that the roles use."""

    def add(self, message: Generate) -> None:
        """Queues a request with a grammar; the grammar has to be compiled before the request
        runs."""
        ...

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        ...

    def resumed(self, request_id: str, token: int) -> None:
        """Called when another engine drew an answer's first token; the answer may have no
        grammar."""
        ...

    def ended(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        ...


class PagePort(Protocol):
    """Copies pages of prefill engines into ours, concurrently with the loop."""

    def submit(self, read: PageRead) -> None:
        """Starts a read. Exactly one result follows, even after a failure or `cancel`."""
        ...

    def cancel(self, room: int) -> None:
        """Cancels reads of this room: those that have not begun may end with an error."""
        ...

    def finished(self) -> list[PagesRead]:
        """The results since the last call."""
        ...

    def counts(self) -> ReadCounts: ...
