"""Bodies that do not come keep no other tenant's connections out."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import aiohttp
import pytest
from sluice_contract.config.router import Auth
from sluice_router.errors import RouterError
from sluice_router.tenants import Uploads

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import RawConnection, raw_connection
from tests.router.test_connections import until_buffered

BODY = b'{"prompt": "x"}'
HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
    b"Content-Length: %d\r\n\r\n"
)


async def uploading(stack: AsyncExitStack, url: str, tenant: bytes) -> RawConnection:
    """All but the last byte of a request."""
    connection = await stack.enter_async_context(raw_connection(url))
    connection.writer.write(HEAD % (tenant, len(BODY)) + BODY[:-1])
    return connection


async def is_closed(connection: RawConnection) -> bool:
    """Whatever answer comes before the end."""
    with suppress(ConnectionError):
        await asyncio.wait_for(connection.reader.read(), PATIENCE_SECONDS)
    return True


async def test_one_tenants_slow_bodies_do_not_keep_another_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("greedy", "other"):
        (tmp_path / name).write_text(name)
    caplog.set_level("INFO")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.answers_json))
        auth, server = Auth(keys_directory=str(tmp_path)), {"max_connections": 8}
        router = await stack.enter_async_context(
            fakes.running_router(engine.url, server=server, auth=auth)
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        other = await uploading(stack, router.url, b"other")
        slow = [await uploading(stack, router.url, b"greedy") for _ in range(7)]
        await until_buffered(router, client, 8 * len(BODY[:-1]), 10_000)
        for closed in slow[:3]:
            latest = await stack.enter_async_context(raw_connection(router.url))
            latest.writer.write(HEAD % (b"other", len(BODY)) + BODY)
            assert (await asyncio.wait_for(latest.answer(), PATIENCE_SECONDS)).status == 200
            assert await is_closed(closed)
            latest.writer.transport.abort()
            await uploading(stack, router.url, b"greedy")
        for unharmed in (other, *slow[6:]):
            unharmed.writer.write(BODY[-1:])
            assert (await asyncio.wait_for(unharmed.answer(), PATIENCE_SECONDS)).status == 200
    refused = [record.message for record in caplog.records if " 429 " in record.message]
    assert refused
    assert all("tenant=greedy" in line and "server.maxConnections" in line for line in refused)


async def test_without_keys_a_new_connection_is_refused_beside_slow_bodies() -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.answers_json))
        router = await stack.enter_async_context(
            fakes.running_router(engine.url, server={"max_connections": 2})
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        slow = [await uploading(stack, router.url, b"") for _ in range(2)]
        await until_buffered(router, client, 2 * len(BODY[:-1]), 10_000)
        latest = await stack.enter_async_context(raw_connection(router.url))
        assert (await asyncio.wait_for(latest.answer(), PATIENCE_SECONDS)).status == 429
        for unharmed in slow:
            unharmed.writer.write(BODY[-1:])
            assert (await asyncio.wait_for(unharmed.answer(), PATIENCE_SECONDS)).status == 200


def test_the_oldest_upload_of_the_tenant_with_most_is_ended_if_that_is_beyond_its_share() -> None:
    uploads, ended = Uploads(9), list[str]()

    def end(name: str) -> object:
        def note(error: RouterError) -> None:
            assert error.status == 429
            ended.append(name)

        return note

    with ExitStack() as stack:
        for name in ("b1", "a1", "a2", "a3", "a4", "a5"):
            stack.enter_context(uploads.upload(name[0], end(name)))  # type: ignore[arg-type]
        assert [uploads.end_one() for _ in range(3)] == [True, True, False]
        assert ended == ["a1", "a2"]
    assert not uploads.end_one()
    with uploads.upload("a", end("a6")):  # type: ignore[arg-type]
        assert not uploads.end_one()
