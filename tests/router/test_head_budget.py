"""Unfinished heads have bytes of their own: they keep no body out, and the oldest one makes way.
Complete ones count with their tenant's bodies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import BODY, RawConnection, raw_connection
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


def streaming_head(key: str, head_bytes: int) -> bytes:
    """Of a completion, with a complete head of so many bytes or a little more."""
    count = head_bytes // 8000
    long = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 7990) for number in range(count))
    return (
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
        b"%sContent-Length: %d\r\n\r\n" % (key.encode(), long, len(BODY))
    )


async def begun(stack: AsyncExitStack, url: str, request: bytes) -> tuple[RawConnection, bytes]:
    """The connection, and the first line of the answer."""
    connection = await stack.enter_async_context(raw_connection(url))
    connection.writer.write(request)
    head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
    return connection, head.partition(b"\r\n")[0]


async def status_in_two_segments(stack: AsyncExitStack, url: str) -> int:
    """Of bob's request, whose head comes in two segments."""
    connection = await stack.enter_async_context(raw_connection(url))
    request = streaming_head("bobs", 0) + BODY
    connection.writer.write(request[:60])
    await asyncio.sleep(0.1)
    connection.writer.write(request[60:])
    head = await asyncio.wait_for(connection.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
    return int(head.split(b" ", 2)[1])


@asynccontextmanager
async def two_tenants(
    stack: AsyncExitStack, folder: Path, max_buffered_bytes: int
) -> AsyncIterator[tuple[fakes.RunningRouter, asyncio.Event]]:
    """A router for alice and bob, and the gate behind which answers end."""
    (folder / "bob").write_text("bobs")
    engine = await stack.enter_async_context(fakes.running_engine(fakes.streams_when_let))
    router = await stack.enter_async_context(
        fakes.running_router(
            engine.url,
            server={"max_buffered_bytes": max_buffered_bytes},
            auth=keys_in(folder),
        )
    )
    try:
        yield router, engine.gate
    finally:
        engine.gate.set()


async def test_complete_heads_of_one_tenant_end_no_unfinished_head(tmp_path: Path) -> None:
    """60 streams with heads of 120 KiB: thrice the eighth."""
    request = streaming_head("secret", 120 * KIBIBYTE) + BODY
    async with AsyncExitStack() as stack, two_tenants(stack, tmp_path, 16 * MEBIBYTE) as running:
        router, gate = running
        client = await stack.enter_async_context(aiohttp.ClientSession())
        streams = []
        for _ in range(60):
            stream, line = await begun(stack, router.url, request)
            assert b" 200 " in line
            streams.append(stream)
        await until_buffered(router, client, 6 * MEBIBYTE, 8 * MEBIBYTE)
        unfinished = await stack.enter_async_context(raw_connection(router.url))
        unfinished.writer.write(b"GET /health HTTP/1.1\r\n")
        await asyncio.sleep(0.05)
        assert b" 200 " in (await begun(stack, router.url, request))[1]
        assert await status_in_two_segments(stack, router.url) == 200
        unfinished.writer.write(b"Host: x\r\n\r\n")
        assert (await asyncio.wait_for(unfinished.answer(), PATIENCE_SECONDS)).status == 200
        gate.set()
        await until_buffered(router, client, 0, 0)


async def test_complete_heads_count_for_their_tenant(tmp_path: Path) -> None:
    """14 MiB are for requests, of which large ones have 10.5, and one tenant 3/4 of that."""
    request = streaming_head("secret", 120 * KIBIBYTE) + BODY
    async with AsyncExitStack() as stack, two_tenants(stack, tmp_path, 16 * MEBIBYTE) as running:
        router, gate = running
        client = await stack.enter_async_context(aiohttp.ClientSession())
        lines = [(await begun(stack, router.url, request))[1] for _ in range(70)]
        assert sum(b" 200 " in line for line in lines) == 14 * MEBIBYTE * 9 // 16 // len(request)
        assert lines[-1].split(b" ")[1] == b"429"
        assert await status_in_two_segments(stack, router.url) == 200
        gate.set()
        await until_buffered(router, client, 0, 0)
        assert b" 200 " in (await begun(stack, router.url, request))[1]


async def test_what_waits_behind_answers_makes_way_too(tmp_path: Path) -> None:
    """An eighth of 512 KiB, full of what one tenant sent behind requests that are answered."""
    async with AsyncExitStack() as stack, two_tenants(stack, tmp_path, 4 * MEBIBYTE) as running:
        router, gate = running
        streams = []
        for size in [60_000] * 9 + [4_000] * 12 + [400] * 12 + [0] * 20:
            stream, line = await begun(stack, router.url, streaming_head("secret", 0) + BODY)
            assert b" 200 " in line
            stream.writer.write(b"GET /health HTTP/1.1\r\nX-A: " + b"y" * size)
            streams.append(stream)
        await asyncio.sleep(0.1)
        assert await status_in_two_segments(stack, router.url) == 200
        gate.set()
        for stream in streams:
            rest = stream.reader.readuntil(b"[DONE]")
            assert b"[DONE]" in await asyncio.wait_for(rest, PATIENCE_SECONDS)


async def test_refused_heads_whose_bodies_do_not_come_make_way(tmp_path: Path) -> None:
    """They stay for a while, so that their clients read the answer, but keep nobody out."""
    request = streaming_head("unknown", 100 * KIBIBYTE)
    async with AsyncExitStack() as stack, two_tenants(stack, tmp_path, 4 * MEBIBYTE) as running:
        router, _ = running
        client = await stack.enter_async_context(aiohttp.ClientSession())
        for _ in range(20):
            assert b" 401 " in (await begun(stack, router.url, request))[1]
        await until_buffered(router, client, 400 * KIBIBYTE, 512 * KIBIBYTE)
        assert await status_in_two_segments(stack, router.url) == 200
