"""The rules of others do what their sources say."""

from __future__ import annotations

import math

import pytest
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.demand import engines_needed, planned_engines, smoothed
from sluice_simulator.autoscale.policies.other_scalers import (
    SHIPPED_PACING,
    Behaviour,
    KedaTokenAware,
    Pacing,
    Thresholds,
    external_metric_replicas,
    pods_metric_replicas,
)

from tests.figures import with_figures
from tests.simulator.autoscale.scenes import chats


@pytest.mark.parametrize(
    ("current", "values", "missing", "wanted"),
    [
        (3, [10, 10, 10], 0, 3),
        (3, [10.9, 10.9, 11], 0, 3),  # within the tolerance
        (3, [15, 15, 15], 0, 5),
        (3, [4, 4, 4], 0, 2),
        (4, [20, 20], 2, 4),  # who starts counts as idle: that is enough
        (4, [30, 30], 2, 6),
        (4, [4, 4], 2, 3),  # who starts counts as on target where it shrinks
        (4, [], 4, 4),
    ],
)
def test_replicas_by_a_metric_of_pods(
    current: int, values: list[float], missing: int, wanted: int
) -> None:
    assert pods_metric_replicas(current, values, missing, target=10.0) == wanted


def test_replicas_by_an_external_metric() -> None:
    pool = PoolSample(Role.MIXED, replicas=3, ready=2, starting=1)
    totals = {29.0: 3, 32.0: 3, 34.0: 4, 12.0: 2, 0.0: 0}
    found = {total: external_metric_replicas(pool, total, 10.0) for total in totals}
    assert found == totals


def test_one_pod_at_a_time_as_llm_d_ships_it() -> None:
    pool = Behaviour(maximum=10, down_seconds=300.0, pacing=SHIPPED_PACING)
    sizes = [2]
    for tick in range(100):
        sizes.append(pool.applied(15.0 * tick, sizes[-1], 9 if tick < 25 else 1))
    changes = [
        (15 * tick, sizes[tick + 1]) for tick in range(100) if sizes[tick] != sizes[tick + 1]
    ]
    assert changes == [(0, 3), (180, 4), (360, 5), (675, 4), (975, 3), (1275, 2)]


def test_growth_is_limited_and_shrinking_waits_for_the_highest_recommendation() -> None:
    pool = Behaviour(maximum=40, down_seconds=300.0)
    assert pool.applied(0.0, 2, 30) == 6  # four more
    assert pool.applied(7.0, 6, 30) == 6  # not again within 15 s
    assert pool.applied(15.0, 6, 30) == 12  # doubled
    assert pool.applied(30.0, 12, 14) == 14
    assert pool.applied(45.0, 14, 1) == 14
    assert pool.applied(320.0, 14, 1) == 14  # 14 was recommended 290 s before
    assert pool.applied(331.0, 14, 1) == 1


def engine(name: str, **load: float) -> EngineSample:
    return EngineSample(name, Role.MIXED, name, "ready", 0.5, **with_figures(load))


def sample(*engines: EngineSample, seconds: float = 15.0) -> Sample:
    pool = PoolSample(Role.MIXED, len(engines), len(engines))
    return Sample(seconds, {Role.MIXED: pool}, engines)


def test_token_aware_takes_the_greater_of_backlog_and_occupancy() -> None:
    def wanted(**load: float) -> int:
        keda = KedaTokenAware([Role.MIXED], 1000.0, Thresholds(pacing=Pacing()))
        return keda.targets(sample(engine("a", **load), engine("b"))).replicas[Role.MIXED]

    assert wanted(queued_tokens=4600) == math.ceil(4.6 / 1.5)
    assert wanted(kv_used=0.95, queued_tokens=10) == 2
    assert wanted(queued_tokens=10_000) == 6  # of 7, as much as 15 s allow
    keda = KedaTokenAware([Role.MIXED], 1000.0, Thresholds())
    first = sample(engine("a", queued_tokens=90_000.0), engine("b"))
    for seconds in (15.0, 30.0, 45.0):
        first = sample(*first.engines or (), seconds=seconds)
        assert keda.targets(first).replicas[Role.MIXED] <= 10


def test_need_adds_up_and_a_plan_is_ahead_of_it_by_a_start() -> None:
    one, double = chats(300.0, 2.0), chats(300.0, 4.0)
    need = {
        trace: sum(engines_needed(trace, AZURE, [Role.MIXED])[Role.MIXED]) / len(trace.requests)
        for trace in (one, double)
    }
    assert need[one] == pytest.approx(need[double], rel=0.1)
    assert smoothed([4.0] * 10, 5)[5] == 4.0
    needed = [0.5] * 100 + [2.5] * 50 + [0.5] * 20 + [2.5] * 30 + [0.5] * 100
    engines = planned_engines(needed, 1, 1.0, boot_seconds=30.0)
    assert engines[67] == 1
    assert engines[68:200] == [3] * 132  # kept over a pause that is shorter than a start
    assert engines[201] == 1
