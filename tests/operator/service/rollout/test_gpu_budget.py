"""One plan within a budget of GPUs: what holds them, what waits, and what a service says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import with_applied_fields
from sluice_operator.pool.plan import plan_pool
from sluice_operator.scaled import MOVING, MoveInProgress
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.scaling import scaled_service
from sluice_operator.service.report.status import service_status
from sluice_operator.service.rollout.gpu_budget import (
    WAITS_FOR_BUDGET,
    Budget,
    PodCounts,
    budget_of,
    plan_within,
    pod_surges,
)
from sluice_operator.service.rollout.in_place import plan_in_place
from sluice_operator.service.rollout.lent_gpus import INTERRUPTS
from sluice_operator.service.rollout.surge import PoolState, RolloutRevision, plan_rollout

from tests.operator.examples import NOW, complete, live, pods, service, service_observed
from tests.operator.examples import pool_observed as observed_pool

PREFILL, DECODE = Role.PREFILL, Role.DECODE


def test_no_engine_ends_for_a_successor_whose_gpu_a_lost_node_holds() -> None:
    """Two of four engines are Terminating for ever, and two were made in their place."""
    pools = (
        PoolState(
            PREFILL,
            4,
            RolloutRevision("b", is_tried=False),
            (RolloutRevision("a", 4, 4, settled=True),),
        ),
    )
    lost = Budget(4, {PREFILL: 1}, {PREFILL: PodCounts({"a": 4}, 2)})
    plan = plan_within(pools, {PREFILL: "a"}, plan_rollout, lost)
    assert plan.shares[PREFILL] == {"b": 0, "a": 4}
    assert plan.reason == WAITS_FOR_BUDGET
    gone = Budget(4, {PREFILL: 1}, {PREFILL: PodCounts({"a": 4}, 0)})
    ends = plan_within(pools, {PREFILL: "a"}, plan_rollout, gone)
    assert ends.shares[PREFILL] == {"b": 0, "a": 3}
    smaller = (PoolState(PREFILL, 2, RolloutRevision("b", is_tried=False), pools[0].others),)
    more = Budget(4, {PREFILL: 1}, {PREFILL: PodCounts({"a": 4}, 3)})
    shrunk = plan_within(smaller, {PREFILL: "a"}, plan_in_place, more)
    assert shrunk.shares[PREFILL] == {"b": 0, "a": 2}, "a smaller pool gives its engines back"


@pytest.mark.parametrize(
    ("planned", "live", "draining"),
    [(1, 1, 1), (None, 1, 1), (1, 2, 1)],
    ids=["its pod leaves", "no plan is seen", "another pod leaves first"],
)
def test_an_engine_that_leaves_is_not_called_back(
    planned: int | None, live: int, draining: int
) -> None:
    """The Deployment, as seen so far, still asks for it. Another pod would be one too many."""
    former = RolloutRevision("a", replicas=2, ready=2, available=2, planned=planned)
    desired = RolloutRevision("b", replicas=1, ready=1, available=1)
    pools = (PoolState(DECODE, 3, desired, (former,)),)
    budget = Budget(3, {DECODE: 1}, {DECODE: PodCounts({"a": live, "b": 1}, draining)})
    plan = plan_within(pools, {DECODE: "a"}, plan_rollout, budget)
    assert plan.shares == {DECODE: {"a": 1, "b": 1}}
    assert plan.reason == WAITS_FOR_BUDGET


def test_a_revision_whose_pods_all_leave_is_not_called_back() -> None:
    """The Deployment has gone, which is not seen yet."""
    leaving = RolloutRevision("a", replicas=2, ready=2, available=2, planned=2, is_leaving=True)
    desired = RolloutRevision("b", replicas=2, ready=1, available=1, planned=2)
    pools = (PoolState(DECODE, 2, desired, (leaving,)),)
    budget = Budget(4, {DECODE: 1}, {DECODE: PodCounts({"b": 2}, 2)})
    assert plan_within(pools, {DECODE: "b"}, plan_rollout, budget).shares == {DECODE: {"b": 2}}
    listed = replace(leaving, planned=0, is_leaving=False)
    pools = (PoolState(DECODE, 2, desired, (listed,)),)
    assert plan_within(pools, {DECODE: "b"}, plan_rollout, budget).shares == {DECODE: {"b": 2}}


def test_a_pool_that_grows_again_waits_for_its_engine_that_leaves() -> None:
    """The Deployment, as seen so far, has not shrunk yet."""
    pools = (PoolState(DECODE, 2, RolloutRevision("a", 2, 2, planned=1)),)
    budget = Budget(2, {DECODE: 1}, {DECODE: PodCounts({"a": 1}, 1)})
    plan = plan_within(pools, {DECODE: "a"}, plan_rollout, budget)
    assert plan.shares == {DECODE: {"a": 1}}
    assert plan.reason == WAITS_FOR_BUDGET


@pytest.mark.parametrize("seen", [0, 1])
def test_engines_that_are_planned_hold_their_gpus_before_their_deployment_is_seen(
    seen: int,
) -> None:
    pools = (
        PoolState(PREFILL, 2, RolloutRevision("a", 1, 1, planned=1)),
        PoolState(DECODE, 2, RolloutRevision("a", seen, seen, planned=2)),
    )
    counted = {PREFILL: PodCounts({"a": 1}, 0), DECODE: PodCounts({"a": seen}, 0)}
    budget = Budget(3, {PREFILL: 1, DECODE: 1}, counted)
    plan = plan_within(pools, {PREFILL: "a", DECODE: "a"}, plan_rollout, budget)
    assert plan.shares == {PREFILL: {"a": 1}, DECODE: {"a": 2}}


def test_the_other_pool_lends_its_gpus_as_long_as_the_plan_has_an_engine_for_them() -> None:
    """The Deployment of that engine is not seen to have grown."""
    planned = RolloutRevision("b", planned=1, fingerprint="b")
    new = RolloutRevision("b", is_tried=False, fingerprint="b")
    pools = (
        PoolState(PREFILL, 4, new, (RolloutRevision("a", 3, 3, fingerprint="a"),)),
        PoolState(DECODE, 1, planned, (RolloutRevision("a", 1, 1, fingerprint="a"),)),
    )
    counted = {PREFILL: PodCounts({"a": 3}, 0), DECODE: PodCounts({"a": 1}, 0)}
    budget = Budget(7, {PREFILL: 1, DECODE: 2}, counted)
    plan = plan_within(pools, {PREFILL: "a", DECODE: "a"}, plan_rollout, budget)
    assert plan.shares == {PREFILL: {"b": 0, "a": 3}, DECODE: {"b": 1, "a": 1}}


def test_the_other_pool_lends_no_engine_for_one_that_cannot_come() -> None:
    pools = (
        PoolState(
            PREFILL,
            3,
            RolloutRevision("b", is_tried=False),
            (RolloutRevision("a", 3, 3, settled=True),),
        ),
        PoolState(
            DECODE,
            1,
            RolloutRevision("b", is_tried=False),
            (RolloutRevision("a", 1, 1, settled=True),),
        ),
    )
    counted = {PREFILL: PodCounts({"a": 3}, 0), DECODE: PodCounts({"a": 1}, 1)}
    budget = Budget(4, {PREFILL: 1, DECODE: 1}, counted)
    plan = plan_within(pools, {PREFILL: "a", DECODE: "a"}, plan_rollout, budget)
    assert plan.shares == {PREFILL: {"b": 0, "a": 3}, DECODE: {"b": 0, "a": 1}}
    assert plan.reason == WAITS_FOR_BUDGET


FULL: Manifest = {"replicas": 1, "accelerator": {"count": 1}, "autoscaling": {"gpuBudget": 1}}


def test_it_is_said_that_nobody_will_be_served_before_the_only_engine_ends() -> None:
    before = plan_service(service_observed(service(FULL)))
    (pool,) = (live(pool.manifest) for pool in before.pools)
    deployment = complete(plan_pool(observed_pool(pool)).deployment or {})
    deployment["metadata"]["ownerReferences"] = [
        {"controller": True, "uid": pool["metadata"]["uid"]}
    ]
    edited = service(FULL | {"engine": {"image": "engine:2"}})
    observed = service_observed(edited, (pool, deployment))
    plan = plan_service(observed)
    assert plan.rollout is not None
    assert plan.rollout.reason == INTERRUPTS
    assert plan.rollout.shares[Role.MIXED][revision_of(deployment)] == 1, "it still serves"
    status = service_status(observed, plan, NOW)
    (progressing,) = [c for c in status["conditions"] if c["type"] == "Progressing"]
    assert (progressing["status"], progressing["reason"]) == ("True", INTERRUPTS)
    assert (
        "No engine of pool mixed will serve until its successor is ready" in progressing["message"]
    )
    then = plan_service(replace(observed, service=edited | {"status": status}))
    assert then.rollout is not None
    assert not then.rollout.shares[Role.MIXED].get(revision_of(deployment))
    newer = edited | {"status": status | {"observedGeneration": 0}}
    assert plan_service(replace(observed, service=newer)).rollout == plan.rollout, "of another spec"


def test_without_a_budget_nothing_changes() -> None:
    pools = (
        PoolState(PREFILL, 2, RolloutRevision("b"), (RolloutRevision("a", 2, 2, settled=True),)),
    )
    assert plan_within(pools, {PREFILL: "a"}, plan_rollout, None) == plan_rollout(
        pools, {PREFILL: "a"}
    )
    roomy = Budget(9, {PREFILL: 1}, {})
    planned = plan_within(pools, {PREFILL: "a"}, plan_rollout, roomy)
    assert planned == plan_rollout(pools, {PREFILL: "a"})


def test_without_room_the_last_former_engine_stays_until_a_new_one_was_ready() -> None:
    new = RolloutRevision("b", 0, planned=0)
    pools = (PoolState(PREFILL, 1, new, (RolloutRevision("a", 1, 1, settled=True),)),)
    tight = Budget(1, {PREFILL: 1}, {PREFILL: PodCounts({"a": 1}, 0)})
    plan = plan_within(pools, {PREFILL: "a"}, plan_rollout, tight)
    assert plan.shares[PREFILL] == {"b": 0, "a": 1}
    assert plan.stable == {PREFILL: "a"}


SCALED: Manifest = {
    "accelerator": {"count": 1},
    "autoscaling": {"minReplicas": 2, "maxReplicas": 4},
}
MIXED: Manifest = {**SCALED}
APART: Manifest = {**SCALED, "prefill": {}}


def within(spec: Manifest, budget: int) -> Manifest:
    return service(spec | {"autoscaling": spec["autoscaling"] | {"gpuBudget": budget}})


def engines_of(plan: ServicePlan) -> list[Manifest]:
    """The pods of all pools of a plan, placed and ready."""
    found = [plan_pool(observed_pool(live(pool.manifest))).deployment for pool in plan.pools]
    return [pod for deployment in found if deployment for pod in pods(deployment)]


def draining(found: list[Manifest]) -> list[Manifest]:
    gone = {"deletionTimestamp": "2026-01-02T03:04:05Z"}
    return [pod | {"metadata": pod["metadata"] | gone} for pod in found]


def asked(plan: ServicePlan) -> int:
    assert plan.rollout is not None
    return sum(sum(shares.values()) for shares in plan.rollout.shares.values())


@pytest.mark.parametrize(("before", "after"), [(MIXED, APART), (APART, MIXED)])
@pytest.mark.parametrize("room", [0, 1, 9])
def test_engines_of_the_former_mode_count_until_their_pods_have_left(
    before: Manifest, after: Manifest, room: int
) -> None:
    former = plan_service(service_observed(service(before)))
    held, wanted = asked(former), asked(plan_service(service_observed(service(after))))
    item = within(after, max(held, wanted) + room)
    free = item["spec"]["autoscaling"]["gpuBudget"] - held
    serving, there = engines_of(former), [live(pool.manifest) for pool in former.pools]

    switching = plan_service(service_observed(item, there, engines=serving))
    needed = max(wanted, held)
    assert asked(switching) == min(needed, free), "in place of those that serve"
    assert switching.rollout is not None
    waits = switching.rollout.reason == WAITS_FOR_BUDGET
    assert waits == ("the former mode hold" in switching.rollout.message) == (needed > free)
    unseen = plan_service(service_observed(item, there))
    assert asked(unseen) == min(needed, free), "their pods are yet to be made"
    leaving = plan_service(service_observed(item, engines=draining(serving)))
    assert asked(leaving) == min(wanted, free), "their pools have gone, their pods have not"
    assert asked(plan_service(service_observed(item))) == wanted


def test_the_autoscaler_is_told_what_engines_of_the_former_mode_hold() -> None:
    item, left = within(APART, 9), draining(engines_of(plan_service(service_observed())))
    on_gpus = [_with_gpus(pod, 2) for pod in left]
    plan = plan_service(service_observed(item))
    there = [live(pool.manifest) for pool in plan.pools]
    observed = service_observed(item, there, engines=on_gpus)
    scaled = scaled_service(observed, plan_service(observed))
    assert scaled is not None
    assert scaled.former_gpus == 2 * len(left)


def test_engines_that_move_may_be_there_twice_for_a_moment() -> None:
    """Else the pod whose place they take would never be made."""
    item = within(APART, 4)
    plan = plan_service(service_observed(item))
    there = {pool.role: live(pool.manifest) for pool in plan.pools}
    spec = plan.spec
    assert spec is not None
    before = budget_of(service_observed(item, there.values()), spec)
    move = MoveInProgress(PREFILL, 3, 4, 5, "2026-01-02T03:04:05Z")
    there[DECODE]["metadata"]["annotations"][MOVING] = move.text
    during = budget_of(service_observed(item, there.values()), spec)
    assert before is not None
    assert during is not None
    assert (before.gpus, during.gpus) == (4, 4 + 3 * before.engine_gpus[PREFILL])
    assert during.gpus > before.gpus


def test_pods_of_a_pool_that_was_deleted_count_for_the_one_made_in_its_place() -> None:
    item = within(MIXED, 3)
    left = draining(engines_of(plan_service(service_observed(item))))
    assert {pod["metadata"]["labels"][labels.ROLE] for pod in left} == {"mixed"}
    assert asked(plan_service(service_observed(item, engines=left))) == 1


TOLERATION: Manifest = {"template": {"tolerations": [{"operator": "Exists"}]}}


def changed_pods(budget: int, **autoscaling: object) -> tuple[ServicePlan, Manifest]:
    """Two complete engines, whose pods get a toleration by the plan; and the pool's Deployment."""
    spec = {**autoscaling, **SCALED}
    before = plan_service(service_observed(within(spec, budget)))
    (there,) = (live(pool.manifest) for pool in before.pools)
    deployment = plan_pool(observed_pool(there)).deployment
    assert deployment is not None
    engines = pods(deployment)
    pool = there | {"spec": there["spec"] | {"replicas": 2}}
    item = within(spec | {**(SCALED | TOLERATION)}, budget)
    owned = complete(deployment)
    owned["metadata"]["ownerReferences"] = [{"controller": True, "uid": pool["metadata"]["uid"]}]
    plan = plan_service(service_observed(item, (pool, owned), engines=engines))
    wanted = live(plan.pools[0].manifest)
    wanted = with_applied_fields(wanted | {"spec": wanted["spec"] | {"replicas": 2}})
    after = plan_pool(observed_pool(wanted)).deployment
    assert after is not None
    assert after["metadata"]["name"] == deployment["metadata"]["name"], "the revision stays"
    return plan, after


