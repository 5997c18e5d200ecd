"""What an SRE sees of the requests: each counted once, as what it was; probes are not requests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
COUNTED = "sluice_router_requests_total{"
FIRST_BYTES = "sluice_router_first_byte_seconds_count{"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def counts(
    client: aiohttp.ClientSession, router: fakes.RunningRouter, series: str = COUNTED
) -> list[str]:
    async with client.get(router.metrics_url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    counted = [line.removeprefix(series) for line in lines if line.startswith(series)]
    return [series for series in counted if not series.endswith(" 0.0")]


@pytest.mark.parametrize(
    ("behave", "upstream", "outcome"),
    [
        (fakes.streams, {}, "complete"),
        (fakes.dies_in_stream, {}, "cut"),
        (fakes.hangs_in_stream, {"request_timeout_seconds": 1.0}, "cut"),
    ],
)
async def test_a_stream_is_counted_by_how_it_ended(
    client: aiohttp.ClientSession,
    behave: fakes.Behaviour,
    upstream: dict[str, float],
    outcome: str,
) -> None:
    async with (
        fakes.running_engine(behave) as engine,
        fakes.running_router(engine.url, upstream=upstream) as router,
    ):
        engine.gate.set()
        async with client.post(router.url + "/v1/completions", data=BODY) as response:
            assert response.status == 200
            await response.read()
        route = "/v1/completions"
        assert await counts(client, router) == [
            f'code="200",outcome="{outcome}",route="{route}"}} 1.0'
        ]
        assert await counts(client, router, FIRST_BYTES) == ['answer="stream"} 1.0']


async def test_an_error_that_is_the_whole_answer_is_complete(client: aiohttp.ClientSession) -> None:
    async with fakes.running_router("http://127.0.0.1:9") as router:
        async with client.post(router.url + "/v1/completions", data=b"{") as response:
            assert response.status == 400
        assert await counts(client, router) == [
            'code="400",outcome="complete",route="/v1/completions"} 1.0'
        ]


async def test_the_log_names_a_cause_only_where_there_is_one(
    client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.router")
    async with (
        fakes.running_engine(fakes.dies_in_stream) as engine,
        fakes.running_router(engine.url) as router,
    ):
        engine.gate.set()
        for body in (b"{", BODY):
            async with client.post(router.url + "/v1/completions", data=body) as response:
                await response.read()
    refused, cut = (r.getMessage() for r in caplog.records if "/v1/completions" in r.getMessage())
    assert " error=" in refused
    assert "cause=" not in refused
    assert " cause=ClientPayloadError(" in cut


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (400, {"code": "invalid_value", "param": "temperature"}, "invalid_value:temperature"),
        (429, {"code": "queue_full"}, "queue_full"),
        (404, {"type": "not_found_error"}, "not_found_error"),
        (422, {"code": "a\nforged line"}, "unknown"),
        (400, None, "unknown"),
    ],
)
async def test_the_log_says_why_an_engine_refused(
    client: aiohttp.ClientSession,
    caplog: pytest.LogCaptureFixture,
    status: int,
    error: dict[str, str] | None,
    words: str,
) -> None:
    async def refuses(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": error}, status=status)

    caplog.set_level(logging.INFO, "sluice.router")
    async with (
        fakes.running_engine(refuses) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == status
        whole = await counts(client, router, FIRST_BYTES)
        assert whole == ([] if status == 429 else ['answer="whole"} 1.0']), "429: tried again"
    (line,) = (r.getMessage() for r in caplog.records if "/v1/completions" in r.getMessage())
    assert f" refused={words}" in line
    assert "\n" not in line


async def test_what_alerts_count_begins_at_0(client: aiohttp.ClientSession) -> None:
    """A counter that appears as 1 has no rate: Prometheus would miss the first failure."""
    async with fakes.running_router("http://127.0.0.1:9") as router:
        url = router.metrics_url + "/metrics"
        async with client.get(url) as response:
            text = await response.text()
        assert f'{COUNTED}code="503",outcome="complete",route="/v1/completions"}} 0.0' in text
        assert f'{COUNTED}code="200",outcome="cut",route="/v1/chat/completions"}} 0.0' in text
        for counter in ("retries", "streams_resumed"):
            assert f'sluice_router_{counter}_total{{reason="broken"}} 0.0' in text


async def test_probes_are_not_requests(client: aiohttp.ClientSession) -> None:
    async with fakes.running_router("http://127.0.0.1:9") as router:
        for url in (router.url, router.metrics_url):
            async with client.get(url + "/health") as response:
                assert response.status == 200
        async with client.get(router.metrics_url + "/ready") as response:
            assert response.status == 200
        assert await counts(client, router) == []


@pytest.mark.parametrize("path", ["/load", "/metrics", "/picks", "/ready"])
async def test_clients_do_not_reach_what_names_pods(
    client: aiohttp.ClientSession, path: str
) -> None:
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        client.get(router.url + path) as response,
    ):
        assert response.status == 404
