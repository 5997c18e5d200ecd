"""Sends responses, as server-sent events or as one body. A stream ends with either the route's last
event or an error.

Detects clients that disconnect or stop reading. Long bodies are sent in parts, so that backpressure
works and no second copy is made.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace
from sluice_contract.http_errors import ANTHROPIC_PATHS
from sluice_contract.wire.private_calls import MORE_LINE, EventComment, comment_line
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from sluice_runtime.server.failures import error_body, log_unforeseen
from sluice_runtime.server.response_writers import Chunk, NamedEvents

WRITE_SECONDS: Final = 60.0
"""Time without reading after which a client is disconnected."""
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}

_PART_BYTES: Final = 256 * 1024

ResultT = TypeVar("ResultT")


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
        client = _Client(send, self._write_seconds)
        await until_client_leaves(receive, self._run(client), client.stalls())

    async def _run(self, client: _Client) -> None:
        await client.send(_start(self))
        async with aclosing(self._events) as events:
            try:
                async for event in events:
                    await client.send_body(_event(event))
                await client.send_body(self._end.done)
            except Exception as error:
                log_unforeseen(error)
                await client.send_body(self._error_event(error))
        await client.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _error_event(self, error: Exception) -> bytes:
        body = error_body(error, self._end.error_path)
        return _event(NamedEvents((body,)) if self._end.error_path else body)


class WholeAnswer(Response):
    """A JSON response that is sent in parts, since it may be long."""

    def __init__(self, body: bytes, write_seconds: float = WRITE_SECONDS) -> None:
        super().__init__(body, media_type="application/json")
        self._write_seconds = write_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if len(self.body) <= _PART_BYTES:
            await super().__call__(scope, receive, send)
        else:
            client = _Client(send, self._write_seconds)
            await until_client_leaves(receive, self._run(client), client.stalls())

    async def _run(self, client: _Client) -> None:
        await client.send(_start(self))
        await client.send_body(self.body)
        await client.send({"type": "http.response.body", "body": b"", "more_body": False})


class _Client:
    """A client that is written to, with one timer for all writes."""

    def __init__(self, send: Send, write_seconds: float) -> None:
        self._send = send
        self._write_seconds = write_seconds
        self._time = asyncio.get_running_loop().time
        self._write_began: float | None = None
        """When the write began that has not ended."""

    async def send_body(self, body: bytes | memoryview) -> None:
        """Sends a part of the body."""
        for begin in range(0, len(body), _PART_BYTES):
            part = bytes(body[begin : begin + _PART_BYTES])
            await self.send({"type": "http.response.body", "body": part, "more_body": True})

    async def send(self, message: Message) -> None:
        """Sends a message."""
        self._write_began = self._time()
        await self._send(message)
        self._write_began = None

    async def stalls(self) -> None:
        """Returns when a write takes longer than `write_seconds`, as the client does not read."""
        left_seconds = self._write_seconds
        while left_seconds > 0:
            await asyncio.sleep(left_seconds)
            now = self._time()
            began = now if self._write_began is None else self._write_began
            left_seconds = began + self._write_seconds - now


async def until_client_leaves(
    receive: Receive, work: Coroutine[Any, Any, ResultT], *limits: Coroutine[Any, Any, None]
) -> ResultT | None:
    """Awaits `work` and returns its result; if the client disconnects or a limit returns first,
    cancels it and returns None.

    The request's body must have been read already, so that `receive` can only report a disconnect.
    """
    working = asyncio.ensure_future(work)
    ends = [asyncio.ensure_future(end) for end in (_disconnected(receive), *limits)]
    try:
        await asyncio.wait([working, *ends], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, *ends):
            task.cancel()
        await asyncio.gather(working, *ends, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(response: Response) -> dict[str, Any]:
    return {"type": "http.response.start", "status": 200, "headers": response.raw_headers}


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
