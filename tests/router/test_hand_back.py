"""Which requests a router asks back, of whom, and how many; with real engines, who answers them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import HandoverQueues
from sluice_router.engines import Endpoint, EngineState, Phase, ReceivedReport
from sluice_router.hand_back import (
    MAX_MOVES,
    MIN_WAIT_SECONDS,
    HandBackCall,
    Look,
    Unanswered,
    plan_hand_backs,
)
from sluice_router.targets import Target

from tests.examples import examples
from tests.router import fakes
from tests.router.fakes import load_report
from tests.router.private_engines import KEY
from tests.router.test_killed_engines import all_take_private_calls
from tests.runtime.launch import processes

NOW = 1000.0
FULL: dict[str, Any] = {
    "running_requests": 4, "max_running_requests": 4, "kv_pages_free": 0, "kv_pages_evictable": 0,
}  # fmt: skip
IDLE: dict[str, Any] = {
    "running_requests": 0, "max_running_requests": 4, "kv_pages_free": 8, "kv_pages_evictable": 0,
}  # fmt: skip


def engine(
    name: str, role: Role = Role.MIXED, phase: Phase = Phase.READY, **load: Any
) -> EngineState:
    report = load_report(role=role, private_calls=True, kv_pages_total=8, **load)
    endpoint = Endpoint(name, f"http://{name}", role, phase)
    return EngineState(endpoint, received=ReceivedReport(report, NOW, own_inflight=0))


def full(name: str, waiting: int, role: Role = Role.MIXED, **load: Any) -> EngineState:
    queues = HandoverQueues(prealloc=waiting if role is Role.DECODE else 0)
    return engine(name, role, **(FULL | {"queued_requests": waiting, "queues": queues} | load))


def at(target: Target, count: int, waited: float = 2.0, moved: int = 0) -> list[Unanswered]:
    """Requests that wait at an engine; the first has waited longest."""
    name = target.engine.endpoint.name
    since = [NOW - waited + number * 1e-3 for number in range(count)]
    return [Unanswered(f"{name}-{n}", target, at, moved) for n, at in enumerate(since)]


def plan(
    engines: Sequence[EngineState], requests: Sequence[Unanswered], drawn: float = 0.0
) -> list[HandBackCall]:
    return plan_hand_backs(engines, requests, Look(NOW, 5.0, 1.0, lambda: drawn))


def test_the_oldest_are_asked_back_for_as_many_as_another_engine_has_room() -> None:
    busy, idle = full("busy", 9), engine("idle", **IDLE)
    (call,) = plan([busy, idle], at(Target(busy), 9))
    assert (call.engine.endpoint.name, call.most, call.waits_for) == ("busy", 4, Role.MIXED)
    assert [r.request_id for r in call.requests][:3] == ["busy-0", "busy-1", "busy-2"]


def test_nothing_is_asked_back_without_room_or_of_what_has_not_waited() -> None:
    busy, idle = full("busy", 9), engine("idle", **IDLE)
    assert not plan([busy, full("other", 1)], at(Target(busy), 9))
    assert not plan([busy, idle], at(Target(busy), 9, waited=MIN_WAIT_SECONDS / 2))
    assert not plan([busy, idle], at(Target(busy), 9, moved=MAX_MOVES))
    assert not plan([busy, replace(idle, failed_until_seconds=NOW + 1)], at(Target(busy), 9))
    assert not plan([busy], at(Target(busy), 9))


def test_an_engine_that_leaves_is_asked_and_gets_none() -> None:
    leaving, idle = full("leaving", 3, draining=True), engine("idle", **IDLE)
    assert [call.most for call in plan([leaving, idle], at(Target(leaving), 3))] == [3]
    goes = replace(idle, endpoint=replace(idle.endpoint, phase=Phase.TERMINATING))
    assert not plan([leaving, goes], at(Target(leaving), 3))


@pytest.mark.parametrize("routers", [1, 3])
def test_routers_take_their_share_of_the_room(routers: int) -> None:
    busy, idle = full("busy", 60, routers=routers), engine("idle", **IDLE)
    draws = [number / 100 for number in range(100)]
    asked = [sum(c.most for c in plan([busy, idle], at(Target(busy), 60), d)) for d in draws]
    assert sum(asked) / len(asked) == pytest.approx(4 / routers, abs=0.02)
    assert max(asked) <= 4 / routers + 1


@pytest.mark.parametrize(("rate", "most"), [(250.0, 2), (50.0, 1), (5000.0, 10)])
def test_no_more_prompts_leave_than_are_computed_until_the_next_look(
    rate: float, most: int
) -> None:
    """More would wait there. A new engine is as fast as the others."""
    waits = {"queued_requests": 10, "queued_tokens": 1000, "prefill_tokens_per_second": rate}
    computing = engine("computing", **(IDLE | waits | {"running_requests": 1}))
    idle = engine("idle", **(IDLE | {"max_running_requests": 64, "kv_pages_free": 64}))
    (call,) = plan([computing, idle], at(Target(computing), 10))
    assert call.most == most


def test_requests_of_an_adapter_stay_where_no_other_engine_has_it() -> None:
    busy = full("busy", 2, adapters={"tuned": "k1"})
    asked = [replace_model(request, "tuned") for request in at(Target(busy), 2)]
    assert not plan([busy, engine("idle", **IDLE)], asked)
    assert plan([busy, engine("idle", adapters={"tuned": "k1"}, **IDLE)], asked)


def test_a_request_is_named_in_one_call_of_a_look() -> None:
    """Requests stay in one call where both halves of their pair have queues."""
    waits, queued = full("d", 4, Role.DECODE), full("p", 4, Role.PREFILL)
    idle = [engine("d2", Role.DECODE, **IDLE), engine("p2", Role.PREFILL, **IDLE)]
    calls = plan([waits, queued, *idle], at(Target(waits, queued), 8))
    named = [request.request_id for call in calls for request in call.requests]
    assert len(set(named)) == len(named)


def test_engines_that_cannot_hand_over_to_the_others_are_no_place() -> None:
    waits, other = full("d", 4, Role.DECODE), engine("d2", Role.DECODE, handover_version=1, **IDLE)
    prefill = engine("p", Role.PREFILL, **IDLE)
    assert not plan([waits, other, prefill], at(Target(waits, prefill), 4))


def test_a_look_without_room_looks_at_each_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = Counter[str]()
    served = "sluice_router.hand_back._is_served_by_one"
    monkeypatch.setattr(served, lambda *_: looked.update(served=1) or True)
    queues = [full(f"q{number}", 20) for number in range(50)]

    def requests() -> Iterator[Unanswered]:
        for queue in queues:
            for request in at(Target(queue), 20):
                looked["read"] += 1
                yield request

    assert not plan_hand_backs(queues, requests(), Look(NOW, 5.0, 1.0, lambda: 0.5))
    assert looked == {"read": 1000}


def replace_model(request: Unanswered, model: str) -> Unanswered:
    return replace(request, model=model)


def test_of_a_pair_the_half_that_has_no_place_is_named() -> None:
    """The prefill engine's requests are asked of the decode engines that have their answers."""
    prefill, other = full("p1", 4, Role.PREFILL), engine("p2", Role.PREFILL, **IDLE)
    decodes = [engine("d1", Role.DECODE, **IDLE), engine("d2", Role.DECODE, **IDLE)]
    requests = [r for d in decodes for r in at(Target(d, prefill), 2)]
    calls = plan([prefill, other, *decodes], requests)
    assert {call.engine.endpoint.name for call in calls} == {"d1", "d2"}
    assert {call.waits_for for call in calls} == {Role.PREFILL}
    waits = full("d3", 4, Role.DECODE)
    (call,) = plan([other, *decodes, waits], at(Target(waits, other), 4))
    assert (call.engine.endpoint.name, call.waits_for) == ("d3", Role.DECODE)


