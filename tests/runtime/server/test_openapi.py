"""The OpenAPI document is true: of the routes there are, and of what they answer."""

from __future__ import annotations

import json
from functools import cache
from typing import Any
from unittest.mock import Mock

import jsonschema
import pytest
from sluice_runtime.server.app import routes_of

from tests.runtime.server.conftest import MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")

_USER = [{"role": "user", "content": "a€"}]
ASKED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("post", "/v1/completions", {"model": MODEL, "prompt": "a€", "n": 2}),
    ("post", "/v1/completions", {"model": MODEL, "prompt": "ab", "logprobs": 2, "echo": True}),
    ("post", "/v1/completions", {"model": MODEL, "prompt": "ab", "prompt_logprobs": 2}),
    ("post", "/v1/completions", {"model": MODEL, "prompt": [300]}),
    ("post", "/v1/chat/completions", {"model": MODEL, "messages": _USER}),
    (
        "post",
        "/v1/chat/completions",
        {"model": MODEL, "messages": _USER, "logprobs": True, "top_logprobs": 2},
    ),
    ("post", "/v1/chat/completions", {"model": "other", "messages": _USER}),
    ("post", "/v1/responses", {"model": MODEL, "input": "a€"}),
    ("post", "/v1/messages", {"model": MODEL, "max_tokens": 9, "messages": _USER}),
    ("post", "/v1/messages", {"model": MODEL, "messages": _USER}),
    ("post", "/v1/messages/count_tokens", {"model": MODEL, "messages": _USER}),
    ("post", "/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("post", "/detokenize", {"tokens": [97]}),
    ("get", "/v1/models", None),
    ("get", "/v1/models/{name}", None),
    ("post", "/generate", {"text": "a€", "logprobs": 1, "prompt_logprobs": 0}),
    ("post", "/abort_request", {"request_id": "a"}),
    ("get", "/health", None),
    ("get", "/ready", None),
    ("get", "/health_generate", None),
    ("post", "/flush_cache", None),
    ("post", "/role", {"role": "decode", "epoch": "e1"}),
    ("post", "/hand-back", {"ids": ["a"], "most": 1, "waits_for": "mixed"}),
    ("get", "/load", None),
    ("get", "/version", None),
    ("get", "/metrics", None),
]


@cache
def document() -> dict[str, Any]:
    return routes_of(Mock()).openapi()


document()  # made before any test's time is counted


def validate(value: Any, schema: dict[str, Any]) -> None:
    components = {"components": document()["components"]}
    jsonschema.validate(value, {**components, **schema})


@pytest.mark.process  # the server makes its own document
async def test_every_route_is_in_it_and_no_other(server: Server) -> None:
    found = document()["paths"]
    routes = {(method, path) for path, methods in found.items() for method in methods}
    assert routes == {(method, path) for method, path, _ in ASKED}
    assert (await server.http.get("/openapi.json")).json() == document()


@pytest.mark.parametrize(("method", "path", "body"), ASKED)
async def test_responses_match_the_document(
    server: Server, method: str, path: str, body: dict[str, Any] | None
) -> None:
    response = await server.http.request(method, path.replace("{name}", MODEL), json=body)
    described = document()["paths"][path][method]["responses"][str(response.status_code)]
    content = described["content"]
    kind = response.headers["content-type"]
    assert kind in content
    if "schema" in content[kind]:
        validate(response.json(), content[kind]["schema"])


@pytest.mark.parametrize(
    ("path", "body", "event"),
    [
        ("/v1/completions", {"model": MODEL, "prompt": "a€", "logprobs": 1}, "Completion"),
        (
            "/v1/chat/completions",
            {
                "model": MODEL,
                "messages": _USER,
                "logprobs": True,
                "stream_options": {"include_usage": True},
            },
            "ChatCompletionChunk",
        ),
        ("/generate", {"text": "a€", "logprobs": 1}, "Generation"),
    ],
)
async def test_events_match_the_document(
    server: Server, path: str, body: dict[str, Any], event: str
) -> None:
    response = await server.http.post(path, json={**body, "stream": True})
    described = document()["paths"][path]["post"]["responses"]["200"]
    assert response.headers["content-type"].partition(";")[0] in described["content"]
    assert f"`data: {event}`" in described["description"]
    *events, done = [line for line in response.text.split("\n\n") if line]
    assert done == "data: [DONE]"
    for line in events:
        value = json.loads(line.removeprefix("data: "))
        validate(value, {"$ref": f"#/components/schemas/{event}"})
