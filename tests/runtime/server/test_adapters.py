"""Adapters are models of the API: listed, named in requests and in answers."""

from __future__ import annotations

import asyncio

import pytest
from sluice_runtime.wire.messages import Adapters, AdaptersChanged, Generate, LoadedAdapter

from tests.runtime.server.conftest import MODEL, Server, until
from tests.runtime.server.fake_engine import ADAPTER, ADAPTER_KEY, READY

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(("model", "adapter"), [(ADAPTER, ADAPTER_KEY), (MODEL, "")])
async def test_a_request_names_an_adapter_as_its_model(
    server: Server, model: str, adapter: str
) -> None:
    answer = await server.http.post("/v1/completions", json={"prompt": "abc", "model": model})
    assert answer.json()["model"] == model
    assert [m.adapter for m in server.engine.heard if isinstance(m, Generate)] == [adapter]


async def test_a_stream_names_its_adapter(server: Server) -> None:
    stream = await server.openai.chat.completions.create(
        model=ADAPTER, messages=[{"role": "user", "content": "a"}], stream=True
    )
    assert {chunk.model async for chunk in stream} == {ADAPTER}


async def test_adapters_are_listed_behind_their_model(server: Server) -> None:
    listed = (await server.http.get("/v1/models")).json()["data"]
    assert [(one["id"], one["parent"]) for one in listed] == [(MODEL, None), (ADAPTER, MODEL)]
    assert (await server.http.get(f"/v1/models/{ADAPTER}")).json() == listed[1]


async def test_a_name_that_nobody_has_is_not_found(server: Server) -> None:
    answer = await server.http.post("/v1/completions", json={"prompt": "abc", "model": "prose"})
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == (
        "model: 'prose' is not served here; allowed: 'echo', 'poems'"
    )


async def test_the_load_report_has_their_keys(server: Server) -> None:
    assert (await server.http.get("/load")).json()["adapters"] == {ADAPTER: ADAPTER_KEY}


async def test_adapters_come_and_go(server: Server) -> None:
    come = Adapters([LoadedAdapter("prose", "prose@02")], {"law": "no folder"}, "f00d")
    server.engine.say(AdaptersChanged(come))
    await until(lambda: "prose" in server.service.adapters)
    report = (await server.http.get("/load")).json()
    assert report["adapters"] == {"prose": "prose@02"}
    assert (report["adaptersFailed"], report["adaptersFile"]) == ({"law": "no folder"}, "f00d")
    listed = (await server.http.get("/v1/models")).json()["data"]
    assert [one["id"] for one in listed] == [MODEL, "prose"]
    answer = await server.http.post("/v1/completions", json={"prompt": "abc", "model": "prose"})
    assert answer.status_code == 200
    answer = await server.http.post("/v1/completions", json={"prompt": "abc", "model": ADAPTER})
    assert answer.status_code == 404
    server.engine.say(AdaptersChanged(READY.adapters))
    await until(lambda: ADAPTER in server.service.adapters)


@pytest.mark.parametrize(
    ("left", "status", "code"),
    [([], 404, "model_not_found"), (READY.adapters.loaded, 503, "unavailable")],
    ids=["it has gone", "another version has come"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_waited_while_its_adapter_went(
    server: Server, left: list[LoadedAdapter], status: int, code: str, stream: bool
) -> None:
    server.engine.paused.set()
    body = {"prompt": "abc", "model": ADAPTER, "stream": stream}
    waiting = asyncio.ensure_future(server.http.post("/v1/completions", json=body))
    await until(lambda: bool(server.engine.of(Generate)))
    server.engine.refuse_with, server.engine.refusal = "adapter poems@01 is gone", "unavailable"
    server.engine.say(AdaptersChanged(Adapters(left, {}, "f00d")))
    await until(lambda: len(server.service.adapters) == len(left))
    server.engine.paused.clear()
    answer = await waiting
    server.engine.say(AdaptersChanged(READY.adapters))
    await until(lambda: ADAPTER in server.service.adapters)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