@given(
    waiting=st.lists(st.integers(0, 30), min_size=1, max_size=4),
    rooms=st.lists(st.integers(0, 12), max_size=4),
    routers=st.integers(1, 4),
    drawn=st.floats(0, 1, exclude_max=True),
)
@examples(200)
def test_no_plan_asks_for_more_than_there_is_room_for(
    waiting: list[int], rooms: list[int], routers: int, drawn: float
) -> None:
    queues = [full(f"q{n}", count, routers=routers) for n, count in enumerate(waiting)]
    places = [engine(f"e{n}", **(IDLE | {"max_running_requests": r})) for n, r in enumerate(rooms)]
    requests = [r for q, count in zip(queues, waiting, strict=True) for r in at(Target(q), count)]
    calls = plan([*queues, *places], requests, drawn)
    asked = Counter(call.engine.endpoint.name for call in calls)
    assert sum(call.most for call in calls) <= sum(rooms)
    assert all(count == 1 for count in asked.values())
    if sum(rooms) and any(waiting) and routers == 1:
        assert calls, "a request waits beside an engine with room"


ROWS = 2
WAITING = 8
LONG_TOKENS = 3900
"""Length of an answer that rarely ends before all that is asked beside it."""


def request(number: int, max_tokens: int = 8) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": f"Story {number}",
        "max_tokens": max_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
    }


