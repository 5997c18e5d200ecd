"""Statuses that count engines anew are written once a second; what somebody waits for, at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.apply.applier import ApplyOutcome
from sluice_operator.apply.executor import Report, executor
from sluice_operator.apply.status import COUNTS_SECONDS
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.errors import ApiError
from sluice_operator.process.metrics import OperatorMetrics

from tests.operator.virtual_time import FakeClock

ENGINES = 8


class Pools:
    """Two EnginePools on an API server, with the statuses that were written."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.live = {name: _pool(name) for name in ("chat", "code")}
        self.written: list[tuple[float, dict[str, Any]]] = []
        client = ApiClient(self, lambda verb, plural: None)
        self._writes = executor(client, self.clock, "test", OperatorMetrics().statuses)

    async def send(self, request: Request) -> Response:
        assert request.path.endswith("/status")
        name = request.body["metadata"]["name"]
        self.live[name] = {**self.live[name], "status": copy.deepcopy(request.body["status"])}
        self.written.append((self.clock.monotonic(), request.body["status"]))
        return Response(200, self.live[name])

    async def report(
        self, status: dict[str, Any], name: str = "chat", outcome: ApplyOutcome | None = None
    ) -> float | None:
        live, report = self.live[name], Report(status, (), ())
        return await self._writes.report(live, outcome or ApplyOutcome(), report)


def _pool(name: str) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "uid": f"uid of {name}"}
    return {"apiVersion": labels.API_VERSION, "kind": "EnginePool", "metadata": metadata}


def _revision(ready: int, **changed: Any) -> dict[str, Any]:
    return {"name": "a", "config": "c", "ready": ready, "replicas": 4, "current": True, **changed}


def _status(ready: int, **changed: Any) -> dict[str, Any]:
    updated = {"type": "Updated", "status": "False", "reason": "Starting", "message": f"{ready}"}
    return {
        "observedGeneration": 1,
        "replicas": ENGINES,
        "readyReplicas": ready,
        "updatedReplicas": ready,
        "summary": f"{ready}/{ENGINES}",
        "revisions": [_revision(ready)],
        "conditions": [updated],
        **changed,
    }


def rollout_text(message: str) -> dict[str, Any]:
    return {"rollout": {"reason": "RollingOut", "message": message, "stable": {"mixed": "a"}}}


@pytest.fixture
def pools() -> Pools:
    return Pools()


async def test_counts_are_written_at_once_and_then_once_a_second(pools: Pools) -> None:
    again: float | None = None
    for tenth in range(25):
        pools.clock.elapsed_seconds = tenth / 10
        again = await pools.report(_status(tenth + 1))
    assert [moment for moment, _ in pools.written] == [0.0, 1.0, 2.0]
    assert again is not None
    pools.clock.elapsed_seconds += again
    assert await pools.report(_status(25)) is None
    assert pools.written[-1][1] == _status(25), "the last one is lost"


async def test_nothing_is_written_for_what_has_passed_meanwhile(pools: Pools) -> None:
    for ready in (3, 4, 3):
        await pools.report(_status(ready))
    pools.clock.elapsed_seconds = 60.0
    assert len(pools.written) == 1
    await pools.report(_status(4))
    assert len(pools.written) == 2


async def test_each_object_has_its_own_second(pools: Pools) -> None:
    await pools.report(_status(1))
    await pools.report(_status(1), "code")
    assert len(pools.written) == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"observedGeneration": 2},
        {"completedGeneration": 1},
        {"replicas": ENGINES + 1},
        {"selector": "other"},
        {"rollout": {"reason": "RollingOut", "message": "2 of 3"}},
        {"conditions": [{"type": "Updated", "status": "True", "reason": "AllReady"}]},
        {"conditions": [{"type": "Updated", "status": "False", "reason": "Unschedulable"}]},
        {"revisions": [_revision(4, name="b")]},
        {"revisions": [_revision(0)]},
        {"revisions": [_revision(4, loading=1)]},
        {"revisions": [_revision(4), _revision(1, name="b", current=False)]},
    ],
    ids=lambda changed: str(changed)[:60],
)
async def test_what_somebody_waits_for_does_not_wait(pools: Pools, changed: dict[str, Any]) -> None:
    await pools.report(_status(3))
    assert await pools.report(_status(4, **changed)) is None
    assert len(pools.written) == 2


POOL = {"desiredReplicas": 8, "replicas": 3, "readyReplicas": 1, "summary": "1/8"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (rollout_text("2 of 8 engines are ready"), rollout_text("3 of 8 engines are ready")),
        ({"revisions": [_revision(3, loading=1)]}, {"revisions": [_revision(3, loading=4)]}),
        ({"revisions": [_revision(3, gated=9)]}, {"revisions": [_revision(3, gated=2)]}),
        (
            {"accelerators": [{"count": 1, "engines": 1}]},
            {"accelerators": [{"count": 1, "engines": 2}]},
        ),
        ({"adapters": [{"name": "fr", "loaded": 1}]}, {"adapters": [{"name": "fr", "loaded": 2}]}),
        (
            {"pools": {"mixed": POOL}},
            {"pools": {"mixed": {**POOL, "replicas": 4, "readyReplicas": 2}}},
        ),
    ],
)
async def test_whatever_only_counts_waits(
    pools: Pools, before: dict[str, Any], after: dict[str, Any]
) -> None:
    await pools.report(_status(3, **before))
    assert await pools.report(_status(4, **after)) == COUNTS_SECONDS
    assert len(pools.written) == 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"mixed": POOL}, {"mixed": {**POOL, "desiredReplicas": 0}}),
        ({"mixed": POOL}, {"mixed": {**POOL, "readyReplicas": 0}}),
        ({"mixed": POOL}, {"mixed": {**POOL, "accelerator": "CPU"}}),
        ({"prefill": POOL}, {"prefill": POOL, "decode": POOL}),
    ],
)
async def test_what_is_asked_of_a_pool_and_what_it_has_does_not_wait(
    pools: Pools, before: dict[str, Any], after: dict[str, Any]
) -> None:
    await pools.report(_status(3, pools=before))
    assert await pools.report(_status(4, pools=after)) is None
    assert len(pools.written) == 2


async def test_counts_do_not_wait_beside_a_refusal_that_is_tried_again_later(pools: Pools) -> None:
    await pools.report(_status(3))
    refused = ApplyOutcome(again=ApiError("PATCH", 403, "Forbidden", "no"))
    with pytest.raises(ApiError):
        await pools.report(_status(4), outcome=refused)
    assert len(pools.written) == 2
