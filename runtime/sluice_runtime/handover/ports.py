"""Ports between the engine's loop and the threads that talk to other engines: values and protocols.

The loop calls these methods between steps; none of them waits. Whatever arrives sets the loop's
`Wakeup`. Knows neither sockets nor the scheduler.
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
    """Where the pages of a prefill engine are."""

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
    """A connection is gone, and with it all of its rooms."""

    peer: int
    error: str


@dataclass(frozen=True, slots=True)
class FromPrefill:
    """A message about one of our rooms, and where that engine's pages are."""

    message: Chunk | Finished | Attested | Failed
    memory: PeerMemory

    @property
    def room(self) -> int:
        return self.message.room


@dataclass(frozen=True, slots=True)
class RoomLost:
    """The prefill engine could not be reached, refused the greeting, or is gone."""

    room: int
    error: str
    """One line that names the engine and what happened."""
    unasked: bool = False
    """Whether that engine never got the request, so that it cannot be at fault."""


@dataclass(frozen=True, slots=True)
class PageRead:
    """Pages of a prefill engine that are to be copied into pages of ours."""

    number: int
    """Number of the read."""
    room: int
    memory: PeerMemory
    page_ids: tuple[int, ...]
    """Source pages, in the prefill engine."""
    local_page_ids: tuple[int, ...]
    """Destination pages of ours, as many as `page_ids`."""
    checksum: int
    """Checksum of the pages, as in `Chunk`."""


@dataclass(frozen=True, slots=True)
class PagesRead:
    """The result of a `PageRead`: every byte is there and right when `error` is None."""

    number: int
    error: str | None = None
    may_still_land: bool = False
    """Whether our pages may still be written, at any time from now on."""


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Counts of all reads since the start."""

    read_bytes: int = 0
    read_seconds: float = 0.0
    reads: int = 0


PrefillEvent = FromDecode | PeerLost
DecodeEvent = FromPrefill | RoomLost


class PrefillPort(Protocol):
    """The prefill engine's end: its bootstrap endpoint."""

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
        """The prompt's pages are complete and held: when `Received` comes, it is answered with
        `Attested` at once, between two turns of the loop as well."""
        ...

    def let_go(self, room: int) -> None:
        """Called before the pages may be used again: nothing is attested from now on."""
        ...


class PagePublisher(Protocol):
    """Makes computed pages readable by decode engines."""

    def publish(self, pages: ComputedPages) -> None:
        """Makes `pages` readable; they do not change until the room ends."""
        ...

    def chunks(self) -> list[Chunk]:
        """Chunks that can be announced since the last call; those of a room are in order.

        Raises:
            HandoverThreadError: its thread died; the engine cannot continue.
        """
        ...

    def pending(self, room: int) -> bool:
        """Whether `chunks` has more to come of this room."""
        ...

    def read(self, room: int, end: int) -> None:
        """The chunk that ends here is not read any more."""
        ...

    def forget(self, room: int) -> None:
        """The room has ended."""
        ...

    def close(self) -> None: ...


class DecodePort(Protocol):
    """The decode engine's end: connections to prefill engines, one each."""

    def open(self, prefill: PrefillEngine, bootstrap: Bootstrap) -> None:
        """Connects if need be, greets, and asks for the prompt. A failure is a `RoomLost`."""
        ...

    def send(self, message: ChunkRead | Received | Cancel) -> None:
        """Sends to the engine of the message's room; dropped when the connection is gone."""
        ...

    def close(self, room: int) -> None:
        """Ends the events of this room, which has ended here."""
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
        """A request with a grammar, which has to be compiled before it runs."""
        ...

    def abort(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        ...

    def resumed(self, request_id: str, token: int) -> None:
        """The first token of an answer was drawn elsewhere; it may have no grammar."""
        ...

    def ended(self, request_id: str) -> None:
        """Unknown ids are ignored."""
        ...


class PagePort(Protocol):
    """Copies pages of prefill engines into ours, concurrently with the loop."""

    def submit(self, read: PageRead) -> None:
        """Exactly one result follows, whatever happens."""
        ...

    def cancel(self, room: int) -> None:
        """Reads of this room that have not begun may end with an error."""
        ...

    def finished(self) -> list[PagesRead]:
        """The results since the last call."""
        ...

    def counts(self) -> ReadCounts: ...