@dataclass
class Service:
    """Two engines of `ROWS` rows each, and a router."""

    client: aiohttp.ClientSession
    engines: list[processes.Process]
    urls: list[str]
    router: fakes.RunningRouter

    async def answer(self, number: int, url: str | None = None) -> str:
        url = (url or self.router.url) + "/v1/completions"
        async with self.client.post(url, json=request(number)) as response:
            body = await response.json()
            assert response.status == 200, body
            return str(body["choices"][0]["text"])

    async def occupy(self, url: str) -> list[asyncio.Task[None]]:
        """Answers that fill an engine, not asked through the router."""
        begun = [asyncio.Event() for _ in range(ROWS)]
        tasks = [
            asyncio.create_task(self._endless(url, number, event))
            for number, event in enumerate(begun)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        return tasks

    async def _endless(self, url: str, number: int, begun: asyncio.Event) -> None:
        body = request(number, LONG_TOKENS) | {"stream": True}
        while True:  # on a busy machine one answer may end too soon
            async with self.client.post(url + "/v1/completions", json=body) as response:
                async for _ in response.content:
                    begun.set()

    async def queued(self, url: str) -> int:
        async with self.client.get(url + "/load") as response:
            return int((await response.json())["figures"]["queuedRequests"])

    async def until_all_wait(self) -> None:
        while True:
            if sum([await self.queued(url) for url in self.urls]) >= WAITING:
                return
            await asyncio.sleep(0.02)  # another process's reports

    async def moved(self) -> int:
        async with self.client.get(self.router.metrics_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        found = [line for line in lines if 'reason="handed_back"' in line]
        return int(float(found[0].split()[-1])) if found else 0

    async def ledger(self) -> dict[str, int]:
        async with self.client.get(self.router.metrics_url + "/ledger") as response:
            return dict(await response.json())


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Service]:
    async with AsyncExitStack() as stack:
        engines = []
        for name in ("a", "b"):
            (folder / name).mkdir()
            key = folder / name / "key"
            key.write_bytes(KEY)
            config = processes.write_config(
                folder / name,
                contextLength=LONG_TOKENS + 196,
                kvPoolTokens=4 * LONG_TOKENS,
                maxRunningRequests=ROWS,
                dtype="float32",
                handoverKeyFile=str(key),
            )
            engines.append(stack.enter_context(processes.running(processes.program(config))))
        urls = [await asyncio.to_thread(engine.ready_url) for engine in engines]
        router = await stack.enter_async_context(
            fakes.running_router(*urls, handover_key_file=str(folder / "a" / "key"))
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await all_take_private_calls(client, router.metrics_url)
        yield Service(client, engines, urls, router)


@pytest.mark.process
async def test_what_waits_is_answered_by_the_engine_that_gets_room(tmp_path: Path) -> None:
    async with running(tmp_path) as service, asyncio.timeout(processes.HANG_SECONDS):
        expected = [await service.answer(n, service.urls[0]) for n in range(WAITING)]
        stays, leaves = [await service.occupy(url) for url in service.urls]
        answers = [asyncio.create_task(service.answer(n)) for n in range(WAITING)]
        await service.until_all_wait()
        for task in leaves:
            task.cancel()
        assert await asyncio.gather(*answers) == expected
        assert not any(task.done() for task in stays), "the other engine became free"
        assert await service.moved() > 0
        assert (await service.ledger())["answered"] == WAITING
        for task in stays:
            task.cancel()


@pytest.mark.process
async def test_what_waits_behind_an_engine_that_does_not_move_is_answered_elsewhere(
    tmp_path: Path,
) -> None:
    """Sooner than the engine counts as hung."""
    async with running(tmp_path) as service, asyncio.timeout(processes.HANG_SECONDS):
        expected = [await service.answer(n, service.urls[0]) for n in range(WAITING)]
        both = [await service.occupy(url) for url in service.urls]
        answers = [asyncio.create_task(service.answer(n)) for n in range(WAITING)]
        await service.until_all_wait()
        stopped = service.engines[0].child("sluice_runtime.engine")
        os.kill(stopped, signal.SIGSTOP)
        for task in both[1]:
            task.cancel()
        assert await asyncio.gather(*answers) == expected
        assert not any(task.done() for task in both[0]), "the engine was given up before"
        assert await service.moved() > 0
        os.kill(stopped, signal.SIGCONT)
        for task in both[0]:
            task.cancel()
