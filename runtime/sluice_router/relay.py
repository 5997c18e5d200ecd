"""Passes an answer on to the client, and ends it in every case.

Bytes pass as they are, except for the router's comments in replies to private calls. Before the
first byte a failure is an ordinary error answer. After it, a stream of events continues with the
next reply, or ends with one error event and no `[DONE]`; anything else is cut off, so that it
cannot pass for complete. Errors have the form that the route's clients expect.

Of a stream more than 64 KiB may be held at once: of events that belong together, and of what the
client does not read. That is counted, as an answer that is passed on when it is whole is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import Final

from aiohttp import HttpVersion, HttpVersion11, web
from multidict import CIMultiDict
from sluice_contract.http_errors import status_for

from sluice_router import sse
from sluice_router.attempts import Reply
from sluice_router.byte_budget import SMALL_BYTES, Body, ByteBudget
from sluice_router.errors import (
    JSON_CONTENT_TYPE,
    AttemptFailedError,
    EngineFailedError,
    RouterError,
    SlowClientError,
    refusal,
)
from sluice_router.resume import Progress

FAIL_SECONDS: Final = 2.0
"""Longest time a client may take to read the error that ends its stream."""
HELD_UP_SECONDS = 5.0
"""A longer write means that an engine may have broken off because of the client."""
NO_BUFFERING = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}
"""Headers for proxies in front of the router, which would otherwise hold events back."""

Buffer = bytes | bytearray | memoryview


class ErrorEventError(Exception):
    """The stream ended with an error event."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body
        """JSON of the error."""


def error_response(error: RouterError, path: str) -> web.Response:
    """An error as the whole answer of the route with this path."""
    status = status_for(path, error.status)
    response = web.Response(status=status, headers=error.headers, body=error.body_for(path))
    if "Connection" in response.headers:
        response.force_close()  # the header alone does not close it
    return response


def _response(status: int, headers: CIMultiDict[str], version: HttpVersion) -> web.StreamResponse:
    """A response whose head waits for its first bytes, as aiohttp's for whole answers do. These
    have a length, or chunks, which HTTP/1.0 has not."""
    if version < HttpVersion11:
        return web.StreamResponse(status=status, headers=headers)
    response = web.Response(status=status, headers=headers)
    if "Content-Length" not in headers:
        response.enable_chunked_encoding()
    return response


