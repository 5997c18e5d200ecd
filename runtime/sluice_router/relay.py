"""One answer on its way to the client: bytes as they arrive, and an end in every case.

Before the first byte a failure is an ordinary error answer. After it, a stream of events ends with
one error event and no `[DONE]`; anything else is cut off, so that it cannot pass for complete.
"""

from __future__ import annotations

from aiohttp import web

from sluice_router import sse
from sluice_router.dispatch import Reply
from sluice_router.errors import EngineFailedError, RouterError

NO_BUFFERING = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}
"""For proxies in front of the router, which would hold events back."""


def error_response(error: RouterError) -> web.Response:
    """An error as the whole answer."""
    return web.Response(status=error.status, headers=error.headers, body=error.body)


class Relay:
    """Passes one reply on to one client."""

    def __init__(self, request: web.BaseRequest) -> None:
        self._request = request
        self._response: web.StreamResponse | None = None
        self._events: sse.WholeEvents | None = None

    async def run(self, reply: Reply) -> web.StreamResponse:
        """Pass everything on; returns when the client has it.

        Raises:
            EngineFailedError: the engine broke off; call `fail` with it.
        """
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        if reply.streams_events:
            self._events = sse.WholeEvents()
            response.headers.update(NO_BUFFERING)
        self._response = response
        await response.prepare(self._request)
        chunk = reply.first
        while chunk:
            whole = self._events.feed(chunk) if self._events else chunk
            if whole:
                await response.write(whole)
            chunk = await reply.read()
        if self._events is not None and not self._events.ended:
            name = reply.engine.endpoint.name
            raise EngineFailedError(f"engine {name} ended the stream without [DONE]")
        await response.write_eof()
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
            await response.write(sse.error_event(error.body))
        await response.write_eof()
        return response
