"""A client's connection: what it may hold and for how long, and which one is closed for another.

A client may send its next request at any moment on a connection that it was not told to give up.
So a connection is closed only after an answer that said `Connection: close`, or after it was quiet
for a while. Knows no routes.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from sluice_contract import http_errors
from sluice_contract.http_heads import HEAD_SECONDS, MAX_HEAD_BYTES, MAX_HEADER_BYTES, MAX_HEADERS

from sluice_router.byte_budget import HeadBudget
from sluice_router.errors import BadRequestError, OverloadedError, RouterError
from sluice_router.head_bytes import HeadBytes, size_of
from sluice_router.tenants import Uploads

SOCKET_BUFFER_BYTES: Final = 65_536
"""Socket buffer of each direction of a connection. The kernel would let it grow to megabytes, which
count as the container's memory, and would hand over as much at once."""
DISCARD_SECONDS: Final = 10.0
"""How long a client that was refused may go on sending its body."""
IDLE_SECONDS: Final = 620.0
"""How long a connection may wait for its next request: longer than load balancers keep one (600 s
at most), so that they close it first and send no request on a connection that is just closing."""
SILENT_SECONDS: Final = 0.2
"""How long a connection may be silent on which nothing ever came, while the router leaves."""
WRITE_SECONDS = 45.0
"""A client that reads nothing for this long is disconnected. Engines wait longer (60 s) for us."""
LIBRARY_HEADERS: Final = 4 * MAX_HEADERS
LIBRARY_HEADER_BYTES: Final = 8 * MAX_HEADER_BYTES
"""Where the HTTP library stops parsing a head: it would make many objects of few bytes."""


@dataclass(frozen=True)
class ConnectionLimits:
    """What all connections share."""

    max_connections: int
    heads: HeadBudget
    """Counts unfinished heads and what waits behind a request. The head of a request that is served
    counts with its body. Between the two it is nobody's: in the same turn of the loop its request
    is either counted so or refused, and the head of a refused one is dropped as soon as its client
    has read the answer and sent its body; a client that keeps us waiting is counted here again."""
    uploads: Uploads | None
    """Bodies that are on their way, where API keys are required."""
    on_refusal: Callable[[int], None]
    """Called with the status of each answer that is made before there is a request."""
    waiting: dict[Connection, None] = field(default_factory=dict)
    """Connections that wait for a request; first the one that has waited longest."""
    holding: dict[Connection, None] = field(default_factory=dict)
    """Connections whose bytes of heads make way for others; first the one that has got nothing for
    longest."""
    answered: dict[Connection, asyncio.Transport] = field(default_factory=dict)
    """Connections that only stay until their client has read an answer, or sent a body's rest."""

    def free_head_bytes(self, count: int, coming: Connection) -> bool:
        """Whether `count` more bytes of `coming` fit, if need be once others are given up.

        Those are others that hold some, first the one that has got nothing for longest; none if
        that is not enough.
        """
        missing = self.heads.missing(count)
        given_up: list[Connection] = []
        holding = iter(self.holding if missing > 0 else ())
        while missing > 0 and (connection := next(holding, None)) is not None:
            if connection is not coming:
                missing -= connection.held_bytes
                given_up.append(connection)
        if missing > 0:
            return False
        for connection in given_up:
            connection.give_up(self.heads.refusal())
        return True


