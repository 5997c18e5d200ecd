"""Passes one engine's answer on to the client, byte for byte, and ends it in every case.

Before the first byte a failure is an ordinary error answer. After it, a stream of events ends with
one error event and no `[DONE]`; anything else is cut off, so that it cannot pass for complete.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from aiohttp import web

from sluice_router import sse
from sluice_router.attempts import Reply
from sluice_router.errors import EngineFailedError, RouterError, SlowClientError

WRITE_SECONDS = 45.0
"""A client that reads nothing for this long is disconnected. Engines wait longer (60 s) for us."""
FAIL_SECONDS: Final = 2.0
"""Longest time a client may take to read the error that ends its stream."""
HELD_UP_SECONDS = 5.0
"""After a longer write, an engine that broke off may have done so because of the client."""
NO_BUFFERING = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}
"""For proxies in front of the router, which would hold events back."""


def error_response(error: RouterError) -> web.Response:
    """An error as the whole answer."""
    return web.Response(status=error.status, headers=error.headers, body=error.body)


class Relay:
    """Passes one reply on to one client."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._longest_write_seconds = 0.0
        self._response: web.StreamResponse | None = None
        self._events: sse.WholeEvents | None = None

    async def run(self, reply: Reply) -> web.StreamResponse:
        """Pass everything on; returns when all of it was written.

        Raises:
            EngineFailedError: the engine broke off; call `fail` with it.
            SlowClientError: it did so perhaps because of the client; call `fail` with it.
            ConnectionResetError: the client reads nothing; its connection is closed.
        """
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        if reply.streams_events:
            self._events = sse.WholeEvents()
            response.headers.update(NO_BUFFERING)
        self._response = response
        await response.prepare(self._request)
        try:
            await self._pass_on(reply, response)
        except EngineFailedError as error:
            if self._longest_write_seconds < HELD_UP_SECONDS:
                raise
            message = f"{error} after the client had not read for a while"
            raise SlowClientError(message) from error
        await self._send(response.write_eof(), WRITE_SECONDS)
        return response

    async def fail(self, error: RouterError) -> web.StreamResponse:
        """End the answer with an error, in the way that its state allows."""
        response = self._response
        if response is None or not response.prepared:
            return error_response(error)
        if self._events is None:
            self._request.protocol.force_close()
            return response
        if not self._events.ended:
            await self._send(response.write(sse.error_event(error.body)), FAIL_SECONDS)
        await self._send(response.write_eof(), FAIL_SECONDS)
        return response

    async def _pass_on(self, reply: Reply, response: web.StreamResponse) -> None:
        chunk = reply.first
        while chunk:
            whole = self._events.feed(chunk) if self._events else chunk
            if whole:
                await self._send(response.write(whole), WRITE_SECONDS)
            chunk = await reply.read()
        if self._events is not None and not self._events.ended:
            name = reply.target.engine.endpoint.name
            raise EngineFailedError(f"engine {name} ended the stream without [DONE]")

    async def _send(self, writing: Awaitable[None], limit_seconds: float) -> None:
        """Finish `writing`, or abort the connection: closing it would wait for the client."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        try:
            async with asyncio.timeout(limit_seconds):
                await writing
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            message = f"the client read nothing for {limit_seconds:g} seconds"
            raise ConnectionResetError(message) from None
        self._longest_write_seconds = max(self._longest_write_seconds, loop.time() - start)
