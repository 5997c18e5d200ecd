"""How many engines a pool should have, by what is seen of it."""

from __future__ import annotations

from sluice_autoscaler.decide import decide
from sluice_autoscaler.history import History
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, Settings
from sluice_contract.labels import Role

SETTINGS = Settings({Role.MIXED: PoolLimits(minimum=1, maximum=8)})


def seen(engines: tuple[EngineSample, ...] | None, replicas: int = 1) -> Sample:
    pool = PoolSample(Role.MIXED, replicas=replicas, ready=replicas)
    return Sample(100.0, {Role.MIXED: pool}, engines)


def engine(**load: float) -> EngineSample:
    return EngineSample("a", Role.MIXED, "1", "ready", age_seconds=0.5, **load)  # type: ignore[arg-type]


def test_queued_work_asks_for_more_engines() -> None:
    decision = decide(SETTINGS, History(), seen((engine(queued_work_seconds=3.0),)))
    pool = decision.pools[Role.MIXED]
    assert (pool.current, pool.desired, pool.reason) == (1, 3, "QueuedWork")


def test_missing_reports_change_nothing() -> None:
    decision = decide(SETTINGS, History(), seen(None, replicas=5))
    assert not decision.changes
    assert decision.reason == "MetricsMissing"
