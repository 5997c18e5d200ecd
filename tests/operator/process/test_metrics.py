"""Gauges of services: the newest status alone, and nothing of services that are gone."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, Manifest
from sluice_operator.process.metrics import STATES, OperatorMetrics, ServiceStatuses

from tests.operator.examples import pool, service

KEY = Key(INFERENCE_SERVICE.kind, "default", "chat")
PLACE = {"namespace": "default", "name": "chat"}
WHY = {"True": "Serving", "False": "Unschedulable"}


def status(ready: str, desired: int = 2) -> Manifest:
    counts = {f"{state}Replicas": 1 for state in STATES} | {"desiredReplicas": desired}
    pools = {"mixed": counts | {"summary": "1/2"}}
    condition = {"type": "Ready", "status": ready, "reason": WHY[ready]}
    return {"conditions": [condition], "pools": pools}


@pytest.fixture
def statuses() -> ServiceStatuses:
    return OperatorMetrics().statuses


def value(statuses: ServiceStatuses, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(statuses)
    return registry.get_sample_value(f"sluice_operator_{name}", PLACE | labels)


def test_a_condition_has_a_series_for_the_status_it_has_now(statuses: ServiceStatuses) -> None:
    statuses.record(service(), status("False"))
    statuses.record(service(), status("True"))
    assert value(statuses, "condition", type="Ready", status="True", reason="Serving") == 1
    assert (
        value(statuses, "condition", type="Ready", status="False", reason="Unschedulable") is None
    )


def test_a_pool_has_its_numbers_by_state(statuses: ServiceStatuses) -> None:
    statuses.record(service(), status("True", desired=3))
    found = [value(statuses, "pool_replicas", role="mixed", state=state) for state in STATES]
    assert found == [3, 1, 1, 1]


def test_a_service_that_is_gone_has_no_series(statuses: ServiceStatuses) -> None:
    statuses.record(service(), status("True"))
    statuses.forget(Key(ENGINE_POOL.kind, "default", "chat"))
    assert value(statuses, "condition", type="Ready", status="True", reason="Serving") == 1
    statuses.forget(KEY)
    assert value(statuses, "condition", type="Ready", status="True", reason="Serving") is None
    assert value(statuses, "pool_replicas", role="mixed", state="ready") is None


def test_pools_are_told_with_their_service_alone(statuses: ServiceStatuses) -> None:
    statuses.record(pool(), status("True"))
    assert next(iter(statuses.collect())).samples == []
