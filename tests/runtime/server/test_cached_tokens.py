"""Cached prompt tokens: what a client is told of them, what keeps them apart, what forgets them."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.wire.messages import FlushCache, Generate

from tests.runtime.server.conftest import MODEL, Server

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def cached(server: Server, prompt: str | list[str], **more: Any) -> int:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 2, **more}
    answer = (await server.http.post("/v1/completions", json=body)).json()
    details: dict[str, int] = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens"]


async def test_a_repeated_prompt_is_reported_as_cached(server: Server) -> None:
    assert await cached(server, "once more") == 0
    assert await cached(server, "once more") == 8


async def test_choices_of_one_prompt_count_it_once(server: Server) -> None:
    assert await cached(server, "choices", n=3) == 0, "the first choice computed it"
    assert await cached(server, "choices", n=3) == 6
    assert await cached(server, ["choices", "others"], n=2) == 6


async def test_a_stream_reports_cached_tokens_in_its_last_chunk(server: Server) -> None:
    await cached(server, "streamed")
    stream = await server.openai.completions.create(
        model=MODEL, prompt="streamed", stream=True, stream_options={"include_usage": True}
    )
    *_, last = [chunk async for chunk in stream]
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 7


async def test_salts_keep_prompts_apart(server: Server) -> None:
    assert await cached(server, "tenants", cache_salt="one") == 0
    assert await cached(server, "tenants", cache_salt="two") == 0
    assert await cached(server, "tenants", cache_salt="one") == 6
    sent = [m for m in server.engine.of(Generate) if isinstance(m, Generate)]
    assert [message.cache_salt for message in sent] == ["one", "two", "one"]


async def test_a_salt_that_is_too_long_is_refused(server: Server) -> None:
    body = {"model": MODEL, "prompt": "a", "cache_salt": "s" * 257}
    answer = await server.http.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "cache_salt" in answer.json()["error"]["message"]


async def test_flushing_forgets_all_prompts(server: Server) -> None:
    await cached(server, "forgotten")
    answer = await server.http.post("/flush_cache")
    assert answer.status_code == 200
    assert await cached(server, "forgotten") == 0
    assert len(server.engine.of(FlushCache)) == 1


async def test_cached_tokens_are_counted(server: Server) -> None:
    def counted(text: str) -> float:
        name = "sluice_cached_prompt_tokens_total "
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))

    await cached(server, "metric")
    before = counted((await server.http.get("/metrics")).text)
    await cached(server, "metric")
    assert counted((await server.http.get("/metrics")).text) - before == 5
