"""Engines that take private calls get them signed; others get the request as the client sent it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.wire.private_calls import PRIVATE_HEADER

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.private_engines import SERVES, Cut
from tests.router.test_resuming import EXPECTED, STREAM, folded, only_beginnings, service


async def test_engines_that_take_no_private_calls_get_the_clients_body(tmp_path: Path) -> None:
    async with service(tmp_path, count=1) as running:
        old = running.engines[0]
        old.load, old.behave = fakes.load_report(), fakes.streams
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await running.loads())[0]["report"]["privateCalls"]:
                old.polled.clear()
                await old.polled.wait()
        _, _, body = await running.ask()
        assert body.endswith(fakes.DONE)
        assert json.loads(old.calls[-1][2])["prompt"] == "x"


async def has_another_key(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """Refuses private calls, and serves all others."""
    if PRIVATE_HEADER in request.headers:
        return await fakes.refuses(403, code="invalid_signature")(engine, request)
    return await fakes.streams(engine, request)


@pytest.mark.parametrize("stream", [True, False])
async def test_engines_with_another_key_get_the_clients_body(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    async with service(tmp_path, count=4) as running:
        for engine in running.engines:
            engine.behave = has_another_key
        for _ in range(8):
            status, _, body = await running.ask(stream=stream)
            assert (status, body.endswith(fakes.DONE)) == (200, True)
        calls = [call for engine in running.engines for call in engine.calls]
        refused = [headers for _, headers, _ in calls if PRIVATE_HEADER in headers]
        asked = sum(bool(engine.calls) for engine in running.engines)
        assert asked > 1
        assert (len(refused), len(calls)) == (asked, 8 + asked), "each has refused once"
        assert await running.counted('sluice_router_retries_total{reason="signature"}') == asked
    assert caplog.text.count("refuses the router's signature") == asked


async def test_a_resume_goes_past_an_engine_with_another_key(tmp_path: Path) -> None:
    async with service(tmp_path, count=3) as running:
        refuses = fakes.refuses(403, code="invalid_signature")
        behave = only_beginnings(running.script, refuses, times=1)
        for engine in running.engines:
            engine.behave = behave
        running.script.cuts = [Cut(len(STREAM) // 2)]
        assert folded((await running.ask())[2]) == EXPECTED
        assert [len(engine.calls) for engine in running.engines] == [1, 1, 1]


async def test_without_a_key_nothing_is_private() -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        aiohttp.ClientSession() as client,
    ):
        engine.load = SERVES
        engine.polled.clear()
        await engine.polled.wait()
        body = b'{"model": "m", "prompt": "x", "stream": true}'
        async with client.post(router.url + "/v1/completions", data=body) as response:
            assert (await response.read()).endswith(fakes.DONE)
        assert engine.calls[0][2] == body


async def test_long_bodies_travel_signed_and_in_pieces(tmp_path: Path) -> None:
    async with service(tmp_path) as running:
        running.script.cuts = [Cut(300)]
        assert folded((await running.ask(prompt="x" * 1_000_000))[2]) == EXPECTED
        assert len(running.script.heads) == 2
