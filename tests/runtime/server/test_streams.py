"""What happens to streams when somebody goes: the client, the engine, the server itself."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from sluice_contract.wire.load import LoadReport
from sluice_runtime.errors import EngineDiedError, OverloadedError, UnavailableError
from sluice_runtime.server.failures import GenerationFailedError
from sluice_runtime.server.streaming import EventStream
from sluice_runtime.server.token_stream import CREDIT_TOKENS, TokenStream
from sluice_runtime.wire.messages import (
    Abort,
    Credit,
    Drain,
    EngineFailed,
    FinishReason,
    ToEngine,
    TokenDelta,
    TokenLogprob,
)

from tests.patience import PATIENCE_SECONDS
from tests.runtime.server.conftest import MODEL, Server, running_server, until
from tests.runtime.server.fake_engine import READY

COMPLETIONS = "/v1/completions"
LONG_STEP_SECONDS = 0.05
"""Answers of 250 tokens take so long that they are under way whenever a test looks."""


def streamed(prompt: str) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "stream": True}


def events(body: str) -> list[str]:
    return [line.removeprefix("data: ") for line in body.split("\n\n") if line]


async def test_a_stream_ends_with_done_once(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        response = await server.http.post(COMPLETIONS, json=streamed("ab"))
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        assert events(response.text).count("[DONE]") == 1
        assert events(response.text)[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_aborts_its_request(endpoint: str, stream: bool) -> None:
    async with running_server(endpoint) as server:
        server.engine.step_seconds = LONG_STEP_SECONDS
        body = {"model": MODEL, "prompt": "x" * 250, "stream": stream, "n": 2}
        asked = asyncio.create_task(server.http.post(COMPLETIONS, json=body))
        await until(lambda: len(server.engine.running) == 2)
        asked.cancel()
        await until(lambda: not server.engine.running)
        assert len(server.engine.of(Abort)) == 2
        await asyncio.wait_for(server.service.gate.emptied(), PATIENCE_SECONDS)


async def test_a_client_that_disconnects_after_one_of_its_choices_counts_as_an_abort(
    endpoint: str,
) -> None:
    async with running_server(endpoint) as server:
        server.engine.step_seconds = LONG_STEP_SECONDS
        body = streamed("a") | {"prompt": ["a", "b" * 400]}
        async with server.http.stream("POST", COMPLETIONS, json=body) as response:
            async for line in response.aiter_lines():
                if '"finish_reason":"stop"' in line:
                    break
        await until(lambda: "outcome" in ended(server))
        assert ended(server) == 'sluice_requests_total{outcome="abort"} 1.0'
        await until(lambda: not server.engine.running)


def ended(server: Server) -> str:
    """The lines of the outcomes that there were."""
    lines = server.service.metrics.render().decode().splitlines()
    found = [line for line in lines if line.startswith("sluice_requests_total{")]
    return "\n".join(line for line in found if not line.endswith(" 0.0"))


async def test_a_client_that_disconnects_before_the_first_token_aborts_its_request(
    endpoint: str,
) -> None:
    async with running_server(endpoint) as server:
        server.engine.paused.set()
        asked = asyncio.create_task(server.http.post(COMPLETIONS, json=streamed("x")))
        await until(lambda: len(server.engine.running) == 1)
        asked.cancel()
        await until(lambda: not server.engine.running)


async def test_tokens_are_granted_in_halves_as_the_reader_takes_them() -> None:
    sent: list[ToEngine] = []
    stream = TokenStream("a", sent.append)
    half = CREDIT_TOKENS // 2
    for tokens, granted in ((half - 1, []), (1, [half]), (half + 5, [half, half + 5])):
        stream.put(TokenDelta("a", (1,) * tokens))
        await stream.next()
        assert sent == [Credit("a", credit) for credit in granted]
    stream.put(TokenDelta("a", (1,) * half, "stop"))
    await stream.next()
    assert len(sent) == 2  # nothing is granted to a request that has ended
    assert stream.ended


async def test_a_credit_of_one_token_is_granted_again_with_each_token() -> None:
    sent: list[ToEngine] = []
    stream = TokenStream("a", sent.append, credit_tokens=1)
    for token_ids in ((), (1,), (2,)):
        stream.put(TokenDelta("a", token_ids))
        await stream.next()
    assert sent == [Credit("a", 1), Credit("a", 1)]


async def test_tokens_that_wait_are_joined_and_others_are_not() -> None:
    stream = TokenStream("a", lambda _: None)
    for token in range(3):
        stream.put(TokenDelta("a", (token,)))
        assert await stream.next() == TokenDelta("a", (token,))
    scores = [TokenLogprob(token, -0.5, 1, []) for token in range(40)]
    stream.put(TokenDelta("a", (0,), cached_tokens=7, logprobs=(scores[0],)))
    for token in range(1, 40):
        reason: FinishReason | None = "length" if token == 39 else None
        stream.put(TokenDelta("a", (token,), reason, logprobs=(scores[token],)))
    deltas = [await stream.next() for _ in range(3)]
    assert [len(delta.token_ids) for delta in deltas] == [16, 16, 8]
    assert [token for delta in deltas for token in delta.token_ids] == list(range(40))
    assert [score for delta in deltas for score in delta.logprobs] == scores
    assert [delta.finish_reason for delta in deltas] == [None, None, "length"]
    assert [delta.cached_tokens for delta in deltas] == [7, 0, 0]
    assert stream.ended


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (TokenDelta("a", (), "error", "broken"), GenerationFailedError),
        (TokenDelta("a", (), "abort"), GenerationFailedError),
        (TokenDelta("a", (), "error", "full", refusal="overloaded"), OverloadedError),
        (EngineDiedError("gone"), EngineDiedError),
    ],
)
async def test_tokens_that_wait_before_a_failure_are_read_before_it(
    last: TokenDelta | EngineDiedError, error: type[Exception]
) -> None:
    stream = TokenStream("a", lambda _: None)
    for delta in (TokenDelta("a", (1,)), TokenDelta("a", (2,)), last):
        stream.put(delta)
    assert await stream.next() == TokenDelta("a", (1, 2))
    assert not stream.ended
    with pytest.raises(error):
        await stream.next()
    assert stream.ended


async def test_the_engines_failure_ends_every_stream_at_once_without_done(endpoint: str) -> None:
    async with running_server(endpoint) as server, AsyncExitStack() as stack:
        server.engine.step_seconds = LONG_STEP_SECONDS
        bodies = []
        for _ in range(3):
            asked = server.http.stream("POST", COMPLETIONS, json=streamed("x" * 250))
            bodies.append((await stack.enter_async_context(asked)).aiter_lines())
        for lines in bodies:
            assert '"text":"x' in await anext(lines)
        server.engine.say(EngineFailed("OutOfMemory", "no memory left"))
        for lines in bodies:
            rest = [line.removeprefix("data: ") async for line in lines if line]
            assert "no memory left" in json.loads(rest[-1])["error"]["message"]
            assert "[DONE]" not in rest
        health = await server.http.get("/health")
        assert (health.status_code, health.json()["error"]["message"]) == (503, "no memory left")
        assert (await server.http.get("/ready")).status_code == 503
        assert (await server.http.get("/load")).status_code == 503
        refused = await server.http.post(COMPLETIONS, json=streamed("x"))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1


async def test_a_closed_gate_refuses_work_and_lets_streams_finish(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        server.engine.paused.set()
        asked = asyncio.create_task(server.http.post(COMPLETIONS, json=streamed("abc")))
        await until(lambda: len(server.engine.running) == 1)
        server.service.gate.close()
        server.service.client.drain()
        refused = await server.http.post(COMPLETIONS, json=streamed("x"))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "unavailable"
        assert (await server.http.post("/tokenize", json={"prompt": "x"})).status_code == 503
        assert (await server.http.get("/ready")).status_code == 503
        assert (await server.http.get("/health")).status_code == 200
        assert (await server.http.get("/load")).json()["draining"] is True
        assert not asked.done()
        server.engine.paused.clear()
        assert events((await asked).text)[-1] == "[DONE]"
        await asyncio.wait_for(server.service.gate.emptied(), PATIENCE_SECONDS)
        await until(lambda: server.engine.of(Drain) == [Drain()])


async def test_the_load_report_says_which_pages_the_engine_computes(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        identity = server.service.identity
        server.service.identity = replace(identity, model_uri="file:///m", pool_revision="r7")
        report = LoadReport.model_validate_json((await server.http.get("/load")).content)
    assert report.revision == "r7"
    assert str(report.kv_fingerprint) == (
        f"file:///m float32 page={report.page_size_tokens} page-layer-kv-token-head-dim"
    )


async def test_a_silent_engine_fails_health(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        client = server.service.client
        client._last_message_seconds -= 31
        health = await server.http.get("/health")
        assert health.status_code == 503
        assert "silent" in health.json()["error"]["message"]


async def test_load_and_metrics_show_the_engines_report(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        await server.http.post(COMPLETIONS, json=streamed("abc"))
        await server.http.post(COMPLETIONS, json={"model": MODEL, "prompt": 1})
        load = (await server.http.get("/load")).json()
        figures = load["figures"]
        assert (figures["kvPagesTotal"], load["epoch"], figures["queuedWorkSeconds"]) == (
            64,
            "e1",
            0.25,
        )
        assert load["privateCalls"] is False  # without a key
        assert load["start"] == READY.start
        assert (figures["prefillTokensPerSecond"], figures["itlSeconds"]) == (1500.0, 0.025)
        assert figures["marginalPrefillTokensPerSecond"] == 2500.0
        assert figures["costs"] == {
            "seconds": [0.01, 1e-5, 0.0, 1e-4, 0.0],
            "decode": {"steps": 90, "mean": [1.0, 0.0, 0.0, 3.5, 700.0]},
        }
        totals = ("promptTokensTotal", "generatedTokensTotal", "finishedRequestsTotal")
        assert [figures[total] for total in totals] == [700, 90, 6]
        text = (await server.http.get("/metrics")).text
        for line in (
            'sluice_requests_total{outcome="stop"} 1.0',
            'sluice_requests_total{outcome="refused"} 1.0',
            'sluice_engine_start_seconds{phase="weights"} 7.25',
            "sluice_prompt_tokens_total 3.0",
            f"sluice_max_running_requests {READY.max_running_requests}.0",
            f"sluice_kv_pool_tokens {READY.kv_pool_tokens}.0",
            "sluice_generated_tokens_total 4.0",
            "sluice_queued_work_seconds 0.25",
            "sluice_queue_time_seconds_count 1.0",
            "sluice_queue_time_seconds_sum 0.25",
            "sluice_time_to_first_token_seconds_count 1.0",
            "sluice_inter_token_seconds_count 3.0",
            "sluice_retractions_total 2.0",
            "sluice_evicted_pages_total 7.0",
            "sluice_drafted_tokens_total 9.0",
            "sluice_accepted_tokens_total 6.0",
            "sluice_new_token_beta_ratio 0.4",
            "sluice_max_tokens_used_ratio 0.3",
            "sluice_reserve_saved_ratio 0.2",
            'sluice_host_cache_hit_tokens_total{tier="disk"} 16.0',
            'sluice_host_cache_copied_bytes_total{kind="loaded"} 200.0',
            'sluice_host_cache_copy_seconds_total{kind="saved"} 0.5',
            'sluice_host_cache_used_bytes{tier="memory"} 100.0',
            "sluice_host_cache_bad_pages_total 1.0",
            'sluice_steps_total{mode="DECODE"} 5.0',
            'sluice_step_seconds_count{mode="DECODE"} 4.0',
            'sluice_kv_pages{state="free"} 64.0',
            "sluice_grammar_requests 0.0",
            'sluice_grammar_compilations_total{outcome="limit"} 2.0',
            "sluice_grammar_compile_seconds_total 1.5",
            'sluice_grammars_given_up_total{reason="slow"} 0.0',
            "sluice_chunk_budget_tokens 384.0",
            'sluice_chunk_budgets_total{reason="Target"} 7.0',
            "sluice_step_prediction_error_ratio 0.125",
            'sluice_predicted_step_seconds_sum{mode="DECODE"} 2.0',
        ):
            assert line in text.splitlines(), line


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    closed = asyncio.Event()

    async def endless():  # type: ignore[no-untyped-def]
        try:
            while True:
                yield {"x": 1}
        finally:
            closed.set()

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()  # the socket's buffer is full for ever

    response = EventStream(endless(), write_seconds=0.02)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await response({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert closed.is_set()


async def test_a_client_may_wait_for_tokens_longer_than_a_write_may_take() -> None:
    sent: list[dict[str, object]] = []
    loop = asyncio.get_running_loop()

    async def rare():  # type: ignore[no-untyped-def]
        for number in range(3):
            arrived = asyncio.Event()
            loop.call_later(0.04, arrived.set)
            await arrived.wait()
            yield {"x": number}

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    response = EventStream(rare(), write_seconds=0.01)
    await response({"type": "http"}, receive, send)  # type: ignore[arg-type]
    assert [message.get("more_body") for message in sent] == [None, *[True] * 4, False]


async def test_a_drain_that_is_cut_short_ends_streams_with_an_error(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        server.engine.step_seconds = LONG_STEP_SECONDS
        async with server.http.stream("POST", COMPLETIONS, json=streamed("x" * 250)) as response:
            lines = response.aiter_lines()
            assert '"text":"x' in await anext(lines)
            server.service.client.end_streams(UnavailableError("the server has shut down"))
            rest = [line.removeprefix("data: ") async for line in lines if line]
        assert json.loads(rest[-1])["error"]["message"] == "the server has shut down"
        assert "[DONE]" not in rest


async def test_requests_are_handed_back_by_the_id_that_clients_have_no_part_in(
    endpoint: str,
) -> None:
    """One whose body names the id of another is not in that one's place."""
    async with running_server(endpoint) as server:
        client, generate = server.service.client, server.engine
        generate.paused.set()
        bodies = [("a", "b"), ("b", "c")]
        asked = [
            asyncio.create_task(
                server.http.post(
                    COMPLETIONS,
                    json={"model": MODEL, "prompt": "ab", "request_id": claimed},
                    headers={"x-request-id": id_},
                )
            )
            for id_, claimed in bodies
        ]
        await until(lambda: len(client._streams) == 2)
        groups = client._waiting_streams(["a", "b", "c"])
        assert [[stream.router_id for stream in group] for group in groups] == [["a"], ["b"]]
        for task in asked:
            task.cancel()
