"""Routers' answers merged, and pods counted."""

from __future__ import annotations

from sluice_autoscaler.sample import PoolSample
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import SloCounts
from sluice_operator.autoscale.query import sample_of
from sluice_operator.scaled import PoolPods

from tests.operator.autoscale.world import load, row

POOLS = {Role.MIXED: PoolSample(Role.MIXED, 2, 2)}


def test_what_waits_is_added_and_the_freshest_report_of_each_engine_counts() -> None:
    loads = (
        load(row("a", 0.9, queued_requests=1), row("b", 0.2, queued_requests=2), waiting=3),
        load(row("a", 0.1, queued_requests=5), row("b", 0.7, queued_requests=6), waiting=4),
    )
    sample = sample_of(loads, POOLS, 7.0)
    assert sample.engines is not None
    found = {each.name: (each.figures.queued_requests, each.age_seconds) for each in sample.engines}
    assert found == {"a": (5, 0.1), "b": (2, 0.2)}
    assert (sample.waiting_requests, sample.time_seconds, sample.pools) == (7, 7.0, POOLS)


def test_the_phases_of_a_start_are_all_of_one_pod() -> None:
    pool = PoolSample(
        Role.MIXED, 3, 3, start_seconds=30.0, start_phases={"image": 20.0}, start_pod="b"
    )
    engines = (
        row("a", start={"imports": 1.0, "weights": 2.0}),
        row("b", start={"imports": 9.0, "weights": 1.0}),
        row("c", start={"imports": 5.0, "device": 1.0}),
        row("silent"),
    )
    (mixed,) = sample_of((load(*engines),), {Role.MIXED: pool}, 0.0).pools.values()
    assert mixed.start_phases == {"image": 20.0, "imports": 9.0, "weights": 1.0}
    (mixed,) = sample_of((load(row("silent")),), {Role.MIXED: pool}, 0.0).pools.values()
    assert mixed == pool


def test_what_engines_count_against_the_slo_is_passed_on() -> None:
    reported = row("a", slo_requests_total=9, slo_in_time_total=7, slo_late_requests=1)
    (engine,) = sample_of((load(reported),), POOLS, 0.0).engines or ()
    assert engine.slo == SloCounts(9, 7, 1)


def test_a_router_that_has_not_found_engines_says_nothing_of_them() -> None:
    fresh = load(discovered=False, waiting=1)
    assert sample_of((fresh,), POOLS, 0.0).engines is None
    both = sample_of((fresh, load(row("a"))), POOLS, 0.0)
    assert both.engines is not None
    assert [each.name for each in both.engines] == ["a"]


def test_ready_engines_without_a_load_report_are_counted() -> None:
    """As when `/load` of an engine answers 500."""
    silent = row("silent").model_copy(update={"report": None, "report_age_seconds": None})
    starting = silent.model_copy(update={"name": "starting", "condition": "unready"})
    loads = (load(row("a"), silent, starting), load(row("a", 0.1), silent))
    assert sample_of(loads, POOLS, 0.0).unreported == 1
    assert sample_of((*loads, load(row("silent", 0.1))), POOLS, 0.0).unreported == 0


def test_no_answer_is_not_an_idle_service() -> None:
    assert sample_of((), POOLS, 0.0).engines is None
    assert sample_of((load(),), POOLS, 0.0).engines == ()


def test_pages_that_could_be_evicted_are_not_held() -> None:
    sample = sample_of((load(row("a", kv_pages_free=10, kv_pages_evictable=30)),), POOLS, 0.0)
    assert sample.engines is not None
    assert sample.engines[0].figures.kv_used == 0.6


def test_rates_are_passed_on_and_those_that_an_older_engine_lacks_are_unknown() -> None:
    newer = row("a", prefill_tokens_per_second=3.0, marginal_prefill_tokens_per_second=4.0)
    older = row("b", prefill_tokens_per_second=3.0)
    sample = sample_of((load(newer, older),), POOLS, 0.0)
    assert sample.engines is not None
    rates = [
        (
            engine.figures.prefill_tokens_per_second,
            engine.figures.marginal_prefill_tokens_per_second,
        )
        for engine in sample.engines
    ]
    assert rates == [(3.0, 4.0), (3.0, None)]


def test_pods_that_leave_and_those_of_a_roll_out_are_beyond_the_replicas() -> None:
    assert PoolPods(3, 1, live=3, planned=3).surplus(3) == 0
    assert PoolPods(3, 1, live=2, draining=1, planned=3).surplus(3) == 1, "the third comes yet"
    assert PoolPods(2, 1, live=3, planned=3).surplus(2) == 1, "not told to go yet"
    assert PoolPods(2, 1, live=2, planned=4).surplus(2) == 2, "a roll-out will need them"
    assert PoolPods(1, 1, live=1, planned=1).surplus(5) == 0
