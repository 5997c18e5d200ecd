"""Which services have engines that may move to the other pool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.cluster.labels import Role
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.scaling import engines_move

from tests.operator.examples import service, service_observed

SPLIT: Manifest = {"prefill": {}}


def planned(spec: Manifest) -> ServicePlan:
    return plan_service(service_observed(service(spec)))


def moves(spec: Manifest) -> bool:
    return engines_move(planned(spec))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"slo": {"ttftMilliseconds": 2000, "itlMilliseconds": 50}},
        {"slo": {"itlMilliseconds": 50}},
        {"replicas": 1, "prefill": {"replicas": 3}},
        {"engine": {"maxRunningRequests": 64}, "template": {"labels": {"team": "a"}}},
    ],
)
def test_engines_of_pools_that_differ_in_role_alone_move(spec: Manifest) -> None:
    assert moves(SPLIT | spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"prefill": {"engine": {"chunkSize": 1024}}},
        {"prefill": {"engine": {"maxRunningRequests": 64}}},
        {"prefill": {"template": {"labels": {"team": "a"}}}},
        {"prefill": {"resources": {"requests": {"cpu": "2"}}}},
        {"prefill": {"engine": {"drainSeconds": 30}}},
        {"engine": {"speculation": {"method": "NGram"}}},
    ],
)
def test_engines_that_differ_in_more_do_not(spec: Manifest) -> None:
    assert not moves(SPLIT | spec)


def test_engines_that_take_no_other_role_do_not() -> None:
    assert not moves({})
    assert not moves(SPLIT | {"engine": {"kvTransfer": {"backend": "Mooncake"}}})


def test_none_moves_during_a_roll_out_or_as_another_release_made_it() -> None:
    plan = planned(SPLIT)
    assert not engines_move(replace(plan, upgrade=("pool prefill: image",)))
    share = [{"name": "old", "replicas": 1}, {"name": "new", "replicas": 1}]
    pools = tuple(
        replace(pool, manifest=pool.manifest | {"spec": pool.manifest["spec"] | change})
        for pool in plan.pools
        for change in [{"revisions": share} if pool.role is Role.DECODE else {}]
    )
    assert not engines_move(replace(plan, pools=pools))
