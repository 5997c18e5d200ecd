"""Spans of an engine that computes prompts and decodes: of sampled requests, each a part of the
router's."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from sluice_contract.config.engine import parse_engine_config
from sluice_contract.wire.spans import Span, child_of, ids_of
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.process.spans import recorder
from sluice_runtime.wire.messages import Generate
from sluice_runtime.wire.transport import private_endpoint

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
    engine, prefill, decode = (found[f"sluice.{n}"] for n in ("engine", "prefill", "decode"))
    assert engine.parent == ROUTERS
    assert (prefill.parent, decode.parent) == (engine.traceparent, engine.traceparent)
    assert {ids_of(span.traceparent)[0] for span in spans} == {ids_of(ROUTERS)[0]}
    assert engine.start_seconds == prefill.start_seconds
    assert prefill.end_seconds == decode.start_seconds <= decode.end_seconds <= engine.end_seconds
    assert (engine.kind, engine.attributes["sluice.role"]) == ("server", "mixed")
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


async def test_an_engine_without_the_extra_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    config = parse_engine_config(
        '{"model": {"uri": "dummy://x"}, "tracing": {"endpoint": "http://c:4318"}}'
    )
    refused = pytest.raises(InvalidConfigError, match="the extra `tracing` installed")
    with refused, recorder(config, "api"):
        pass