class Connection(web.RequestHandler):
    """aiohttp's, except that bytes and time are bounded in every state.

    Bytes of unfinished heads count against the budget of heads. So does what comes while a whole
    request is answered, which waits; after `SOCKET_BUFFER_BYTES` of it nothing more is read.
    """

    __slots__ = (
        "_body", "_close_timer", "_counted", "_head_timer", "_heads", "_limits", "_quiet_since",
        "_waits_for_request",
    )  # fmt: skip

    def __init__(
        self, server: web.Server, limits: ConnectionLimits, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # aiohttp takes it for "no log"
            auto_decompress=False,
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=0,
            max_headers=LIBRARY_HEADERS,
            max_line_size=LIBRARY_HEADER_BYTES,
            max_field_size=LIBRARY_HEADER_BYTES,
        )
        self._limits = limits
        self._waits_for_request = True
        self._quiet_since = loop.time()
        self._body: aiohttp.StreamReader = aiohttp.streams.EMPTY_PAYLOAD
        """Body of the latest request."""
        self._heads = HeadBytes()
        self._counted = 0
        """Bytes that the budget of heads holds for this connection."""
        self._head_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        super().connection_made(transport)
        assert self._manager is not None
        limit = self._limits.max_connections
        if len(self._manager.connections) > limit and not self._close_another():
            self._refuse(
                OverloadedError(f"the router has {limit} connections (server.maxConnections)")
            )
        else:
            self._limits.waiting[self] = None
            self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client; none, when aiohttp goes on with what it has."""
        if data:
            self._quiet_since = self._loop.time()
        if self._force_close or self._close:
            return
        if data and not self._takes_bytes():
            self._put_behind(data)
        else:
            self._feed(data)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send what is left of the answer; the connection then waits for the next request."""
        if self.transport is not None:
            self._limits.answered[self] = self.transport
        try:
            finished = await super().finish_response(request, resp, start_time)
            if not request.content.is_eof() or self._messages or self._heads.behind:
                await self._wait_for_client(request)
        finally:
            self._heads.answered = 0
            if not self._force_close:
                self._limits.answered.pop(self, None)
        self._quiet_since = self._loop.time()
        if self._messages:
            self._body = self._messages[-1][1]
            if len(self._messages) == 1:
                self._heads.queued = 0  # it is taken next
            self._count()
        elif not self._force_close:
            self._wait_for_request()
        return finished

    async def start(self) -> None:
        """Answer requests until the connection is closed."""
        await super().start()
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """A client that has left is no error: its request is counted and logged where it ended.
        What is no request is answered here, and only counted."""
        if isinstance(exc, HttpProcessingError):
            self._refuse(BadRequestError(_mistake(exc)))
            exc = ConnectionAbortedError("not a request")
        if isinstance(exc, ConnectionError):
            raise exc
        return super().handle_error(request, status, exc, message)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is over."""
        super().connection_lost(exc)
        self._limits.answered.pop(self, None)
        self._stop_head_timer()
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._heads.drop()
        self._count()

    @property
    def held_bytes(self) -> int:
        """Bytes that the budget of heads holds for it."""
        return self._counted

    def give_up(self, error: RouterError) -> None:
        """Give all its bytes back and refuse what comes in. An answer to an earlier request is
        finished before the end; requests that wait behind that get none."""
        was_answered = self._heads.answered > 0
        self._heads.drop()
        self._count()
        if self._waits_for_request:
            self._refuse(error)
            return
        if self._current_request is not None:
            self._messages.clear()  # else aiohttp is about to take one
        if not self._body.is_eof():
            self._body.set_exception(error)
        self.close()
        if was_answered and self.transport is not None:
            self.transport.abort()  # closing would wait for the client

    def close_if_quiet(self, quiet_seconds: float) -> None:
        """Close it if it has waited for a request for so long and none is on its way in; sooner, if
        nothing ever came, for no answer promised to keep it."""
        if not self._waits_for_request:
            return
        is_new = not (self._request_count or self._heads.unfinished)
        limit = min(quiet_seconds, SILENT_SECONDS) if is_new else quiet_seconds
        if self._loop.time() - self._quiet_since >= limit and not self._has_unread_bytes():
            self.force_close()

    def force_close(self) -> None:
        """Close it once the client has what was written, or after a while without."""
        transport = self.transport
        self._limits.waiting.pop(self, None)
        self._heads.drop()
        self._count()
        super().force_close()
        if transport is not None and transport.get_write_buffer_size():
            self._limits.answered[self] = transport
            self._close_timer = self._loop.call_later(WRITE_SECONDS, transport.abort)

    async def _drain_helper(self) -> None:
        """Where every write waits for a client that does not read.

        Raises:
            ConnectionResetError: it reads nothing.
        """
        transport = self.transport
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await super()._drain_helper()
        except TimeoutError:
            if transport is not None:
                transport.abort()  # closing it would wait for the client
            message = f"the client read nothing for {WRITE_SECONDS:g} seconds"
            raise ConnectionResetError(message) from None

    async def _wait_for_client(self, request: web.BaseRequest) -> None:
        """Until it has sent its body and, if more requests wait, read the answer. For so long the
        head is held, too."""
        self._heads.answered = size_of(request)
        self._count()
        if not request.content.is_eof():
            await _discard_rest(request.content)
        if self._messages or self._heads.behind:
            await self._flush()

    async def _flush(self) -> None:
        """Wait until the kernel has the answer: answers that nobody reads would pile up."""
        transport = self.transport
        if transport is not None and transport.get_write_buffer_size():
            transport.set_write_buffer_limits(high=0)
            try:
                await self._drain_helper()
            finally:
                transport.set_write_buffer_limits()

    def _takes_bytes(self) -> bool:
        """Whether what comes now belongs to the request that is waited for or read."""
        return self._waits_for_request or not (self._messages or self._body.is_eof())

    def _put_behind(self, data: bytes) -> None:
        """Reading goes on for a little, for that is how a client that leaves is noticed."""
        self._heads.behind += data
        self._buffer_paused = True  # aiohttp then asks when it has taken a request
        if len(self._heads.behind) >= SOCKET_BUFFER_BYTES:
            self._pause_transport_reading()
        self._count()

    def _resume_reading_if_drained(self) -> None:
        """aiohttp calls it when it has taken a request from those that wait."""
        if not self._heads.behind:
            super()._resume_reading_if_drained()
        elif self._takes_bytes():
            self._feed_behind()

    def _feed_behind(self) -> None:
        data, self._heads.behind = self._heads.behind, b""
        self._feed(data)
        if not self._close:
            super()._resume_reading_if_drained()

    def _feed(self, data: bytes) -> None:
        """Give aiohttp what came, and count what of it is no body's."""
        requests, body, body_bytes = self._request_count, self._body, self._body.total_bytes
        super().data_received(data)
        came = self._request_count - requests
        grown = body.total_bytes - body_bytes
        if came:
            self._note_requests(data, came)
        else:
            self._heads.add_piece(data, grown)
        self._count()
        if data:
            self._heads.remember_end(data)
            if not (came or grown):
                self._judge_head()

    def _note_requests(self, data: bytes, came: int) -> None:
        """So many requests are complete but for the body of the last."""
        self._body = self._messages[-1][1]
        is_alone = came == 1 and self._waits_for_request
        self._heads.add_requests(
            data,
            self._body.total_bytes if is_alone else 0,
            is_alone=is_alone,
            is_parsed=len(self._messages) < self._max_msg_queue_size,
            body_ended=self._body.is_eof(),
        )
        self._waits_for_request = False
        self._stop_head_timer()
        self._limits.waiting.pop(self, None)

    def _wait_for_request(self) -> None:
        self._waits_for_request = True
        self._heads.queued = 0
        self._limits.waiting[self] = None
        if self._heads.behind:
            self._feed_behind()
        self._count()
        if self._heads.unfinished and self._waits_for_request:
            self._start_head_timer()

    def _judge_head(self) -> None:
        """More of a head came, or of trailers, which does not end it."""
        if self._force_close or self._close:
            return
        if self._heads.unfinished > MAX_HEAD_BYTES:
            self.give_up(BadRequestError(http_errors.head_too_long()))
        elif self._waits_for_request and self._heads.unfinished:
            self._limits.waiting.pop(self, None)
            self._limits.waiting[self] = None
            self._start_head_timer()

    def _count(self) -> None:
        """Count all that is held; what does not fit ends the connection."""
        holds, limits = self._heads.held, self._limits
        more = holds - self._counted
        if more > 0 and not limits.free_head_bytes(more, self):
            self.give_up(limits.heads.refusal())
            return
        limits.heads.held_bytes += more
        self._counted = holds
        limits.holding.pop(self, None)
        if holds and self._makes_way():
            limits.holding[self] = None

    def _makes_way(self) -> bool:
        """Not for the few bytes between two chunks of a body that is being read."""
        heads = self._heads
        is_reading = not (self._waits_for_request or self._body.is_eof())
        return not is_reading or heads.held > MAX_HEADER_BYTES or heads.answered > 0

    def _has_unread_bytes(self) -> bool:
        """Whether the kernel has bytes of the client that this process has not read yet."""
        if self.transport is None:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _close_another(self) -> bool:
        """Close another connection; False where all have requests that are not answered, and no
        tenant has more than its share of those whose body is on its way."""
        if (answered := next(iter(self._limits.answered), None)) is not None:
            self._limits.answered.pop(answered).abort()  # closing would wait for the client
            return True
        waiting = (one for one in self._limits.waiting if not one._has_unread_bytes())
        if (longest := next(waiting, None)) is None:
            return self._limits.uploads is not None and self._limits.uploads.end_one()
        longest.force_close()
        return True

    def _start_head_timer(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        """A client that sent nothing at all gets no answer: it may keep connections for later."""
        if self._heads.unfinished:
            self._refuse(BadRequestError(http_errors.head_too_late(HEAD_SECONDS)))
        else:
            self.force_close()

    def _refuse(self, error: RouterError) -> None:
        """Answer without a request, and close."""
        self._limits.on_refusal(error.status)
        retry = error.retry_after_seconds
        headers = "" if retry is None else f"retry-after: {retry}\r\n"
        if self.transport is not None:
            answer = http_errors.closing_response(error.status, error.body, headers)
            self.transport.write(answer)
        self.force_close()


def _mistake(error: HttpProcessingError) -> http_errors.Mistake:
    """What aiohttp's parser refused."""
    if isinstance(error, LineTooLong) or "Too many headers" in error.message:
        return http_errors.head_too_long()
    return http_errors.not_http()


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
