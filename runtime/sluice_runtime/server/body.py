"""Reads a request's body, up to the cap and in time. Knows nothing of what is in it."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import Request
from sluice_contract import http_errors

from sluice_runtime.server.failures import MistakenError

BODY_SECONDS: Final = 60.0
"""A request whose body takes longer is given up; while it comes, a drain would wait for it."""


async def read_body(request: Request, max_bytes: int, seconds: float = BODY_SECONDS) -> bytes:
    """The body.

    Raises:
        MistakenError: it is compressed, is longer than `max_bytes` (no more of it is read), or
            did not come within `seconds`.
        starlette.requests.ClientDisconnect: the client went before all of it came.
    """
    if mistake := http_errors.wrong_encoding(request.headers.get("content-encoding")):
        raise MistakenError(mistake)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise MistakenError(http_errors.body_too_large(max_bytes))
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, max_bytes)
    except TimeoutError:
        raise MistakenError(http_errors.body_too_late(seconds)) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise MistakenError(http_errors.body_too_large(max_bytes))
    return bytes(body)
