"""When engines move from one pool to the other, and when one ends and another starts instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_autoscaler.decide import decide, move_of
from sluice_autoscaler.decision import Decision, Move
from sluice_autoscaler.journal import JournalLine
from sluice_autoscaler.pool_plan import PoolPlan, startup_of
from sluice_autoscaler.sample import PoolSample
from sluice_contract.cluster.labels import Role

from tests.autoscaler.building import DECODE, PREFILL, Service, engine, pool, seen, wanting
from tests.autoscaler.test_trade import prompts

HEAVY: dict[Role, dict[str, Any]] = {
    PREFILL: prompts(4.5, 20),
    DECODE: {"kv_used": 1.2, "running_requests": 20},
}


def split_service(start_seconds: float | None = 90.0, **settings: Any) -> Service:
    values = {"gpu_budget": 8, "ttft_seconds": 2.0, "engines_move": True} | settings
    service = Service(wanting(PREFILL, DECODE, maximum=7, **values), {PREFILL: 4, DECODE: 4})
    service.start_seconds = start_seconds
    return service


def first_change(service: Service) -> Decision:
    for _ in range(60):
        decision = service.look(HEAVY)
        if decision.changes:
            return decision
    raise AssertionError("nothing changes")


def test_engines_that_one_pool_gives_to_the_other_move_at_once() -> None:
    decision = first_change(split_service())
    prefill, decode = decision.pools[PREFILL], decision.pools[DECODE]
    assert decision.move == Move(DECODE, PREFILL, 2, 6)
    assert (prefill.current, prefill.desired, decode.current, decode.desired) == (4, 6, 4, 2)
    assert decode.reason == "GivesWay"
    assert decode.message.endswith("4 → 2; 2 engines move to prefill")
    assert prefill.message.endswith("2 engines move here from decode: 4 → 6")
    assert prefill.reason != "BudgetExhausted"
    assert len(decode.victims) == 2


@pytest.mark.parametrize(
    ("start_seconds", "settings"),
    [(90.0, {"engines_move": False}), (None, {}), (11.0, {})],
    ids=["pools are not alike", "no start was measured", "answers take as long as a start"],
)
def test_otherwise_an_engine_ends_before_another_starts(
    start_seconds: float | None, settings: dict[str, Any]
) -> None:
    decision = first_change(split_service(start_seconds, **settings))
    assert decision.move is None
    assert [(each.role, each.desired) for each in decision.changes] == [(DECODE, 2)]


def plans(prefill: int, decode: int) -> dict[Role, PoolPlan]:
    rest: dict[str, Any] = {"start_seconds": 60.0, "drain_seconds": 5.0}
    return {
        role: PoolPlan(desired, desired, "Test", "", **rest)
        for role, desired in ((PREFILL, prefill), (DECODE, decode))
    }


def move(
    wanted: tuple[int, int],
    allotted: tuple[int, int],
    prefill: PoolSample | None = None,
    **settings: Any,
) -> Move | None:
    """Of three prefill engines and two decode engines, unless `prefill` says otherwise."""
    sample = seen([engine()], prefill or pool(PREFILL, 3), pool(DECODE, 2))
    limits = wanting(PREFILL, DECODE, engines_move=True, **settings)
    engines = dict(zip((PREFILL, DECODE), allotted, strict=True))
    return move_of(limits, sample, plans(*wanted), engines)


def test_a_pool_that_grows_and_one_that_shrinks_need_no_budget() -> None:
    assert move((2, 6), (2, 6)) == Move(PREFILL, DECODE, 1, 6)


def test_no_more_engines_move_than_the_budget_has_gpus_for() -> None:
    assert move((1, 9), (1, 2), gpu_budget=5) == Move(PREFILL, DECODE, 2, 4)
    assert move((1, 9), (1, 2), gpu_budget=4) == Move(PREFILL, DECODE, 1, 3)
    assert move((1, 9), (1, 2), gpu_budget=3) is None


def test_the_last_engine_of_a_pool_stays() -> None:
    assert move((0, 4), (0, 4)) is None


@pytest.mark.parametrize(
    "unsettled",
    [
        pool(PREFILL, 3, ready=2, starting=1),
        pool(PREFILL, 3, ready=2, unschedulable=1),
        pool(PREFILL, 3, surplus=1),
        pool(PREFILL, 3, ready=2),
    ],
)
def test_none_moves_while_pods_start_or_leave(unsettled: PoolSample) -> None:
    assert move((2, 6), (2, 6), unsettled) is None


def test_a_pool_without_a_change_gives_none() -> None:
    assert move((3, 6), (3, 6)) is None
    assert move((2, 2), (2, 2)) is None


def test_a_move_says_nothing_of_how_long_a_start_takes() -> None:
    service = split_service()
    decision = first_change(service)
    last = service.history.last
    assert last is not None
    assert decision.move is not None
    grown = pool(PREFILL, 6)
    after = seen([], grown, pool(DECODE, 2), at=service.seconds + 2)
    assert startup_of(last, after, PREFILL).seconds is None
    started = replace(last, decision=replace(last.decision, move=None))
    assert startup_of(started, after, PREFILL).seconds == pytest.approx(2.0)


def test_an_engine_that_is_on_its_way_keeps_its_name_among_those_that_leave() -> None:
    """The next decision, also of another operator, says which engines have the least work."""
    service = split_service()
    first_change(service)
    service.replicas = {PREFILL: 6, DECODE: 2}
    engines = [engine(f"d{index}", DECODE, running_requests=9 - index) for index in range(4)]
    moving = pool(DECODE, 2, ready=4, surplus=2, moving=2)
    sample = seen(engines, pool(PREFILL, 6, ready=4, starting=2), moving, at=service.seconds + 2)
    decision = decide(service.settings, service.history, sample)
    assert decision.move is None
    assert decision.pools[DECODE].victims == ("d3", "d2")


def test_the_journal_tells_a_move() -> None:
    service = split_service()
    decision = first_change(service)
    last = service.history.last
    assert last is not None
    line = JournalLine(settings=service.settings, sample=last.sample, decision=decision)
    assert JournalLine.model_validate_json(line.text()).decision.move == decision.move
