"""The gate in front of the HTTP library, which bounds bytes and time of a client's connection.

The gate parses no HTTP: it passes bytes on and counts them. The library says when a request began,
whose head and body explain some of the bytes, and when its answer ended. What comes while a whole
request is answered waits here.

A client may send its next request at any moment on a connection that it was not told to give up.
So a connection is closed only after an answer that said `Connection: close`, or after it was quiet
for a while. Knows no routes.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, cast

import aiohttp
from aiohttp import web
from sluice_contract import http_errors
from sluice_contract.http_heads import HEAD_SECONDS, MAX_HEAD_BYTES, MAX_HEADER_BYTES

from sluice_router.byte_budget import HeadBudget
from sluice_router.errors import BadRequestError, OverloadedError, RouterError
from sluice_router.tenants import Uploads

MAX_WAITING_BYTES: Final = 65_536
"""Bytes that may wait behind a request that is being answered. With more, nothing is read from the
connection until the answer has ended; the last read may exceed this."""
UNEXPLAINED_BYTES: Final = 256
"""Bytes beyond the size of a request that do not count as another request's beginning. They may be
blanks in its head, or frames of its chunks, whose size is not known."""
DISCARD_SECONDS: Final = 10.0
"""Time that a refused client has to send the rest of its body."""
SILENT_SECONDS: Final = 0.2
"""Silence after which a shutting-down router closes a connection that never had a request."""
YOUNG_SECONDS = 1.0
"""Age of the oldest wait below which a body of a tenant above its share ends instead of a wait."""
WRITE_SECONDS = 45.0
"""A client that reads nothing for this long is disconnected. Engines wait longer (60 s) for us."""

Written = tuple[web.StreamResponse, bool]
"""An answer, and whether its client left before the end."""


@dataclass(frozen=True)
class ConnectionLimits:
    """Limits for the router's connections, and sets of connections by their state."""

    max_connections: int
    heads: HeadBudget
    """Budget for unfinished heads and for bytes that wait behind a request. The head of a request
    that is served counts with its body instead. The head of a refused request counts here until
    its client has read the answer and sent its body."""
    uploads: Uploads | None
    """Bodies that clients are sending, where API keys are required."""
    on_refusal: Callable[[int], None]
    """Called with the status of each refusal that is sent without a request."""
    connections: set[Gate] = field(default_factory=set)
    """Open connections."""
    waiting: dict[Gate, None] = field(default_factory=dict)
    """Connections that wait for a request; first the one that has waited longest."""
    holding: dict[Gate, None] = field(default_factory=dict)
    """Connections that hold bytes of heads and may be closed for others; first the one that has
    received nothing for longest."""
    answered: dict[Gate, None] = field(default_factory=dict)
    """Connections that are only open until their client has read an answer or sent the rest of a
    body."""

    def free_head_bytes(self, count: int, coming: Gate) -> bool:
        """Whether `count` more bytes of `coming` fit, if need be once others are given up.

        Those are others that hold some, first the one that has got nothing for longest; none if
        that is not enough.
        """
        missing = self.heads.missing(count)
        given_up: list[Gate] = []
        holding = iter(self.holding if missing > 0 else ())
        while missing > 0 and (gate := next(holding, None)) is not None:
            if gate is not coming and not gate.is_settling:
                missing -= gate.counted_bytes
                given_up.append(gate)
        if missing > 0:
            return False
        for gate in given_up:
            gate.give_up(self.heads.refusal())
        return True

    def close_one(self) -> bool:
        """Close a connection; False where all have requests that are not answered, and no tenant
        has more than its share of those whose body is on its way. Such a body ends sooner than the
        wait of a client that has just connected."""
        if (answered := next(iter(self.answered), None)) is not None:
            answered.abort()  # closing would wait for the client
            return True
        longest = next((gate for gate in self.waiting if not gate.has_unread_bytes()), None)
        is_young = longest is None or longest.quiet_seconds() < YOUNG_SECONDS
        if is_young and self.uploads is not None and self.uploads.end_one():
            return True
        if longest is None:
            return False
        longest.close()
        return True


