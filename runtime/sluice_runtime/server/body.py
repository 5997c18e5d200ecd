"""Reads a request's body, up to the cap. Knows nothing of what is in it."""

from __future__ import annotations

from fastapi import Request

from sluice_runtime.server.failures import BodyTooLargeError


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The body.

    Raises:
        BodyTooLargeError: it is longer than `max_bytes`; no more of it is read.
        starlette.requests.ClientDisconnect: the client went before all of it came.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the body is too large; allowed: {max_bytes} bytes (server.maxBodyBytes)"
    )
