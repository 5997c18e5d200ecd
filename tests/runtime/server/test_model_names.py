"""The model's name and its aliases; and pages of other origins."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from sluice_contract.base import ConfigError
from sluice_contract.config.cors import Cors
from sluice_contract.config.engine import parse_engine_config
from sluice_runtime.server.app import make_app

from tests.runtime.server.conftest import MODEL, Server
from tests.runtime.server.fake_engine import ADAPTER

pytestmark = pytest.mark.asyncio(loop_scope="module")

ALIAS = "org/echo"
PAGE = "https://chat.example.com"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(module_server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    """Of the module's server, which has an alias and lets a page in."""
    service = module_server.service
    cors = Cors(allowed_origins=[PAGE])
    service.identity = replace(service.identity, aliases=(ALIAS,), cors=cors)
    transport = httpx2.ASGITransport(make_app(service))
    async with (
        httpx2.AsyncClient(transport=transport, base_url="http://engine") as http,
        openai.AsyncOpenAI(base_url="http://engine/v1", api_key="none", http_client=http) as sdk,
    ):
        yield sdk


async def test_every_name_is_listed_and_found(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL, ALIAS, ADAPTER]
    assert (await client.models.retrieve(ALIAS)).id == ALIAS


async def test_root_is_the_model_that_is_served(client: openai.AsyncOpenAI) -> None:
    models: list[Any] = [model async for model in client.models.list()]
    assert [(model.root, model.parent) for model in models] == [
        (MODEL, None),
        (MODEL, None),
        (MODEL, MODEL),
    ]
    assert [model.permission for model in models] == [[], [], []]


async def test_the_model_may_be_left_out(server: Server) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "completions": {"prompt": "a"},
        "chat/completions": {"messages": [{"role": "user", "content": "a"}]},
        "responses": {"input": "a"},
    }
    for route, body in bodies.items():
        for named in ({}, {"model": None}):
            answer = await server.http.post(f"/v1/{route}", json={**body, **named})
            assert answer.status_code == 200, answer.text
            assert answer.json()["model"] == MODEL


@pytest.mark.parametrize("name", [MODEL, ALIAS])
async def test_an_answer_has_the_name_that_was_asked_for(
    client: openai.AsyncOpenAI, name: str
) -> None:
    answer = await client.completions.create(model=name, prompt="hi")
    assert answer.model == name
    stream = await client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    assert {chunk.model async for chunk in stream} == {name}


async def test_another_name_is_refused_with_those_that_are_served(
    client: openai.AsyncOpenAI,
) -> None:
    with pytest.raises(openai.NotFoundError, match=f"'{MODEL}', '{ALIAS}'"):
        await client.completions.create(model="other", prompt="hi")
    with pytest.raises(openai.NotFoundError, match=f"'{MODEL}', '{ALIAS}'"):
        await client.models.retrieve("other")


@pytest.mark.parametrize("aliases", [["a", "a"], ["m"]])
async def test_a_name_given_twice_is_refused(aliases: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"model: .*allowed: aliases each once"):
        parse_engine_config(json.dumps({"model": {"uri": "file:///m", "aliases": aliases}}))


async def test_a_page_may_ask(client: openai.AsyncOpenAI) -> None:
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    preflight = await client._client.options("/v1/chat/completions", headers=asked)
    answer = await client._client.get("/v1/models", headers={"Origin": PAGE})
    for response in (preflight, answer):
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize(
    ("path", "says"),
    [("embeddings", "makes no embeddings"), ("audio/speech", "neither hears nor speaks"),
     ("images/generations", "makes no images"), ("moderations", "moderates nothing")],
)  # fmt: skip
async def test_other_tasks_are_refused_with_what_this_server_does(
    client: openai.AsyncOpenAI, path: str, says: str
) -> None:
    with pytest.raises(openai.NotFoundError, match=f"generates text and {says}; allowed: /v1/chat"):
        await client.post(f"/{path}", cast_to=object, body={"model": MODEL})