class Gate(asyncio.Protocol):
    """One connection of a client, whose bytes and time are bounded in every state.

    Bytes of unfinished heads count against the budget of heads. So does what comes while a whole
    request is answered, which waits; after `MAX_WAITING_BYTES` of it nothing more is read.
    """

    __slots__ = (
        "_answered_head",
        "_behind",
        "_body",
        "_ends_clean",
        "_given",
        "_head_timer",
        "_ignores_input",
        "_is_closed",
        "_is_new",
        "_library",
        "_library_reads",
        "_limits",
        "_loop",
        "_quiet_since",
        "_reads",
        "_transport",
        "_waits",
        "_write_timer",
        "counted_bytes",
        "is_settling",
    )  # fmt: skip

    def __init__(
        self,
        library: web.RequestHandler,
        limits: ConnectionLimits,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._library = library
        self._limits = limits
        self._loop = loop
        self._transport: asyncio.Transport
        self._is_new = True
        """Whether no request ever came."""
        self._waits = True
        """Whether the library waits for a request."""
        self._body: aiohttp.StreamReader | None = None
        """Body of the request that is answered."""
        self._given = 0
        """Bytes that the library got, without requests that were answered and this one's head."""
        self._ends_clean = False
        """Whether the last bytes that the library got end a head, or a chunked body."""
        self._behind = bytearray()
        """Bytes that came while a request was answered; the library has not got them."""
        self._answered_head = 0
        """Bytes of the head of an answered request whose client still sends its body."""
        self.counted_bytes = 0
        """Bytes that the budget of heads holds for this connection."""
        self.is_settling = False
        """Whether the library got bytes in this turn of the loop, which may begin a request."""
        self._ignores_input = False
        """Whether nothing more is taken from the client."""
        self._is_closed = False
        self._library_reads = self._reads = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        """Timer that runs while the client has not read what was written."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        limits = self._limits
        self._transport = cast(asyncio.Transport, transport)
        self._quiet_since = self._loop.time()
        is_full = len(limits.connections) >= limits.max_connections
        limits.connections.add(self)
        self._library.connection_made(transport)
        if is_full and not limits.close_one():
            limit = f"{limits.max_connections} connections (server.maxConnections)"
            self.refuse(OverloadedError(f"the router has {limit}"))
        else:
            limits.waiting[self] = None
            self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._quiet_since = self._loop.time()
        if self._ignores_input:
            return
        if self._waits or not (self._body is None or self._body.is_eof()):
            self._feed(data)
        else:  # reading goes on for a little, for that is how a client that leaves is noticed
            self._behind += data
            self._read_or_pause()
            self._count()

    def eof_received(self) -> None:
        """The client has closed its side: the connection is closed."""
        self.close()

    def pause_writing(self) -> None:
        """The client does not read: it has `WRITE_SECONDS` to begin."""
        self._write_timer = self._loop.call_later(WRITE_SECONDS, self._transport.abort)
        self._library.pause_writing()

    def resume_writing(self) -> None:
        """The client has read."""
        self._stop_write_timer()
        self._library.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over."""
        self._end()
        self._stop_write_timer()
        self._limits.connections.discard(self)
        self._limits.answered.pop(self, None)
        self._library.connection_lost(exc)

    def has_unread_bytes(self) -> bool:
        """Whether bytes of the client are here that may begin a request."""
        if self.is_settling:
            return True
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def quiet_seconds(self) -> float:
        """Time since bytes came, or since the last answer."""
        return self._loop.time() - self._quiet_since

    def began(self, request: web.BaseRequest, head_bytes: int) -> None:
        """The library took a request."""
        self._body = request.content
        self._given = max(0, self._given - head_bytes)
        self._waits = self._is_new = False
        self._limits.waiting.pop(self, None)
        self._stop_head_timer()
        self._count()
        if self._behind and not self._body.is_eof():
            self._feed(self._take_behind())

    async def finish(self, writing: Coroutine[Any, Any, Written], head_bytes: int) -> Written:
        """Finish the answer to the current request, then read the rest of its body. `head_bytes`:
        size of the request's head."""
        if self._is_closed:
            return await writing
        self._limits.answered[self] = None
        written = await writing
        if self._body is not None and not self._body.is_eof():
            self._answered_head = head_bytes  # it is held for so long, too
            self._count()
            await _discard_rest(self._body)
            self._answered_head = 0
        if self._is_closed:
            return written
        del self._limits.answered[self]
        self._quiet_since = self._loop.time()
        self._given = self._loose_bytes()
        self._body = None
        if self._given or self._behind:
            # The library takes its next request, if there is one, in the next turn of the loop.
            self._loop.call_soon(self._loop.call_soon, self._wait_for_request)
        else:
            self._wait_for_request()
        return written

    def refuse(self, error: RouterError) -> None:
        """Answer without a request, and close."""
        if self._is_closed:
            return
        self._limits.on_refusal(error.status)
        retry = error.retry_after_seconds
        headers = "" if retry is None else f"retry-after: {retry}\r\n"
        self._transport.write(http_errors.closing_response(error.status, error.body, headers))
        self.close()

    def give_up(self, error: RouterError) -> None:
        """Give all its bytes back and refuse what comes in. An answer to an earlier request is
        finished before the end; requests that wait behind that get none."""
        was_answered, waited = self._answered_head > 0, self._waits
        self._drop()
        if waited:
            self.refuse(error)
            return
        self._ignores_input = True
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(error)
        self._library.close()
        if was_answered:
            self.abort()  # closing would wait for the client

    def close_if_quiet(self, quiet_seconds: float) -> None:
        """Close it if it has waited for a request for so long and none is on its way in; sooner, if
        nothing ever came, for no answer promised to keep it."""
        is_new = self._is_new and not self._given
        limit = min(quiet_seconds, SILENT_SECONDS) if is_new else quiet_seconds
        if self._waits and self.quiet_seconds() >= limit and not self.has_unread_bytes():
            self.close()

    def close(self) -> None:
        """Close it once the client has what was written, or after a while without."""
        if self._is_closed:
            return
        self._end()
        self._transport.set_write_buffer_limits(high=0)  # pauses writing until all is written
        self._transport.close()
        if self._write_timer is not None:
            self._limits.answered[self] = None

    def abort(self) -> None:
        """Close it at once."""
        self._limits.answered.pop(self, None)
        self._transport.abort()

    def set_library_reads(self, reads: bool) -> None:
        """Whether the library takes more of a body."""
        self._library_reads = reads
        self._read_or_pause()

    def _read_or_pause(self) -> None:
        reads = self._library_reads and len(self._behind) < MAX_WAITING_BYTES
        if reads == self._reads or self._is_closed:
            return
        self._reads = reads
        if reads:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _feed(self, data: bytes) -> None:
        """Give the library bytes; it takes a request that they begin in the next turn."""
        body = self._body
        before = 0 if body is None else body.total_bytes
        self._given += len(data)
        self._ends_clean = data.endswith(b"\r\n\r\n")
        self._library.data_received(data)
        if body is None:
            if not self.is_settling:
                self.is_settling = True
                self._loop.call_soon(self._settle)
            return
        if body.total_bytes > before or body.is_eof():  # earlier pieces, frames too, are parsed
            self._given = min(self._given, body.total_bytes + len(data))
        elif self._loose_bytes() > MAX_HEAD_BYTES:
            self.give_up(BadRequestError(http_errors.head_too_long()))
        self._count()

    def _settle(self) -> None:
        """Count and time what the library got, unless a request began with it."""
        self.is_settling = False
        if not self._waits:
            return
        self._count()
        if self._given > MAX_HEAD_BYTES:
            self.give_up(BadRequestError(http_errors.head_too_long()))
        elif self._given:
            self._limits.waiting.pop(self)
            self._limits.waiting[self] = None
            self._start_head_timer()

    def _wait_for_request(self) -> None:
        """The library waits for a request, unless one began meanwhile, and gets what waits here."""
        if self._body is not None or self._waits:
            return
        if self._ignores_input:
            self.close()
            return
        if self._ends_clean or self._given <= UNEXPLAINED_BYTES:
            self._given = 0
        self._waits = True
        self._limits.waiting[self] = None
        if self._behind:
            self._feed(self._take_behind())
        else:
            self._settle()

    def _take_behind(self) -> bytes:
        data, self._behind = bytes(self._behind), bytearray()
        self._read_or_pause()
        return data

    def _loose_bytes(self) -> int:
        """Bytes that the library got and no request explains: of heads, trailers, frames."""
        return max(0, self._given - (0 if self._body is None else self._body.total_bytes))

    def _count(self) -> None:
        """Count all that is held; what does not fit ends the connection."""
        loose, limits = self._loose_bytes(), self._limits
        holds = loose + len(self._behind) + self._answered_head
        more = holds - self.counted_bytes
        if not holds and not more:
            return
        if more > 0 and not limits.free_head_bytes(more, self):
            self.give_up(limits.heads.refusal())
            return
        limits.heads.held_bytes += more
        self.counted_bytes = holds
        limits.holding.pop(self, None)
        # Not for the few bytes between two chunks of a body that is being read.
        is_reading = self._body is not None and not self._body.is_eof()
        if holds > (MAX_HEADER_BYTES if is_reading and not self._answered_head else 0):
            limits.holding[self] = None

    def _drop(self) -> None:
        self._given = self._answered_head = 0
        self._behind.clear()
        self._count()

    def _end(self) -> None:
        self._ignores_input = self._is_closed = True
        self._waits = False
        self._limits.waiting.pop(self, None)
        self._stop_head_timer()
        self._drop()

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _head_is_late(self) -> None:
        """A client that sent nothing at all gets no answer: it may keep connections for later."""
        if self._given:
            self.refuse(BadRequestError(http_errors.head_too_late(HEAD_SECONDS)))
        else:
            self.close()


async def _discard_rest(body: aiohttp.StreamReader) -> None:
    """Read what a client still sends after it was refused: it would not see the answer otherwise.

    When it goes on for too long, aiohttp closes the connection.
    """
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while not body.is_eof():
                await body.readany()
    except (TimeoutError, RuntimeError, OSError, aiohttp.ClientError, RouterError):
        return  # RuntimeError: the connection is closed
