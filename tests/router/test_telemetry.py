"""What a router reports of its requests: each is counted once, as what it was, and probes are not;
each has a span, and in it one for each engine that is asked.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.base import ConfigError
from sluice_contract.config.router import Auth
from sluice_contract.config.tracing import RouterTracing, Tracing
from sluice_contract.wire.load import Ledger
from sluice_contract.wire.span_export import EXPORT_SECONDS, span_recorder
from sluice_contract.wire.spans import TRACEPARENT_HEADER, Span

from tests.busy_machine import Stopwatch
from tests.collector import Collector, collecting
from tests.patience import PATIENCE_SECONDS
from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
WHOLE_BODY = b'{"model": "m", "prompt": "x"}'
CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
COUNTED = "sluice_router_requests_total{"
LEDGER = "sluice_router_ledger_total{"
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


@pytest.mark.parametrize(
    ("behave", "upstream", "fate"),
    [
        (fakes.streams, {}, "answered"),
        (fakes.dies_in_stream, {}, "lost"),
        (fakes.hangs_in_stream, {"request_timeout_seconds": 1.0}, "lost"),
        (fakes.ends_with_error(b'{"type": "invalid_request_error"}'), {}, "refused"),
        (fakes.ends_with_error(b'{"type": "server_error", "code": "x"}'), {}, "lost"),
        (fakes.refuses(400), {}, "refused"),
        (fakes.refuses(500), {}, "lost"),
    ],
)
async def test_the_ledger_has_each_request_once(
    client: aiohttp.ClientSession, behave: fakes.Behaviour, upstream: dict[str, float], fate: str
) -> None:
    async with (
        fakes.running_engine(behave) as engine,
        fakes.running_router(engine.url, upstream=upstream) as router,
    ):
        engine.gate.set()
        for method in (client.post, client.get, client.options):
            async with method(router.url + "/v1/completions", data=BODY) as response:
                await response.read()
        async with client.get(router.metrics_url + "/ledger") as response:
            ledger = await response.json()
        assert ledger == Ledger().model_dump(by_alias=True) | {fate: 1}
        assert await counts(client, router, LEDGER) == [f'fate="{fate}"}} 1.0']


async def test_the_ledger_knows_who_left_and_what_is_open(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.hangs_in_stream) as engine,
        fakes.running_router(engine.url) as router,
    ):

        async def ledger() -> Ledger:
            async with client.get(router.metrics_url + "/ledger") as response:
                return Ledger.model_validate_json(await response.read())

        async with client.post(router.url + "/v1/completions", data=BODY) as response:
            await response.content.readany()
            assert await ledger() == Ledger(open=1)
            response.close()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await engine.aborted.wait()
            while (found := await ledger()).open:
                pass
        assert found == Ledger(abandoned=1)


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


async def ask(router: fakes.RunningRouter, **headers: str) -> int:
    async with (
        aiohttp.ClientSession() as client,
        client.post(router.url + "/v1/completions", data=WHOLE_BODY, headers=headers) as response,
    ):
        await response.read()
        return response.status


@asynccontextmanager
async def traced(
    behave: fakes.Behaviour,
    collector: Collector,
    sample_ratio: float = 1.0,
    auth: Auth | None = None,
) -> AsyncIterator[tuple[fakes.RunningRouter, fakes.FakeEngine]]:
    """What it records is there when it has ended."""
    tracing = RouterTracing(endpoint=collector.url, sample_ratio=sample_ratio)
    async with (
        fakes.running_engine(behave) as engine,
        fakes.running_router(engine.url, tracing=tracing, auth=auth) as router,
    ):
        yield router, engine


async def test_a_request_is_a_part_of_its_client_s_span_and_the_engine_s_a_part_of_it() -> None:
    with collecting() as collector:
        async with traced(fakes.answers_json, collector) as (router, engine):
            headers = {TRACEPARENT_HEADER: CLIENTS, "X-Request-Id": "r1"}
            assert await ask(router, **headers) == 200
            told = engine.calls[-1][1][TRACEPARENT_HEADER]
    (request,), (attempt,) = collector.named("sluice.request"), collector.named("sluice.attempt")
    _, trace, parent, flags = CLIENTS.split("-")
    assert (request.trace_id, request.parent_id) == (trace, parent)
    assert (attempt.trace_id, attempt.parent_id) == (trace, request.span_id)
    assert told == f"00-{trace}-{attempt.span_id}-{flags}"
    assert request.process == "sluice-router"
    assert request.attributes["sluice.request_id"] == "r1"
    assert request.attributes["http.response.status_code"] == 200
    assert attempt.attributes["sluice.engine"] == engine.url
    address = attempt.attributes["server.address"], attempt.attributes["server.port"]
    assert "http://{}:{}".format(*address) == engine.url
    assert not [span for span in collector.spans if "error.type" in span.attributes]
    # A backend that sums over spans must find each request's tokens once: in the engine's span.
    assert not [name for span in collector.spans for name in span.attributes if "gen_ai" in name]
    starts, ends = zip(request.seconds, attempt.seconds, strict=True)
    assert starts[0] <= starts[1] <= ends[1] <= ends[0] <= time.time()


async def test_every_engine_that_is_asked_has_a_span_and_failures_their_error() -> None:
    with collecting() as collector:
        async with traced(fakes.dies_before_answer, collector) as (router, _):
            assert await ask(router) == 502
    (request,) = collector.named("sluice.request")
    attempts = collector.named("sluice.attempt")
    assert request.parent_id == ""
    assert "broke off before it answered" in request.error
    assert attempts
    assert {(a.parent_id, a.error) for a in attempts} == {(request.span_id, "broken")}
    assert request.attributes["error.type"] == "engine_failed"
    assert {attempt.attributes["error.type"] for attempt in attempts} == {"broken"}


async def test_what_an_engine_refuses_has_its_status_as_the_error_s_type() -> None:
    with collecting() as collector:
        async with traced(fakes.refuses(400), collector) as (router, _):
            assert await ask(router) == 400
    assert {span.attributes["error.type"] for span in collector.spans} == {"400"}


@pytest.mark.parametrize(
    ("ratio", "given", "spans"),
    [
        (0.0, None, 0),
        (0.0, CLIENTS, 0),
        (1e-9, CLIENTS, 2),
        (1.0, CLIENTS[:-2] + "00", 0),
        (1.0, "nonsense", 2),
    ],
)
async def test_the_client_says_whether_it_is_sampled_and_else_the_ratio_of_which_0_is_none(
    ratio: float, given: str | None, spans: int
) -> None:
    with collecting() as collector:
        async with traced(fakes.answers_json, collector, ratio) as (router, engine):
            headers = {} if given is None else {TRACEPARENT_HEADER: given}
            assert await ask(router, **headers) == 200
            flags = engine.calls[-1][1][TRACEPARENT_HEADER][-2:]
    assert (len(collector.spans), flags) == (spans, "01" if spans else "00")


@pytest.mark.parametrize(("key", "status", "spans"), [("right", 200, 2), ("wrong", 401, 0)])
async def test_nobody_without_a_key_decides_what_is_recorded(
    key: str, status: int, spans: int, tmp_path: Path
) -> None:
    (tmp_path / "team").write_text("right\n")
    headers = {TRACEPARENT_HEADER: CLIENTS, "Authorization": f"Bearer {key}"}
    with collecting() as collector:
        auth = Auth(keys_directory=str(tmp_path))
        async with traced(fakes.answers_json, collector, auth=auth) as (router, _):
            assert await ask(router, **headers) == status
    assert len(collector.spans) == spans


async def test_a_collector_that_is_not_there_costs_no_request() -> None:
    tracing = RouterTracing(endpoint="http://127.0.0.1:9")
    async with fakes.running_engine(fakes.answers_json) as engine:
        async with fakes.running_router(engine.url, tracing=tracing) as router:
            assert await ask(router) == 200
            watch = Stopwatch()
        assert watch.seconds < 2 * EXPORT_SECONDS


@pytest.mark.process
def test_without_tracing_nothing_of_it_is_imported() -> None:
    program = (
        "import sys; from sluice_contract.wire.span_export import span_recorder\n"
        "import sluice_router.__main__, sluice_router.serve\n"
        "with span_recorder(None, 'router') as record: assert record is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_the_extra_the_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    opened = span_recorder(Tracing(endpoint="http://c:4318"), "router")
    with pytest.raises(ConfigError, match="the extra `tracing` installed") as refused, opened:
        pass
    assert refused.value.key == "tracing.endpoint"


def test_a_span_keeps_its_ids_times_and_error() -> None:
    with collecting() as collector:
        with span_recorder(Tracing(endpoint=collector.url + "/"), "engine") as record:
            assert record is not None
            now = time.monotonic()
            record(Span("work", CLIENTS, None, now - 2, now - 1, "internal", {"n": 3}, "late"))
        (seen,) = collector.spans
    assert (seen.trace_id, seen.span_id, seen.parent_id) == (*CLIENTS.split("-")[1:3], "")
    assert seen.seconds == pytest.approx((time.time() - 2, time.time() - 1), abs=1)
    assert (seen.attributes, seen.error) == ({"n": 3}, "late")
