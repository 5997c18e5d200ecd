"""Where requests go is seen: conversations and sessions keep their engine, and `/load` and the log
say why."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from sluice_contract.wire.load import ServiceLoad
from sluice_router.__main__ import main
from sluice_router.targets import MAX_KEPT_PICKS, Picks, TargetChoice

from tests.router import fakes

PICKED = re.compile(r'^sluice_router_picks_total\{reason="(\w+)"\} (\S+)$', re.MULTILINE)


@asynccontextmanager
async def service(count: int) -> AsyncIterator[tuple[fakes.RunningRouter, list[fakes.FakeEngine]]]:
    """A router, and its engines."""
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(fakes.running_engine(fakes.streams))
            for _ in range(count)
        ]
        urls = [engine.url for engine in engines]
        yield await stack.enter_async_context(fakes.running_router(*urls)), engines


async def ask(
    router: fakes.RunningRouter,
    messages: Sequence[str],
    session: str | None = None,
    request_id: str = "r1",
) -> None:
    turns = [{"role": "user", "content": message} for message in messages]
    headers = {"X-Request-Id": request_id} | ({"X-Sluice-Routing-Key": session} if session else {})
    body = json.dumps({"model": "m", "messages": turns, "stream": True})
    url = router.url + "/v1/chat/completions"
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=body, headers=headers) as response,
    ):
        assert (await response.read()).endswith(fakes.DONE)


async def test_a_conversation_keeps_its_engine_and_others_spread() -> None:
    async with service(4) as (router, engines):
        for conversation in range(12):
            texts = [f"{conversation} " * 600]
            before = [len(engine.calls) for engine in engines]
            for _ in range(4):
                await ask(router, texts)
                texts += ["an answer", "a question"]
            calls = [len(engine.calls) - old for engine, old in zip(engines, before, strict=True)]
            assert sorted(calls) == [0, 0, 0, 4]
        assert sum(bool(engine.calls) for engine in engines) >= 2


async def test_a_session_keeps_its_engine_whatever_it_asks() -> None:
    async with service(4) as (router, engines):
        for number in range(8):
            await ask(router, [f"question {number}"], session="s1")
        assert sorted(len(engine.calls) for engine in engines) == [0, 0, 0, 8]


async def test_short_prompts_take_turns() -> None:
    async with service(2) as (router, engines):
        for _ in range(8):
            await ask(router, ["hello"])
        assert [len(engine.calls) for engine in engines] == [4, 4]


async def test_why_an_engine_was_picked_is_in_load_metrics_and_in_the_log_at_debug(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "sluice.router.pick")
    async with service(2) as (router, _), aiohttp.ClientSession() as client:
        await ask(router, ["long " * 400])
        await ask(router, ["hello"], session="s1")
        await ask(router, ["hello"])
        async with client.get(router.metrics_url + "/load") as response:
            load = ServiceLoad.model_validate_json(await response.read())
        for _ in range(2):  # each scrape tells the same total
            async with client.get(router.metrics_url + "/metrics") as response:
                counted = PICKED.findall(await response.text())
    assert dict(counted) == {"SamePrefix": "1.0", "SameSession": "1.0", "LessLoaded": "1.0"}
    assert load.picks == {"SamePrefix": 1, "SameSession": 1, "LessLoaded": 1}
    assert load.last_pick is not None
    assert load.last_pick.startswith("r1: http://127.0.0.1:")
    assert load.last_pick.endswith(": load 0.00, the least loaded of 2 drawn from 2")
    picks = [each.getMessage() for each in caplog.records if each.name == "sluice.router.pick"]
    assert picks[-1] == load.last_pick
    assert ": SamePrefix, load 0.00, 0.00 elsewhere" in picks[0]


async def test_why_a_request_went_where_it_did_can_be_asked_for() -> None:
    async with service(2) as (router, _), aiohttp.ClientSession() as client:
        for number in range(3):
            await ask(router, ["hello"], request_id=f"r{number}")
        found = []
        for query in ("", "?request=r1", "?request=r7"):
            async with client.get(f"{router.metrics_url}/picks{query}") as response:
                found.append((await response.json())["picks"])
    every, (one,), none = found
    assert [pick["requestId"] for pick in every] == ["r2", "r1", "r0"]
    assert (one["reason"], none) == ("LessLoaded", [])
    assert "the least loaded of 2 drawn from 2" in one["message"]


def test_only_the_last_picks_are_held() -> None:
    picks = Picks()
    for number in range(MAX_KEPT_PICKS + 1):
        picks.add(f"r{number}", TargetChoice(None, "LessLoaded", "m"))
    assert [pick.request_id for pick in picks.recent()] == [
        f"r{n}" for n in range(MAX_KEPT_PICKS, 0, -1)
    ]


def test_a_log_level_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_LOG_LEVEL", "LOUD")
    assert main(["--engines", "http://127.0.0.1:1"]) == 2
    allowed = "allowed: DEBUG, INFO, WARNING, ERROR"
    assert f'SLUICE_LOG_LEVEL: "LOUD" is not allowed; {allowed}' in capsys.readouterr().err