class Relay:
    """Passes one answer on to one client: of one reply, or of several that continue it."""

    def __init__(
        self, request: web.BaseRequest, budget: ByteBudget, tenant: str | None = None
    ) -> None:
        """`budget`: holds, for the tenant, an answer that is passed on when it is whole, and of a
        stream what is long."""
        self._request = request
        self._tenant = tenant
        self._budget = budget
        self._longest_write_seconds = 0.0
        self._response: web.StreamResponse | None = None
        self._streams = False
        self._ended = False
        self._in_event = False
        """Whether only the beginning of an event was written."""

    async def run(self, reply: Reply, progress: Progress | None) -> web.StreamResponse:
        """Pass everything on; returns when all of it was written. `progress` is required for a
        reply to a private call.

        Raises:
            AttemptFailedError: the engine broke off; call `run` again with a continuing reply.
            RouterError: the engine broke off, and no reply can continue; call `fail` with it.
            ConnectionResetError: the client reads nothing; its connection is closed.
        """
        if self._response is not None and not reply.private:
            raise EngineFailedError(f"{reply.engine} does not go on with it: {reply.status}")
        held = Body(self._budget, self._tenant)
        try:
            if reply.private:
                assert progress is not None, "without it no call is private"
                response = await self._pass_private(reply, progress, held)
            else:
                response = await self._pass_on(reply, held)
        except EngineFailedError as error:
            failure = self._broken_off(error)
        except ErrorEventError as event:
            refused = refusal(event.body, nothing_sent=self._response is None)
            if isinstance(refused, RouterError):
                raise refused from None
            failure = refused
        else:
            await response.write_eof()
            return response
        finally:
            held.release()
        goes_on = reply.private and progress is not None and not progress.forgotten
        raise failure if goes_on else failure.error

    async def fail(self, error: RouterError) -> web.StreamResponse:
        """End the answer with an error, in the way that its state allows."""
        response = self._response
        if response is None or not response.prepared:
            return error_response(error, self._request.path)
        if not self._streams or self._in_event:
            self._request.protocol.force_close()
            return response
        if not self._ended:
            path = self._request.path
            await self._send_end(response.write(sse.error_event(path, error.body_for(path))))
        await self._send_end(response.write_eof())
        return response

    async def _pass_on(self, reply: Reply, held: Body) -> web.StreamResponse:
        response = await self._begin(reply)
        if not reply.streams_events:
            chunk = reply.first
            while chunk:
                await self._write(response, [chunk])
                chunk = await reply.read()
            return response
        error = None
        async for events in whole_events(reply, held):
            await self._write(response, [events])
            self._ended = sse.ends_stream(events)
            error = sse.error_at_end(events) if self._ended else None
        if error is not None:
            raise ErrorEventError(error)
        if not self._ended:
            raise EngineFailedError(f"{reply.engine} ended the stream without its last event")
        return response

    async def _pass_private(
        self, reply: Reply, progress: Progress, held: Body
    ) -> web.StreamResponse:
        if progress.streams:
            async for pieces in events_of(reply, progress, held):
                response = self._response or await self._begin(reply)
                await self._write(response, pieces)
                self._ended = progress.done
            return response
        await read_answer(reply, progress, held)
        response = await self._begin(reply, whole_bytes=held.held_bytes)
        for piece in held.pieces():
            await self._write(response, [piece])
        return response

    async def _begin(self, reply: Reply, whole_bytes: int | None = None) -> web.StreamResponse:
        """The response, whose head waits for its first bytes; `whole_bytes`: of the answer, where
        events brought it and the client did not ask for events."""
        headers = CIMultiDict(reply.headers)
        self._streams = reply.streams_events and whole_bytes is None
        if self._streams:
            headers.update(NO_BUFFERING)
        if whole_bytes is not None:
            for name in NO_BUFFERING:
                headers.popall(name, None)
            headers["Content-Type"] = JSON_CONTENT_TYPE
            headers["Content-Length"] = str(whole_bytes)
        self._response = response = _response(reply.status, headers, self._request.version)
        await response.prepare(self._request)
        return response

    def _broken_off(self, error: EngineFailedError) -> AttemptFailedError:
        """Blames the engine, unless it may have waited for the client."""
        if self._longest_write_seconds < HELD_UP_SECONDS:
            return AttemptFailedError("broken", error)
        self._longest_write_seconds = 0.0
        slow = SlowClientError(f"{error} after the client had not read for a while")
        slow.__cause__ = error
        return AttemptFailedError("slow_client", slow)

    async def _write(self, response: web.StreamResponse, pieces: Sequence[Buffer]) -> None:
        """Some of the answer, of a stream whole events: long ones in parts, so that the connection
        holds no copy of all. The connection gives up a client that does not read."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        if len(pieces) == 1 and len(pieces[0]) <= SMALL_BYTES:
            await response.write(pieces[0])
        else:
            for part, is_last in _parts_of(pieces):
                self._in_event = not is_last
                await response.write(part)
        self._longest_write_seconds = max(self._longest_write_seconds, loop.time() - start)

    async def _send_end(self, writing: Awaitable[None]) -> None:
        """Finish `writing`, or abort the connection: closing it would wait for the client."""
        try:
            async with asyncio.timeout(FAIL_SECONDS):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            message = f"the client read nothing for {FAIL_SECONDS:g} seconds"
            raise ConnectionResetError(message) from None


def _parts_of(pieces: Sequence[Buffer]) -> Iterator[tuple[Buffer, bool]]:
    """Parts of at most `SMALL_BYTES`, and of each whether it is the last: few and short pieces are
    one part."""
    if sum(map(len, pieces)) <= SMALL_BYTES:
        yield pieces[0] if len(pieces) == 1 else b"".join(pieces), True
        return
    for number, piece in enumerate(pieces, 1):
        view = memoryview(piece)
        for begin in range(0, len(view), SMALL_BYTES):
            end = begin + SMALL_BYTES
            yield view[begin:end], number == len(pieces) and end >= len(view)


async def whole_events(reply: Reply, held: Body) -> AsyncIterator[bytes | bytearray]:
    """Whole events, as they come; `held` counts what is held back, and what is being written.

    Raises:
        EngineFailedError: the engine broke off.
        OverloadedError: a long group does not fit into the budget.
    """
    events, chunk = sse.WholeEvents(), reply.first
    while chunk:
        whole = events.feed(chunk)
        size = len(whole) + events.held_bytes
        if size > SMALL_BYTES:
            held.hold(size)
        elif held.held_bytes:
            held.hold(0)
        if whole:
            yield whole
        chunk = await reply.read()


async def events_of(
    reply: Reply, progress: Progress, held: Body
) -> AsyncIterator[Sequence[Buffer]]:
    """Whole events, as they come, to the stream's end. Where only `[DONE]` is missing, it is
    supplied.

    Raises:
        EngineFailedError: the engine broke off.
        ErrorEventError: it ended the stream.
        OverloadedError: a long group does not fit into the budget.
    """
    try:
        async for events in whole_events(reply, held):
            read = progress.read(events)
            if read.pieces:
                yield read.pieces
            if read.error is not None:
                raise ErrorEventError(read.error)
    except EngineFailedError:
        if not progress.last_seen and not progress.done:
            raise
    if not progress.done:
        if not progress.last_seen:
            raise EngineFailedError(f"{reply.engine} ended the stream without its last event")
        progress.done = True
        yield [sse.DONE]


async def read_answer(reply: Reply, progress: Progress, answer: Body) -> None:
    """Hold the whole answer, which is the only event with data, at the stream's end.

    Raises:
        EngineFailedError: the engine broke off.
        ErrorEventError: it ended the stream.
        OverloadedError: it does not fit into the budget.
    """
    events, line, chunk = sse.WholeEvents(), sse.DataLine(), reply.first
    try:
        while chunk:
            before, data, behind = line.split(chunk)
            read = progress.read(events.feed(before + behind))
            if read.error is not None:
                raise ErrorEventError(read.error)
            if data:
                answer.add(data)
            chunk = await reply.read()
    except EngineFailedError:
        if not line.ended:
            raise
    if not line.ended:
        raise EngineFailedError(f"{reply.engine} ended the stream without an answer")
