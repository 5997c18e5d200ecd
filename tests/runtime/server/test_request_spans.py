"""Spans of an engine that computes prompts and decodes: of sampled requests, each a part of the
router's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from opentelemetry.semconv._incubating.attributes import (
    error_attributes,
    gen_ai_attributes,
    server_attributes,
)
from sluice_contract.config.engine import parse_engine_config
from sluice_contract.config.tracing import Tracing
from sluice_contract.wire.span_export import span_recorder
from sluice_contract.wire.spans import Span, child_of, ids_of
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.process.spans import recorder
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Generate

from tests.collector import collecting
from tests.runtime.server.conftest import MODEL, Server, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROUTERS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint) as server:
            yield server


@pytest.fixture
def spans(server: Server) -> Iterator[list[Span]]:
    found: list[Span] = []
    server.service.record = found.append
    yield found
    server.service.record = None


async def ask(server: Server, trace: str, **fields: object) -> int:
    body = {"model": MODEL, "prompt": "ab", "max_tokens": 3, **fields}
    answer = await server.http.post("/v1/completions", json=body, headers={"Traceparent": trace})
    return answer.status_code


async def test_a_sampled_request_has_a_span_with_prompt_and_answer(
    server: Server, spans: list[Span]
) -> None:
    assert await ask(server, ROUTERS) == 200
    found = {span.name: span for span in spans}
    engine = found[f"text_completion {MODEL}"]
    prefill, decode = (found[f"sluice.{n}"] for n in ("prefill", "decode"))
    assert engine.parent == ROUTERS
    assert (prefill.parent, decode.parent) == (engine.traceparent, engine.traceparent)
    assert {ids_of(span.traceparent)[0] for span in spans} == {ids_of(ROUTERS)[0]}
    assert engine.start_seconds == prefill.start_seconds
    assert prefill.end_seconds == decode.start_seconds <= decode.end_seconds <= engine.end_seconds
    assert (engine.kind, engine.attributes["sluice.role"]) == ("server", "mixed")
    assert engine.attributes["sluice.span"] == "sluice.engine"
    (generate,) = server.engine.of(Generate)
    assert isinstance(generate, Generate)
    assert generate.traceparent == engine.traceparent, "what the engine process does is a part"


@pytest.mark.parametrize("trace", [ROUTERS[:-2] + "00", "nonsense", ""])
async def test_another_has_none_and_keeps_its_trace(
    server: Server, spans: list[Span], trace: str
) -> None:
    assert await ask(server, trace) == 200
    assert spans == []
    (generate,) = server.engine.of(Generate)
    assert isinstance(generate, Generate)
    assert generate.traceparent == (trace if trace.startswith("00-") else "")


async def test_a_refusal_of_the_engine_is_its_error(server: Server, spans: list[Span]) -> None:
    server.engine.refuse_with = "the queue is full"
    assert await ask(server, child_of(ROUTERS)) >= 400
    (engine,) = spans
    assert engine.error is not None
    assert "the queue is full" in engine.error
    assert engine.attributes["error.type"] == "generation_failed"
    assert "gen_ai.response.finish_reasons" not in engine.attributes


def sent(spans: list[Span]) -> dict[str, Any]:
    """The attributes of the one request's span, as a collector gets them from the real SDK."""
    with (
        collecting() as collector,
        span_recorder(Tracing(endpoint=collector.url), "api") as record,
    ):
        assert record is not None
        for span in spans:
            record(span)
    (request,) = (seen for seen in collector.spans if "sluice.span" in seen.attributes)
    return request.attributes


async def test_a_request_s_span_has_opentelemetry_s_names_of_generation(
    server: Server, spans: list[Span]
) -> None:
    settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11, "presence_penalty": 0.25}
    assert await ask(server, ROUTERS, n=2, **settings) == 200
    found = await asyncio.to_thread(sent, spans)
    assert found.pop("gen_ai.response.id").startswith("cmpl-")
    assert found.pop("server.address")
    assert found.pop("server.port", 1)
    assert found == {
        "sluice.span": "sluice.engine",
        "sluice.role": "mixed",
        "sluice.outcome": "stop",
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "sluice",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.max_tokens": 3,
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.top_k": 7,
        "gen_ai.request.seed": 11,
        "gen_ai.request.presence_penalty": 0.25,
        "gen_ai.response.model": MODEL,
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 6,
        "gen_ai.usage.cache_read.input_tokens": 1,
    }


async def test_a_streamed_chat_has_the_time_to_its_first_chunk_and_no_word_of_it(
    server: Server, spans: list[Span]
) -> None:
    body = {
        "messages": [{"role": "user", "content": "PASSPHRASE"}],
        "stop": ["HALT"],
        "user": "PERSON",
        "stream": True,
        "max_tokens": 3,
    }
    headers = {"Traceparent": ROUTERS}
    answer = await server.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    found = await asyncio.to_thread(sent, spans)
    assert found["gen_ai.operation.name"] == "chat"
    assert found["gen_ai.request.stream"] is True
    assert found["gen_ai.response.time_to_first_chunk"] >= 0
    assert "gen_ai.request.model" not in found, "none was named"
    assert (found["gen_ai.response.model"], spans[-1].name) == (MODEL, f"chat {MODEL}")
    text = str(spans)
    assert not [word for word in ("PASSPHRASE", "HALT", "PERSON") if word in text]


async def test_each_name_is_one_of_the_published_conventions(
    server: Server, spans: list[Span]
) -> None:
    assert await ask(server, ROUTERS, stream=True, frequency_penalty=0.5, n=2, top_k=3) == 200
    server.engine.refuse_with = "the queue is full"
    assert await ask(server, ROUTERS) >= 400
    modules = (gen_ai_attributes, error_attributes, server_attributes)
    published = {str(value) for module in modules for value in vars(module).values()}
    names = {name for span in spans for name in span.attributes}
    assert {name for name in names if not name.startswith("sluice.")} <= published
    operations = {value.value for value in gen_ai_attributes.GenAiOperationNameValues}
    assert {"chat", "text_completion"} <= operations


async def test_an_engine_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    config = parse_engine_config(
        '{"model": {"uri": "dummy://x"}, "tracing": {"endpoint": "http://c:4318"}}'
    )
    refused = pytest.raises(InvalidConfigError, match="the extra `tracing` installed")
    with refused, recorder(config, "api"):
        pass
