"""Which requests a router asks back, of whom, and how many."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import HandoverQueues
from sluice_router.engines import Endpoint, EngineState, Phase, ReceivedReport
from sluice_router.hand_back import (
    MAX_MOVES,
    MIN_WAIT_SECONDS,
    HandBack,
    Look,
    Unanswered,
    plan_hand_backs,
)
from sluice_router.targets import Target

from tests.examples import examples
from tests.router.fakes import load_report

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
) -> list[HandBack]:
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
    """Also where both halves of its pair have queues."""
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