@pytest.mark.parametrize(("budget", "surge"), [(3, 0), (4, 1)])
def test_pods_are_replaced_beside_the_others_where_one_that_comes_and_one_that_drains_have_room(
    budget: int, surge: int
) -> None:
    plan, deployment = changed_pods(budget)
    assert plan.pools[0].manifest["spec"].get("podSurge", 0) == surge
    room = deployment["spec"]["strategy"]["rollingUpdate"]
    assert room == {"maxSurge": surge, "maxUnavailable": 1 - surge}
    asked_in_place, _ = changed_pods(budget, rollout={"strategy": "InPlace"})
    assert "podSurge" not in asked_in_place.pools[0].manifest["spec"]


@pytest.mark.parametrize(
    ("surge", "settled", "replaced", "after"),
    [
        (1, False, False, {PREFILL: 1}),
        (1, True, True, {PREFILL: 1}),
        (1, True, False, {}),
        (0, False, False, {}),
        (0, True, True, {}),
    ],
)
def test_a_surge_of_pods_stays_until_all_are_new_and_holds_its_gpus(
    *, surge: int, settled: bool, replaced: bool, after: dict[Role, int]
) -> None:
    pool = PoolState(PREFILL, 2, RolloutRevision("a", 2, 2, settled=settled))
    budget = Budget(3, {PREFILL: 1}, {PREFILL: PodCounts({"a": 2}, 0)}, {PREFILL: surge})
    rollout = plan_within((pool,), {PREFILL: "a"}, plan_rollout, budget)
    assert pod_surges((pool,), rollout, budget, {PREFILL} if replaced else set()) == after
    more = PoolState(PREFILL, 3, RolloutRevision("a", 2, 2))
    grown = plan_within((more,), {PREFILL: "a"}, plan_rollout, budget)
    assert grown.shares[PREFILL] == {"a": 3 - surge}


def _with_gpus(pod: Manifest, count: int) -> Manifest:
    (container,) = pod["spec"]["containers"]
    limits = {"cpu": "8", "nvidia.com/gpu": str(count), "rdma/hca": 1}
    return pod | {
        "spec": pod["spec"] | {"containers": [container | {"resources": {"limits": limits}}]}
    }
