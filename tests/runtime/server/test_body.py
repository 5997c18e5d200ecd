"""Reading a body: how long it may take, and how large it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from fastapi import Request
from sluice_runtime.server.body import read_body
from sluice_runtime.server.failures import MistakenError, error_response
from starlette.types import Message

from tests.patience import PATIENCE_SECONDS


def request(parts: Sequence[bytes], *, ends: bool = True) -> Request:
    """A request whose body comes in `parts`; without an end it never comes as a whole."""
    coming = iter(parts)

    async def receive() -> Message:
        part = next(coming, None)
        if part is None and not ends:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    return Request({"type": "http", "headers": []}, receive)


async def test_a_body_that_comes_in_parts_is_read_as_one() -> None:
    assert await read_body(request([b"ab", b"c"]), max_bytes=3) == b"abc"


async def test_a_body_that_grows_beyond_the_cap_is_refused_before_its_end() -> None:
    with pytest.raises(MistakenError, match="allowed: 3 bytes"):
        await read_body(request([b"ab", b"cd"], ends=False), max_bytes=3)


async def test_a_body_that_does_not_come_is_a_408_that_ends_the_connection() -> None:
    with pytest.raises(MistakenError, match=r"within 0\.02 seconds") as late:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await read_body(request([b"a"], ends=False), max_bytes=3, seconds=0.02)
    response = error_response(late.value)
    assert response.status_code == 408
    assert response.headers["connection"] == "close"
