"""Sends responses, as server-sent events or as one body. A stream ends with either the route's last
event or an error.

Detects clients that disconnect or stop reading. Long bodies are sent in parts, so that backpressure
works and no second copy is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from sluice_contract.http_errors import ANTHROPIC_PATHS
from sluice_contract.wire.private_calls import MORE_LINE, EventComment, comment_line
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sluice_runtime.server.failures import error_body, log_unforeseen
from sluice_runtime.server.response_writers import Chunk, NamedEvents

WRITE_SECONDS: Final = 60.0
"""Time without reading after which a client is disconnected."""
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_PART_BYTES: Final = 256 * 1024

ResultT = TypeVar("ResultT")


class ClientGoneError(Exception):
    """The client disconnected or stopped reading."""


class StreamEnd(NamedTuple):
    """How a stream ends."""

    done: bytes = b"data: [DONE]\n\n"
    """Bytes to send after all events."""
    error_path: str = ""
    """Path of the route in whose format errors are sent; empty: in OpenAI's format."""


def stream_end(path: str, *, private: bool) -> StreamEnd:
    """How the stream of a route ends. Anthropic's routes have a last event of their own, so no
    `[DONE]`, and their own format of errors. In a private call errors have OpenAI's format, and the
    router converts them for the client."""
    if path not in ANTHROPIC_PATHS:
        return StreamEnd()
    return StreamEnd(b"", "" if private else path)


class CommentedEvent(NamedTuple):
    """An event of a private call with its comment, or a comment alone (`data` is None)."""

    comment: EventComment
    data: Chunk | msgspec.Raw | None


Event = Chunk | CommentedEvent


class EventStream(StreamingResponse):
    """A response that sends each object of `events` as one event."""

    def __init__(
        self,
        events: AsyncGenerator[Event, None],
        write_seconds: float = WRITE_SECONDS,
        end: StreamEnd | None = None,
    ) -> None:
        """`end`: by default `[DONE]`, and errors in OpenAI's format."""
        super().__init__((), headers=_HEADERS, media_type="text/event-stream")
        self._events = events
        self._end = end or StreamEnd()
        self._write_seconds = write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_client_leaves(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        await self._send(send, _start(self))
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await self._body(send, _event(event))
                await self._body(send, self._end.done)
            except ClientGoneError:
                raise
            except Exception as error:
                log_unforeseen(error)
                await self._body(send, self._error_event(error))
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    def _error_event(self, error: Exception) -> bytes:
        body = error_body(error, self._end.error_path)
        return _event(NamedEvents((body,)) if self._end.error_path else body)

    async def _body(self, send: Send, body: bytes) -> None:
        for part in _parts(body):
            await self._send(send, {"type": "http.response.body", "body": part, "more_body": True})

    async def _send(self, send: Send, message: Any) -> None:
        await _send_within(self._write_seconds, send, message)


class WholeAnswer(Response):
    """A JSON response that is sent in parts, since it may be long."""

    def __init__(self, body: bytes, write_seconds: float = WRITE_SECONDS) -> None:
        super().__init__(body, media_type="application/json")
        self._write_seconds = write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= _PART_BYTES:
            await super().__call__(scope, receive, send)
        else:
            await until_client_leaves(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        await self._send(send, _start(self))
        for part in _parts(self.body):
            await self._send(send, {"type": "http.response.body", "body": part, "more_body": True})
        await self._send(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, message: Any) -> None:
        await _send_within(self._write_seconds, send, message)


async def until_client_leaves(
    receive: Receive, work: Coroutine[Any, Any, ResultT]
) -> ResultT | None:
    """Awaits `work` and returns its result; if the client disconnects first, cancels it and returns
    None.

    The request's body must have been read already, so that `receive` can only report a disconnect.
    """
    gone = asyncio.ensure_future(_disconnected(receive))
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait({gone, working}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    except ClientGoneError:
        return None
    finally:
        gone.cancel()
        working.cancel()
        await asyncio.gather(gone, working, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(response: Response) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": response.raw_headers}


def _parts(body: bytes | memoryview) -> Iterator[bytes]:
    for begin in range(0, len(body), _PART_BYTES):
        yield bytes(body[begin : begin + _PART_BYTES])


async def _send_within(seconds: float, send: Send, message: Any) -> None:
    try:
        async with asyncio.timeout(seconds):
            await send(message)
    except TimeoutError:
        raise ClientGoneError from None


def _event(value: Event) -> bytes:
    if not isinstance(value, CommentedEvent):
        return b"".join(_parts_of(value))
    comment = value.comment
    if value.data is None:
        return comment_line(comment) + b"\n"
    *before, last = _parts_of(value.data)
    if not before:
        return comment_line(comment) + last
    if comment.start is not None:  # sent before anything that the router passes on
        before[0] = comment_line(EventComment(comment.start)) + before[0]
    rest = comment_line(replace(comment, start=None))
    return b"".join(MORE_LINE + part for part in before) + rest + last


def _parts_of(value: Chunk | msgspec.Raw) -> list[bytes]:
    if isinstance(value, list):
        return [_data(event) for event in value]
    if not isinstance(value, NamedEvents):
        return [_data(value)]
    return [b"event: " + event["type"].encode() + b"\n" + _data(event) for event in value.events]


def _data(value: dict[str, Any] | msgspec.Raw) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
