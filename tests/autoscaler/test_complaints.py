"""What users of other autoscalers complain of, one test each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from sluice_autoscaler.decide import decide
from sluice_autoscaler.history import History, Tick
from sluice_contract.cluster.labels import Role

from tests.autoscaler.building import (
    DECODE,
    MIXED,
    PREFILL,
    RATE,
    Service,
    engine,
    pool,
    seen,
    wanting,
)  # fmt: skip
from tests.figures import changed
from tests.pairwise import matrix

TWO = (PREFILL, DECODE)


def test_survivors_load_is_rescaled_before_a_scale_in() -> None:
    """Two engines that are each half full are not one that is full, over and over: 2 ↔ 1."""
    service = Service(wanting(MIXED), {MIXED: 2})
    assert set(service.settle({MIXED: {"kv_used": 0.78}}, seconds=200)) == {2}
    assert service.settle({MIXED: {"kv_used": 0.6}}, seconds=200)[-1] == 1
    assert set(service.settle({MIXED: {"kv_used": 0.62}}, seconds=200)) == {1}


def test_cold_workers_are_left_out_of_rates() -> None:
    cold = engine("new", prefill_tokens_per_second=RATE / 40, finished_requests_total=0)
    warm = engine("old", queued_tokens=int(1.5 * RATE), queued_requests=9)
    with_work = changed(cold, queued_tokens=int(RATE / 4), queued_requests=9)
    decision = decide(wanting(), History(), seen([warm, with_work]))
    assert decision.pools[MIXED].measured.prefill_tokens_per_second == RATE
    assert decision.pools[MIXED].measured.queued_seconds == pytest.approx(1.75)
    assert not decision.changes


def test_gauges_of_dead_pods_are_never_summed() -> None:
    dead = engine("dead", age_seconds=400.0, queued_tokens=int(90 * RATE), queued_requests=99)
    gone = replace(dead, name="gone", condition="unready", age_seconds=0.2)
    decision = decide(wanting(), History(), seen([engine(), dead, gone], pool(MIXED, 1)))
    assert decision.pools[MIXED].desired == 1
    assert decision.pools[MIXED].measured.queued_seconds == 0


@pytest.mark.parametrize(
    ("loss", "minimum"),
    matrix(["no router", "no engine", "stale", "odd"], [0, 1], others=pytest.mark.full, together=1),
)
def test_a_metrics_outage_is_not_idleness(loss: str, minimum: int) -> None:
    service = Service(wanting(minimum=minimum), {MIXED: 5})
    service.settle({MIXED: {"kv_used": 3.5}}, seconds=400)
    reports: dict[str, Any] = {
        "no router": None, "no engine": [], "odd": [engine(queued_work_seconds=math.nan)],
        "stale": [engine(age_seconds=60.0)],
    }  # fmt: skip
    reasons = {"no router": "MetricsMissing", "no engine": "MetricsMissing"}
    reason = reasons.get(loss, f"Metrics{loss.title()}")
    for _ in range(80):
        service.seconds += 10
        sample = seen(reports[loss], pool(MIXED, 5), at=service.seconds)
        decision = decide(service.settings, service.history, sample)
        service.history = service.history.with_tick(Tick(sample, decision))
        assert (decision.pools[MIXED].desired, decision.reason) == (5, reason)
    decision = service.look({})
    assert decision.pools[MIXED].desired == 5, "the load of the last minute is not known"
    assert service.settle({}, seconds=700)[-1] == minimum


def test_engines_without_a_load_report_are_named() -> None:
    """Where none of a pool has one, it holds; where others have, they decide."""
    pools = pool(PREFILL, 1), pool(DECODE, 3)
    sample = seen([engine("p", PREFILL), engine("d", DECODE)], *pools)
    decision = decide(wanting(*TWO), History(), replace(sample, unreported=2))
    assert "2 engines give routers no load report" in decision.pools[DECODE].message
    assert "report" not in decision.pools[PREFILL].message
    sample = replace(seen([], pool(MIXED, 2)), unreported=1)
    decision = decide(wanting(), History(), sample)
    assert decision.reason == "MetricsMissing"
    assert decision.pools[MIXED].message.startswith("mixed: 1 engine gives routers no load report")


def test_an_engine_of_which_nothing_is_known_may_have_as_much_work_as_another() -> None:
    known = engine("a", queued_tokens=int(2 * RATE), queued_requests=99)
    decision = decide(wanting(), History(), seen([known, engine("b", age_seconds=60.0)]))
    assert decision.pools[MIXED].wanted == 4


@pytest.mark.parametrize(("stale", "least"), [(2, 2), (3, 4)])
def test_nothing_is_given_up_while_most_reports_do_not_count(stale: int, least: int) -> None:
    """The engines of which nothing is known may have all the work."""
    reports = [engine(str(n), age_seconds=60.0 if n < stale else 0.5) for n in range(4)]
    settings, history, found = wanting(), History(), []
    for look in range(20):
        sample = seen(reports, pool(MIXED, 4), at=4.0 * look)
        decision = decide(settings, history, sample)
        history = history.with_tick(Tick(sample, decision))
        found.append(decision.pools[MIXED].desired)
    assert min(found) == least
    assert ("3 reports do not count" in decision.message) == (least == 4)


@pytest.mark.parametrize("waiting", [0, 200])
@pytest.mark.parametrize("gone", TWO)
def test_a_pool_that_is_gone_is_not_idleness_of_both(gone: Role, waiting: int) -> None:
    sizes = {PREFILL: 6, DECODE: 4}
    service = Service(wanting(*TWO), dict(sizes))
    service.settle(
        {DECODE: {"kv_used": 2.8}, PREFILL: {"queued_tokens": 3 * int(RATE)}}, seconds=400
    )
    sizes = dict(service.replicas)
    (there,) = set(TWO) - {gone}
    pools = [
        pool(there, sizes[there]),
        replace(pool(gone, sizes[gone]), ready=0, starting=sizes[gone]),
    ]
    for _ in range(90):
        service.seconds += 10
        reports = [engine(f"{there}-{i}", role=there) for i in range(sizes[there])]
        sample = replace(seen(reports, *pools, at=service.seconds), waiting_requests=waiting)
        decision = decide(service.settings, service.history, sample)
        service.history = service.history.with_tick(Tick(sample, decision))
        assert not decision.changes, decision.message


def test_floor_is_what_some_want_when_metrics_are_lost() -> None:
    settings = wanting(minimum=2, on_metrics_loss="Floor")
    decision = decide(settings, History(), seen(None, pool(MIXED, 5)))
    assert (decision.pools[MIXED].desired, decision.reason) == (2, "MetricsMissing")


def test_one_unschedulable_pod_freezes_nothing_else() -> None:
    settings = wanting(*TWO, gpu_budget=12)
    busy = engine("p", PREFILL, queued_tokens=int(4 * RATE), queued_requests=50)
    full = [engine(f"d{index}", DECODE, kv_used=1.0) for index in range(3)]
    pools = pool(PREFILL, 1), pool(DECODE, 4, ready=3, unschedulable=1)
    decision = decide(settings, History(), seen([busy, *full], *pools))
    assert decision.pools[PREFILL].desired == 4
    assert decision.pools[DECODE].desired == 4
    blocked = [pools[0], replace(pools[1], replicas=3, unschedulable=1)]
    decision = decide(settings, History(), seen([busy, *full], *blocked))
    assert (decision.pools[DECODE].desired, decision.pools[DECODE].reason) == (3, "CapacityBlocked")
    assert "1 pods find no place" in decision.pools[DECODE].message
    for pods, queued, text in (
        (1, 1, "; 1 pods wait for queue gpus, so no more are asked for"),
        (3, 2, "; 2 pods wait for queue gpus, 1 pods find no place, so no more are asked for"),
    ):
        waiting = replace(blocked[1], unschedulable=pods, queue="gpus", queued=queued)
        decision = decide(settings, History(), seen([busy, *full], pools[0], waiting))
        assert decision.pools[DECODE].reason == "CapacityBlocked"
        assert text in decision.pools[DECODE].message


def test_pods_without_a_place_hold_no_gpus_that_another_pool_lacks() -> None:
    settings = wanting(*TWO, gpu_budget=6)
    busy = engine("p", PREFILL, queued_tokens=int(9 * RATE), queued_requests=50)
    pools = pool(PREFILL, 1), pool(DECODE, 5, ready=1, unschedulable=4)
    decision = decide(settings, History(), seen([busy, engine("d", DECODE, kv_used=1.0)], *pools))
    assert decision.pools[PREFILL].desired == 1, "the pods are not gone yet"
    assert decision.pools[DECODE].desired == 1


def test_an_empty_pool_with_a_pod_without_a_place_gets_no_more_than_is_free() -> None:
    settings = wanting(*TWO, minimum=2, maximum=3, gpu_budget=5)
    pools = pool(PREFILL, 0), pool(DECODE, 0, unschedulable=1, surplus=3)
    decision = decide(settings, History(), seen(None, *pools))
    assert sum(each.desired for each in decision.pools.values()) == 2


@pytest.mark.parametrize("loaded", TWO)
def test_no_pool_scales_for_the_load_of_the_other(loaded: Role) -> None:
    loads: dict[Role, dict[str, Any]] = {
        PREFILL: {"queued_tokens": int(4 * RATE), "queued_requests": 90, "prompt_tokens": RATE},
        DECODE: {"kv_used": 1.9, "running_requests": 120, "itl_seconds": 0.2},
    }
    service = Service(wanting(*TWO, itl_seconds=0.1), {PREFILL: 1, DECODE: 1})
    for _ in range(20):
        service.look({loaded: loads[loaded]})
    other = DECODE if loaded is PREFILL else PREFILL
    assert service.replicas[loaded] > 1
    assert service.replicas[other] == 1


def test_prefill_and_decode_reach_and_leave_zero_together() -> None:
    service = Service(wanting(*TWO, minimum=0, idle_seconds=120), {PREFILL: 2, DECODE: 3})
    decoding = {DECODE: {"kv_used": 0.1, "running_requests": 6}}
    assert service.settle(decoding, seconds=300)[-1] == 2, "prefill waits for the last answer"
    sizes = service.settle({}, seconds=200)
    assert sizes[-1] == 0
    assert 1 not in sizes
    assert service.look({}).reason == "Enough"
    decision = service.look({}, waiting=3)
    assert service.replicas == {PREFILL: 1, DECODE: 1}
    assert decision.reason == "WaitingRequests"
    assert "3 requests wait" in decision.message


@pytest.mark.parametrize("held", [0, 1])
@pytest.mark.parametrize("gpus", [(1, 1), (2, 1), (0, 2)])
def test_sleeping_pools_wake_together_or_not_at_all(held: int, gpus: tuple[int, int]) -> None:
    """An engine of one alone would serve nobody, and hold GPUs."""
    settings = wanting(*TWO, minimum=0, gpu_budget=sum(gpus))
    each = zip(TWO, gpus, strict=True)
    settings = replace(settings, pools={r: replace(settings.pools[r], gpus=n) for r, n in each})
    pools = pool(PREFILL, 0), pool(DECODE, 0, surplus=held)
    decision = decide(settings, History(), seen((), *pools, waiting=3))
    desired = {role: each.desired for role, each in decision.pools.items()}
    assert desired == dict.fromkeys(TWO, 0 if held else 1)
    assert decision.reason == ("BudgetExhausted" if held else "WaitingRequests")


def test_a_pool_that_keeps_an_engine_keeps_one_of_the_other() -> None:
    settings = wanting(*TWO, minimum=0, idle_seconds=120)
    limits = {**settings.pools, PREFILL: replace(settings.pools[PREFILL], minimum=1)}
    service = Service(replace(settings, pools=limits), {PREFILL: 1, DECODE: 1})
    assert service.settle({}, seconds=600)[-1] == 2


def test_capacity_that_a_drain_still_holds_is_counted() -> None:
    settings = wanting(*TWO, gpu_budget=8)
    busy = engine("p", PREFILL, queued_tokens=int(9 * RATE), queued_requests=50)
    engines = [busy, engine("d", DECODE)]
    for surplus, desired in ((6, 1), (4, 3), (0, 5)):
        pools = pool(PREFILL, 1), pool(DECODE, 1, surplus=surplus)
        decision = decide(settings, History(), seen(engines, *pools))
        assert decision.pools[PREFILL].desired == desired
        blocked = decision.pools[PREFILL].reason == "BudgetExhausted"
        assert blocked == (surplus > 0)


def test_two_pools_that_grow_at_once_share_the_budget() -> None:
    """Written apart, each would take what is free."""
    settings = wanting(*TWO, gpu_budget=8, maximum=20)
    busy = engine("p", PREFILL, queued_tokens=int(4 * RATE), queued_requests=50)
    full = engine("d", DECODE, running_requests=1400)
    pools = pool(PREFILL, 1), pool(DECODE, 1)
    found = decide(settings, History(), seen([busy, full], *pools)).pools
    assert found[PREFILL].desired + found[DECODE].desired == 8
    assert found[PREFILL].desired == 3
    assert found[DECODE].desired == 5, "what lacks the larger share gets more"


def test_one_sick_engine_is_replaced_and_not_averaged_in() -> None:
    healthy = [engine(f"e{index}", kv_used=0.7, running_requests=3) for index in range(3)]
    sick = engine("sick", condition="failing", kv_used=0.0, running_requests=0)
    decision = decide(wanting(), History(), seen([*healthy, sick], pool(MIXED, 4)))
    assert decision.pools[MIXED].measured.kv_engines == pytest.approx(2.1)
    assert not decision.changes
    decision = decide(wanting(), History(), seen([*healthy, sick], pool(MIXED, 3)))
    assert (decision.pools[MIXED].desired, decision.reason) == (4, "SickEngines")


def test_an_engine_that_began_anew_has_no_negative_rate() -> None:
    first = engine(prompt_tokens_total=900_000, epoch="1")
    history = History()
    for index, sample in enumerate(
        [seen([first]), seen([engine(prompt_tokens_total=10, epoch="2")])]
    ):
        sample = replace(sample, time_seconds=2.0 * index)
        decision = decide(wanting(), history, sample)
        history = history.with_tick(Tick(sample, decision))
    assert not decision.pools[MIXED].measured.arrived_seconds
    assert not decision.changes


def test_what_is_starting_counts_as_coming() -> None:
    """Nothing is asked for twice while it starts."""
    settings = wanting(MIXED, maximum=50)
    load = engine(queued_tokens=int(3 * RATE), queued_requests=50)
    history, replicas, time_seconds = History(), 1, 0.0
    for _ in range(15):
        time_seconds += 2
        pods = pool(MIXED, replicas, ready=1, starting=replicas - 1)
        sample = seen([load], pods, at=time_seconds)
        decision = decide(settings, history, sample)
        history = history.with_tick(Tick(sample, decision))
        replicas = decision.pools[MIXED].desired
        assert replicas == 3
