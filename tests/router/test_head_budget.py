"""Heads have bytes of their own: they keep no body out, and the oldest unfinished one makes way."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import RawConnection, raw_connection
from tests.router.test_connections import keys_in, until_buffered

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
LONG_HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(
    b"X-%d: %s\r\n" % (number, b"y" * 8000) for number in range(8)
)
"""64 KB without an end."""
KEY_HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n"
)


async def filled(stack: AsyncExitStack, url: str, count: int) -> list[RawConnection]:
    connections = []
    for _ in range(count):
        connection = await stack.enter_async_context(raw_connection(url))
        connection.writer.write(LONG_HEAD)
        await connection.writer.drain()
        connections.append(connection)
    return connections


@pytest.mark.parametrize("packets", [1, 2, 3])
async def test_unfinished_heads_keep_no_tenant_out(packets: int, tmp_path: Path) -> None:
    """However a tenant's request is cut into packets: before its body, and in its head."""
    body = b'{"prompt": "%s"}' % (b"x" * 100 * KIBIBYTE)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams))
        server = {"max_buffered_bytes": 4 * MEBIBYTE}
        router = await stack.enter_async_context(
            fakes.running_router(engine.url, server=server, auth=keys_in(tmp_path))
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await filled(stack, router.url, 70)
        await until_buffered(router, client, 200 * KIBIBYTE, 4 * MEBIBYTE)
        for _ in range(3):
            tenant = await stack.enter_async_context(raw_connection(router.url))
            head = KEY_HEAD % len(body)
            pieces = {1: [head + body], 2: [head, body], 3: [head[:50], head[50:], body]}
            for piece in pieces[packets]:
                tenant.writer.write(piece)
                await asyncio.sleep(0.05)
            assert (await asyncio.wait_for(tenant.answer(), PATIENCE_SECONDS)).status == 200
        await until_buffered(router, client, 0, MEBIBYTE // 2)


async def test_the_unfinished_head_that_waited_longest_makes_way() -> None:
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(
            fakes.running_router(
                "http://127.0.0.1:9", server={"max_buffered_bytes": 8 * 3 * 70 * KIBIBYTE}
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        first, second, third = await filled(stack, router.url, 3)
        await until_buffered(router, client, 3 * len(LONG_HEAD), 4 * len(LONG_HEAD))
        first.writer.write(b"X-Goes-On: 1\r\n")
        await asyncio.sleep(0.05)
        await filled(stack, router.url, 1)
        answer = await asyncio.wait_for(second.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (429, True)
        await until_buffered(router, client, 3 * len(LONG_HEAD), 4 * len(LONG_HEAD))
        for rest in (first, third):
            rest.writer.write(b"\r\n")
            assert (await asyncio.wait_for(rest.answer(), PATIENCE_SECONDS)).status == 200


async def test_a_head_that_is_longer_than_all_may_be_is_refused_unless_it_is_complete() -> None:
    async with AsyncExitStack() as stack:
        router = await stack.enter_async_context(
            fakes.running_router("http://127.0.0.1:9", server={"max_buffered_bytes": 64 * KIBIBYTE})
        )
        (alone,) = await filled(stack, router.url, 1)
        answer = await asyncio.wait_for(alone.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (429, True)
        complete = await stack.enter_async_context(raw_connection(router.url))
        complete.writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: %s\r\n\r\n" % (b"y" * 8100))
        answer = await asyncio.wait_for(complete.answer(), PATIENCE_SECONDS)
        assert answer.status == 200
