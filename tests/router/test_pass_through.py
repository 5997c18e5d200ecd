"""What reaches the engine and what reaches the client: bytes, headers, refusals."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web
from sluice_contract.wire.spans import trace_id
from sluice_router.gate import Gate
from yarl import URL

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import raw_connection, request_bytes

TRACEPARENT = f"00-{'a' * 32}-{'b' * 16}-01"
BODY = b'{"model": "m", "prompt": "x",  "stream": true}'


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def test_an_answer_passes_byte_for_byte(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == 200
        assert await response.json() == {"engine": engine.url}
        assert response.headers["X-Engine"] == "yes"
        path, _, body = engine.calls[0]
        assert (path, body) == ("/v1/completions", BODY)


async def test_events_pass_as_they_arrive(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.headers["X-Accel-Buffering"] == "no"
        assert await response.content.readany() == fakes.EVENT % 0
        engine.gate.set()
        assert await response.read() == fakes.EVENT % 1 + fakes.DONE


async def test_the_head_goes_out_with_the_first_event(
    client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []

    def connected(connection: Gate, transport: Any) -> None:
        write = transport.write

        def recorded(data: bytes) -> None:
            written.append(bytes(data))
            write(data)

        transport.write = recorded
        accept(connection, transport)

    accept = Gate.connection_made
    monkeypatch.setattr(Gate, "connection_made", connected)
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        await response.read()
    assert written[0].startswith(b"HTTP/1.1 200")
    assert fakes.EVENT % 0 in written[0]


async def test_a_client_of_http_1_0_gets_a_stream_without_chunks() -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        raw_connection(router.url) as one,
    ):
        one.writer.write(request_bytes(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"))
        answer = await asyncio.wait_for(one.reader.read(), PATIENCE_SECONDS)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert body == b"".join(fakes.EVENT % number for number in range(3)) + fakes.DONE


async def test_only_allowed_headers_reach_the_engine(client: aiohttp.ClientSession) -> None:
    given = {
        "Authorization": "Bearer secret",
        "Cookie": "a=b",
        "X-Sluice-Room": "7",
        "X-Sluice-Prefill": "e30.00",
        "Proxy-Authorization": "x",
        "Traceparent": TRACEPARENT,
        "X-Sluice-Routing-Key": "team-7",
        "X-Request-Id": "client-7",
    }
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY, headers=given) as response,
    ):
        assert response.headers["X-Request-Id"] == "client-7"
        seen = engine.calls[0][1]
    assert {name.lower() for name in seen} == {
        "host", "accept", "content-type", "content-length", "traceparent", "x-request-id",
        "x-sluice-routing-key",
        "accept-encoding",
    }  # fmt: skip
    assert seen["X-Request-Id"] == "client-7"
    assert seen["Traceparent"] == TRACEPARENT
    assert seen["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("given", [None, "00-1-2-01", f"ff{TRACEPARENT[2:]}", "x" * 200])
async def test_a_request_without_a_trace_gets_one_that_the_log_names(
    client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, given: str | None
) -> None:
    caplog.set_level(logging.INFO, "sluice.router")
    headers = {} if given is None else {"Traceparent": given, "Tracestate": "a=b"}
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY, headers=headers) as response,
    ):
        await response.read()
        seen = engine.calls[0][1]
    made = trace_id(seen["Traceparent"])
    assert made is not None
    assert "Tracestate" not in seen
    assert f"trace={made}" in caplog.text


@pytest.mark.parametrize("given", [None, "two words", "x" * 200])
async def test_a_missing_or_bad_request_id_is_replaced(
    client: aiohttp.ClientSession, given: str | None
) -> None:
    headers = {} if given is None else {"X-Request-Id": given}
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        client.post(router.url + "/v1/completions", data=BODY, headers=headers) as response,
    ):
        made = response.headers["X-Request-Id"]
        assert made.startswith("req-")
        assert engine.calls[0][1]["X-Request-Id"] == made


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (b'{"bootstrap_room": 7}', 400, "bootstrap_room"),
        (b'{"prompt": "x", "boot\\u0073trap_host": "evil"}', 400, "bootstrap_host"),
        (b'{"kv_transfer_params": {}}', 400, "kv_transfer_params"),
        (b'{"rid": "other"}', 400, "rid"),
        (b"{", 400, None),
        (b"\xff\xfe", 400, None),
        (b"[" * 100_000, 400, None),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, 400, None),
        (b'{"prompt": "' + b"x" * 5000 + b'"}', 413, None),
    ],
)
async def test_a_bad_body_is_refused_before_any_engine(
    client: aiohttp.ClientSession, body: bytes, status: int, param: str | None
) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url, server={"max_body_bytes": 4096}) as router,
        client.post(router.url + "/v1/chat/completions", data=body[:200_000]) as response,
    ):
        assert response.status in (status, 413)
        error = (await response.json())["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert not engine.calls


async def test_a_compressed_body_is_refused(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        client.post(
            router.url + "/v1/completions", data=b"x", headers={"Content-Encoding": "gzip"}
        ) as response,
    ):
        assert response.status == 415
        assert (await response.json())["error"]["code"] == "unsupported_encoding"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nowhere", 404), ("POST", "/generate", 404), ("GET", "/v1/completions", 405)],
)
async def test_unknown_routes_and_methods_read_as_openai_errors(
    client: aiohttp.ClientSession, method: str, path: str, status: int
) -> None:
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        client.request(method, router.url + path) as response,
    ):
        assert response.status == status
        assert (await response.json())["error"]["type"] == "invalid_request_error"
        assert ("Allow" in response.headers) == (status == 405)


async def test_the_openai_client_streams() -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="none") as client,
    ):
        stream = await client.completions.create(model="m", prompt="x", stream=True)
        assert [chunk.choices[0].text async for chunk in stream] == ["0", "1", "2"]


async def test_the_openai_client_reads_the_error_in_a_stream() -> None:
    async with (
        fakes.running_engine(fakes.dies_in_stream) as engine,
        fakes.running_router(engine.url) as router,
        openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="none") as client,
    ):
        stream = await client.completions.create(model="m", prompt="x", stream=True)
        assert (await anext(aiter(stream))).choices[0].text == "0"
        engine.gate.set()
        with pytest.raises(openai.APIError, match="broke off"):
            await anext(aiter(stream))


async def test_models_come_from_an_engine(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        client.get(router.url + "/v1/models") as response,
    ):
        assert await response.json() == {"engine": engine.url}
        assert engine.calls[0][0] == "/v1/models"


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/openapi.json"])
async def test_tokens_and_the_document_come_from_an_engine(
    client: aiohttp.ClientSession, path: str
) -> None:
    method, body = ("GET", None) if path == "/openapi.json" else ("POST", b'{"prompt": "x"}')
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
        client.request(method, router.url + path, data=body) as response,
    ):
        assert await response.json() == {"engine": engine.url}
        asked, _, sent = engine.calls[0]
        assert (asked, sent) == (path, body or b"")


@pytest.mark.parametrize(
    "path", ["/v1/models/org/m%20x", "/v1/models/../../flush", "/v1/models/%2e%2e/%2e%2e/flush"]
)
async def test_a_models_name_stays_as_the_client_wrote_it(
    client: aiohttp.ClientSession, path: str
) -> None:
    async def raw_path(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.rel_url.raw_path)

    async with (
        fakes.running_engine(raw_path) as engine,
        fakes.running_router(engine.url) as router,
        client.get(URL(router.url + path, encoded=True)) as response,
    ):
        assert await response.text() == path


async def test_probes_load_and_metrics(client: aiohttp.ClientSession) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
    ):
        engine.load = fakes.load_report(queued_requests=3)
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        async with client.get(router.metrics_url + "/ready") as response:
            assert await response.json() == {"ready": True, "engines": 1, "reason": "Ready"}
        async with client.get(router.metrics_url + "/load") as response:
            summary = await response.json()
        assert [row["condition"] for row in summary["engines"]] == ["ready"]
        async with client.get(router.metrics_url + "/metrics") as response:
            text = await response.text()
        assert 'sluice_router_engines{role="mixed",state="ready"} 1.0' in text
        assert json.dumps(summary)


@pytest.mark.parametrize("name", ["X-Sluice-Routing-Key", "Accept", "Content-Type"])
async def test_a_header_of_other_bytes_than_utf8_is_refused_by_name(name: str) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url) as router,
    ):
        url = URL(router.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: 2\r\n" + name.encode() + b": \xff\xfe\r\n\r\n{}"
        )
        head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).partition(
            b"\r\n\r\n"
        )
        writer.close()
        assert head.startswith(b"HTTP/1.1 400 ")
        error = json.loads(body)["error"]
        assert (error["code"], error["param"]) == ("invalid_value", name)
        assert error["message"].startswith(name + ": ")
        assert not engine.calls
