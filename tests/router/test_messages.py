"""`/v1/messages` through a router: Anthropic's client is told everything in its own words, and a
stream goes on with another engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import httpx
import pytest
from aiohttp import web
from sluice_contract.config.router import Auth
from sluice_runtime.errors import UnavailableError
from sluice_runtime.wire.endpoint import private_endpoint

from tests.router import fakes
from tests.router.private_engines import KEY
from tests.router.test_resume import resumed, until_private_calls
from tests.runtime.server.conftest import MODEL, Server, running_server

# Its import takes a second of processor time, which unit tests do without.
if TYPE_CHECKING:
    import anthropic

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
BODY: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 300,
    "messages": [{"role": "user", "content": "once upon a time " * 8}],
}
STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
PING = b'event: ping\ndata: {"type":"ping"}\n\n'


@asynccontextmanager
async def routed(
    tmp_path: Path, engines: int
) -> AsyncIterator[tuple[anthropic.AsyncAnthropic, list[Server], str]]:
    """Anthropic's client of a router before engines that take private calls; the router's metrics
    are at the URL."""
    import anthropic

    key = tmp_path / "key"
    key.write_bytes(KEY)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(endpoint, key=KEY))
            for endpoint in [stack.enter_context(private_endpoint()) for _ in range(engines)]
        ]
        router = await stack.enter_async_context(
            fakes.running_router(*(s.url for s in servers), handover_key_file=str(key))
        )
        http = await stack.enter_async_context(httpx.AsyncClient())
        await until_private_calls(http, router.metrics_url)
        client = anthropic.AsyncAnthropic(base_url=router.url, api_key="none", max_retries=0)
        yield await stack.enter_async_context(client), servers, router.metrics_url


@pytest.mark.process
async def test_a_stream_goes_on_with_another_engine(tmp_path: Path) -> None:
    async with routed(tmp_path, 2) as (claude, servers, metrics_url):
        expected = await claude.messages.create(**BODY)
        count = await claude.messages.count_tokens(model=MODEL, messages=BODY["messages"])
        assert count.input_tokens == expected.usage.input_tokens
        for server in servers:
            server.engine.step_seconds = 0.1  # the answer is far from its end when it breaks off
        async with claude.messages.stream(**BODY) as stream:
            await anext(aiter(stream))
            for server in servers:
                server.service.client.end_streams(UnavailableError("the engine leaves"))
                server.engine.step_seconds = 0.0
            final = await stream.get_final_message()
        assert final.content[0].to_dict() == expected.content[0].to_dict()
        assert final.stop_reason == "end_turn"
        async with httpx.AsyncClient() as http:
            assert await resumed(http, metrics_url) == 1


@pytest.mark.process
async def test_an_error_of_an_engine_has_anthropic_s_form(tmp_path: Path) -> None:
    import anthropic

    async with routed(tmp_path, 1) as (claude, (server,), _):
        for streamed in (False, True):
            with pytest.raises(anthropic.NotFoundError) as unknown:
                await claude.messages.create(**(BODY | {"model": "gpt"}), stream=streamed)
            assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
            server.engine.refuse_with, server.engine.refusal = "too big", "invalid"
            with pytest.raises(anthropic.BadRequestError) as refused:
                await claude.messages.create(**BODY, stream=streamed)
            assert refused.value.body["type"] == "error"  # type: ignore[index]
            server.engine.refuse_with = server.engine.refusal = None
        server.engine.step_seconds = 0.1
        async with claude.messages.stream(**BODY) as stream:
            await anext(aiter(stream))
            server.engine.refuse_with, server.engine.refusal = "too big", "invalid"
            with pytest.raises(anthropic.APIStatusError, match="invalid_request_error"):
                await stream.get_final_message()


async def ask(
    url: str, path: str = MESSAGES, headers: dict[str, str] | None = None, **more: Any
) -> tuple[int, dict[str, Any], Any]:
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.post(url + path, json=BODY | more) as response,
    ):
        return response.status, await response.json(), response.headers


async def test_no_engine_is_529(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    upstream = {"wait_for_engine_seconds": 0.01}
    async with fakes.running_router("http://127.0.0.1:9", upstream=upstream) as router:
        for path in (MESSAGES, COUNT):
            status, answer, headers = await ask(router.url, path)
            assert (status, answer["type"]) == (529, "error")
            assert answer["error"]["type"] == "overloaded_error"
            assert answer["error"]["code"] == "no_engine"
            assert int(headers["Retry-After"]) >= 1
    assert "529 complete" in caplog.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Api-Key": "first-key"}, 200),
        ({"Authorization": "Bearer first-key", "X-Api-Key": "other"}, 200),
        ({"Authorization": "Bearer other", "X-Api-Key": "first-key"}, 401),
        ({"X-Api-Key": "other"}, 401),
        ({"X-Api-Key": ""}, 401),
        ({}, 401),
    ],
)
async def test_a_key_may_come_as_anthropic_s_clients_send_it(
    tmp_path: Path, headers: dict[str, str], status: int
) -> None:
    (tmp_path / "team_a").write_text("first-key\n")
    auth = Auth(keys_directory=str(tmp_path))
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url, auth=auth) as router,
    ):
        answered, answer, _ = await ask(router.url, headers=headers)
        assert answered == status
        if status == 401:
            assert (answer["type"], answer["error"]["type"]) == ("error", "authentication_error")
        for _, sent, _ in engine.calls:
            assert "X-Api-Key" not in sent


async def _whole(_: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    return await _events(request, PING + STOP)


async def _cut(_: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    return await _events(request, PING)


async def _fails(_: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    error = {"type": "error", "error": {"type": "api_error", "message": "m", "code": "engine_died"}}
    return await _events(request, b"event: error\ndata: " + json.dumps(error).encode() + b"\n\n")


async def _events(request: web.Request, content: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    await response.write(content)
    return response


async def test_a_stream_is_whole_with_its_last_event() -> None:
    async def read(url: str) -> tuple[int, bytes]:
        async with (
            aiohttp.ClientSession() as client,
            client.post(url + MESSAGES, json=BODY | {"stream": True}) as response,
        ):
            return response.status, await response.read()

    async with fakes.running_engine(_whole) as engine, fakes.running_router(engine.url) as router:
        assert await read(router.url) == (200, PING + STOP)
    async with fakes.running_engine(_cut) as engine, fakes.running_router(engine.url) as router:
        status, stream = await read(router.url)
        name, data = stream.removeprefix(PING).split(b"\n", 1)
        error = json.loads(data.removeprefix(b"data: "))
        assert (name, error["type"], error["error"]["type"]) == (
            b"event: error", "error", "api_error",
        )  # fmt: skip
    async with fakes.running_engine(_fails) as engine, fakes.running_router(engine.url) as router:
        status, stream = await read(router.url)
        assert status == 502, "nothing was sent, so that another engine might have been asked"
        assert json.loads(stream)["error"]["code"] == "engine_died"
