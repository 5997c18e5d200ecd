"""Admits requests and counts those in progress, so that a drain knows when the last has finished.

ASGI middleware around the application: a request is in progress until its last byte is sent. Also
limits the size of every request's head and assigns its id. Knows no engine.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from sluice_contract.http_errors import (
    REQUEST_ID_HEADER,
    head_too_large,
    is_acceptable_request_id,
)
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.failures import MistakenError, error_response

_WORK_PATHS: Final = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/generate"}
)


class Gate:
    """Open until `close`; afterwards new work is refused and requests in progress may finish."""

    def __init__(self) -> None:
        self.closed = False
        self.inside = 0
        """Requests in progress."""
        self._changed = asyncio.Condition()

    def close(self) -> None:
        """Refuses new work from now on."""
        self.closed = True

    async def emptied(self) -> None:
        """Returns when no request is in progress."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.inside == 0)

    async def enter(self) -> None:
        """Counts one more request.

        Raises:
            UnavailableError: the gate is closed.
        """
        if self.closed:
            raise UnavailableError("the server drains; ask another replica")
        self.inside += 1

    async def leave(self) -> None:
        """Counts one request less."""
        async with self._changed:
            self.inside -= 1
            self._changed.notify_all()


class GateMiddleware:
    """Applies the gate to work, and an x-request-id to everything."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID_HEADER] = request_id
            await send(message)

        if refusal := _head_refusal(scope):
            await refusal(scope, receive, send_with_id)
        elif scope["path"] in _WORK_PATHS:
            await self._work(scope, receive, send_with_id)
        else:
            await self._app(scope, receive, send_with_id)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._gate.enter()
        except UnavailableError as error:
            response = error_response(error)
            response.headers["connection"] = "close"
            await response(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            await self._gate.leave()


def _head_refusal(scope: Scope) -> Response | None:
    """The refusal of a request whose head is too large."""
    query = scope["query_string"]
    target_bytes = len(scope["raw_path"]) + (len(query) + 1 if query else 0)
    sizes = ((name.decode("latin-1"), len(name) + len(value)) for name, value in scope["headers"])
    mistake = head_too_large(target_bytes, sizes)
    return error_response(MistakenError(mistake)) if mistake else None


def _request_id(headers: Headers) -> str:
    """The client's id if it is safe in headers and logs, else a new one."""
    given = headers.get(REQUEST_ID_HEADER, "")
    return given if is_acceptable_request_id(given) else secrets.token_hex(16)
