"""What an EnginePool reports in the situations of its life, against golden files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sluice_operator.apply.applier import Refused
from sluice_operator.apply.plan import Identity
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import with_applied_fields
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status

from tests.operator.examples import (
    NOW,
    complete,
    edited_pool,
    live,
    owned_pool,
    pods,
    pool,
    pool_observed,
    pool_plan,
    pool_with,
    service,
)
from tests.operator.statuses import (
    Told,
    assert_at_rest,
    assert_situation,
    condition,
    kstatus,
)

THREE = {"replicas": 3}
THREE_NEW = THREE | {"engine": {"image": "new:2"}}
UNSCHEDULABLE = {
    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient cpu.",
}  # fmt: skip
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
ENDED = {"exitCode": 1, "message": '{"reason":"ModelLoadFailed","message":"no config.json"}'}
NO_MODEL = {"name": "engine", "ready": False, "lastState": {"terminated": ENDED}}


def _deployment(spec: Manifest = THREE) -> Manifest:
    found = pool_plan(spec).deployment
    assert found is not None
    return found


def _new() -> PoolObserved:
    return pool_observed(pool(THREE))


def _starting() -> PoolObserved:
    deployment = _deployment()
    starting = pods(deployment, phase="Pending", conditions=[])
    return pool_observed(pool(THREE), [live(deployment, observedGeneration=1)], starting)


def _ready() -> PoolObserved:
    deployment = _deployment()
    return pool_observed(pool(THREE), [complete(deployment)], pods(deployment))


def _unschedulable() -> PoolObserved:
    deployment = _deployment()
    found = pods(deployment, 2)
    stuck = pods(deployment, phase="Pending", conditions=[UNSCHEDULABLE])[2:]
    current = live(deployment, observedGeneration=1, replicas=3, availableReplicas=2)
    return pool_observed(pool(THREE), [current], found + stuck)


def _given_up() -> PoolObserved:
    """Nothing could be scheduled until the Deployment's own deadline."""
    stuck = pods(_deployment(), phase="Pending", conditions=[UNSCHEDULABLE])
    current = live(_deployment(), observedGeneration=1, conditions=[LATE])
    return pool_observed(pool(THREE), [current], stuck)


def _killed(restarts: int) -> PoolObserved:
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    container = {"name": "engine", "ready": False, "restartCount": restarts, "lastState": killed}
    broken = pods(_deployment(), phase="Running", containerStatuses=[container])
    return pool_observed(pool(THREE), [live(_deployment(), observedGeneration=1)], broken)


def _model_missing() -> PoolObserved:
    deployment = _deployment()
    broken = pods(deployment, phase="Running", containerStatuses=[NO_MODEL])
    return pool_observed(pool(THREE), [live(deployment, observedGeneration=1)], broken)


def _rolling_out(starting: Manifest | None = None) -> PoolObserved:
    """The engines of the new revision, all as `starting` says, beside those of the old one."""
    old, new = _deployment(), _deployment(THREE_NEW)
    coming = pods(new, **(starting or {"phase": "Pending", "conditions": []}))
    children = [complete(old), live(new, observedGeneration=1)]
    return pool_observed(pool(THREE_NEW), children, [*coming, *pods(old)])


def _rolling_out_in_vain() -> PoolObserved:
    return _rolling_out({"phase": "Running", "containerStatuses": [NO_MODEL]})


def _crashing(restarts: int) -> Manifest:
    ended = {"terminated": {"exitCode": 1}}
    container = {"name": "engine", "ready": False, "restartCount": restarts, "lastState": ended}
    return {"phase": "Running", "containerStatuses": [container]}


def _waiting(reason: str) -> Manifest:
    waiting = {"waiting": {"reason": reason, "message": "in words"}}
    return {"phase": "Pending", "containerStatuses": [{"name": "engine", "state": waiting}]}


def _rolling_out_short() -> PoolObserved:
    """One engine of the old revision goes before there is one of the new."""
    observed = _rolling_out()
    observed.pods[-1]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return observed


def _no_quota(ago: timedelta = timedelta()) -> PoolObserved:
    since = (NOW - ago).strftime("%Y-%m-%dT%H:%M:%SZ")
    failing = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}
    conditions = [failing | {"lastTransitionTime": since}]
    current = live(_deployment(), observedGeneration=1, conditions=conditions)
    return pool_observed(pool(THREE), [current])


def _no_quota_for_the_next() -> PoolObserved:
    """Engines of the former revision serve."""
    old, refused = _deployment(), _no_quota(timedelta(minutes=1))
    (current,) = refused.children
    new = live(
        _deployment(THREE_NEW),
        observedGeneration=1,
        conditions=current["status"]["conditions"],
    )
    return pool_observed(pool(THREE_NEW), [complete(old), new], pods(old))


def _too_slow() -> PoolObserved:
    current = live(_deployment(), observedGeneration=1, conditions=[LATE])
    return pool_observed(pool(THREE), [current])


def _loading(**engine: Any) -> PoolObserved:
    """The deadline has passed, and engines of the new revision load beside the old ones."""
    loads = {"name": "engine", "ready": False, "started": True, "state": {"running": {}}} | engine
    old, new = _deployment(), _deployment(THREE_NEW)
    coming = pods(new, phase="Running", containerStatuses=[loads])
    children = [complete(old), live(new, observedGeneration=1, conditions=[LATE])]
    return pool_observed(pool(THREE_NEW), children, [*coming, *pods(old)])


def _gated() -> PoolObserved:
    """The deadline has passed, and engines of the new revision wait in a queue."""
    observed = _loading()
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    for pod in observed.pods:
        if "containerStatuses" in pod["status"]:
            pod["status"] = {"phase": "Pending", "conditions": [gated]}
            pod["spec"] = pod["spec"] | {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    return observed


def _draining() -> PoolObserved:
    """As when they load, but they are going away."""
    observed = _loading()
    for pod in observed.pods:
        if "containerStatuses" in pod["status"]:
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return observed


def _scaled_to_zero() -> PoolObserved:
    none = {"replicas": 0}
    return pool_observed(pool(none), [complete(_deployment(none))])


def _scaling_up() -> PoolObserved:
    """The Deployment of one replica is complete; three are wanted, and not applied yet."""
    one = _deployment({})
    return pool_observed(pool(THREE), [complete(one)], pods(one))


def _paused() -> PoolObserved:
    return PoolObserved(pool(THREE), service({"paused": True}))


def _edited() -> PoolObserved:
    """Somebody has scaled it to nothing; its engines serve, as its service asks."""
    deployment, engines = _deployment(), pods(_deployment())
    ready = pool_observed(owned_pool(THREE), [complete(deployment)], engines)
    edited = edited_pool(THREE, replicas=0) | {"status": _status(ready)}
    return pool_observed(edited, [complete(deployment)], engines)


def _orphaned() -> PoolObserved:
    orphan = pool(THREE)
    orphan["metadata"].pop("ownerReferences")
    return PoolObserved(orphan, None)


SITUATIONS: dict[str, tuple[Callable[[], PoolObserved], Told]] = {
    "new": (_new, Told("False", "False", "Applying")),
    "starting": (_starting, Told("False", "False", "Starting")),
    "ready": (_ready, Told("True", "True", "AllReady")),
    "unschedulable": (_unschedulable, Told("True", "False", "Unschedulable")),
    "given-up": (_given_up, Told("False", "False", "Unschedulable")),
    "killed": (lambda: _killed(2), Told("False", "False", "OOMKilled")),
    "killed-in-a-loop": (lambda: _killed(3), Told("False", "False", "OOMKilled")),
    "model-missing": (_model_missing, Told("False", "False", "ModelLoadFailed")),
    "rolling-out": (_rolling_out, Told("True", "False", "RollingOut")),
    "rolling-out-in-vain": (_rolling_out_in_vain, Told("True", "False", "ModelLoadFailed")),
    "rolling-out-short": (_rolling_out_short, Told("True", "False", "RollingOut")),
    "no-quota": (_no_quota, Told("False", "False", "ReplicaFailure")),
    "no-quota-for-long": (
        lambda: _no_quota(timedelta(seconds=30)),
        Told("False", "False", "ReplicaFailure"),
    ),
    "no-quota-for-the-next": (_no_quota_for_the_next, Told("True", "False", "ReplicaFailure")),
    "too-slow": (_too_slow, Told("False", "False", "ProgressDeadlineExceeded")),
    "loading-for-long": (_loading, Told("True", "False", "RollingOut")),
    "gated-for-long": (_gated, Told("True", "False", "SchedulingGated")),
    "hanging": (lambda: _loading(started=False), Told("True", "False", "ProgressDeadlineExceeded")),
    "draining": (_draining, Told("True", "False", "ProgressDeadlineExceeded")),
    "scaled-to-zero": (_scaled_to_zero, Told("True", "True", "ScaledToZero")),
    "scaling-up": (_scaling_up, Told("True", "False", "Applying")),
    "paused": (_paused, Told("False", "False", "Paused")),
    "edited": (_edited, Told("True", "False", "Edited")),
    "orphaned": (_orphaned, Told("False", "False", "Orphaned")),
}
STALLED = {
    "given-up", "killed-in-a-loop", "model-missing", "rolling-out-in-vain", "too-slow", "orphaned",
    "hanging", "draining", "no-quota-for-long", "no-quota-for-the-next",
}  # fmt: skip


def _status(observed: PoolObserved) -> Manifest:
    return pool_status(observed, plan_pool(observed), NOW)


NO_PLACE: Manifest = {"phase": "Pending", "conditions": [UNSCHEDULABLE]}


@pytest.mark.parametrize(
    ("engines", "halted"),
    [
        (_waiting("ImagePullBackOff"), True),
        (_waiting("CreateContainerConfigError"), True),
        (_crashing(3), True),
        (_crashing(2), False),
        (NO_PLACE, False),
    ],
)
def test_a_roll_out_stops_where_new_engines_fail_and_tools_wait_on(
    engines: Manifest, halted: bool
) -> None:
    status = _status(_rolling_out(engines))
    progressing = condition(status, "Progressing")
    assert (progressing["reason"] == "RolloutHalted") is halted
    assert condition(status, "Reconciling")["status"] == "True", "it may pass"
    if halted:
        assert "pod chat-mixed-" in progressing["message"]


def test_what_has_nothing_before_it_is_not_halted() -> None:
    broken = pods(_deployment(), **_crashing(3))
    observed = pool_observed(pool(THREE), [live(_deployment(), observedGeneration=1)], broken)
    assert condition(_status(observed), "Progressing")["reason"] == "CrashLoopBackOff"


@pytest.mark.parametrize("name", SITUATIONS)
def test_status_in_each_situation(name: str) -> None:
    observe, told = SITUATIONS[name]
    assert_situation(_status(observe()), told, stalled=name in STALLED, golden=f"pool-{name}")


@pytest.mark.parametrize("name", SITUATIONS)
def test_nothing_happened_nothing_changes(name: str) -> None:
    observed = SITUATIONS[name][0]()
    first = _status(observed)
    seen = PoolObserved(
        observed.pool | {"status": first}, observed.service, observed.children, observed.pods
    )
    # What a person is called for after a while is such a change: see test_deployments.
    passed = timedelta() if name == "no-quota" else timedelta(hours=1)
    later = pool_status(seen, plan_pool(seen), NOW + passed)
    assert_at_rest(first, later)


KINDS = ("Ready", "Updated", "ModelAvailable", "Reconciling", "Stalled")
ERROR = ApiError("PATCH /apis/x", 403, "Forbidden", "exceeded quota: small")


def test_a_child_that_is_refused_is_told_and_stalls() -> None:
    observed = _ready()
    refused = (Refused(Identity("PodDisruptionBudget", "chat-mixed"), ERROR),)
    status = pool_status(observed, plan_pool(observed), NOW, refused)
    found = {kind: condition(status, kind) for kind in KINDS}
    assert (found["Updated"]["status"], found["Updated"]["reason"]) == ("False", "ApplyFailed")
    assert "exceeded quota: small" in found["Updated"]["message"]
    assert (found["Stalled"]["status"], found["Reconciling"]["status"]) == ("True", "False")
    for kind in ("Ready", "ModelAvailable"):
        assert found[kind]["status"] == "True", "what serves still serves"


@pytest.mark.parametrize(
    ("kind", "reason"), [("Deployment", "ApplyFailed"), ("PodDisruptionBudget", "Unschedulable")]
)
def test_a_refused_budget_keeps_no_engine_from_starting(kind: str, reason: str) -> None:
    """What keeps them decides whether a roll-out goes on."""
    observed = _unschedulable()
    refused = (Refused(Identity(kind, "chat-mixed"), ERROR),)
    status = pool_status(observed, plan_pool(observed), NOW, refused)
    assert find(status, "Updated")["reason"] == reason  # type: ignore[index]


def test_engines_that_have_just_become_ready_serve_and_are_not_all_of_the_spec_yet() -> None:
    deployment = _deployment()
    current = live(deployment, observedGeneration=1, replicas=3, availableReplicas=2)
    status = _status(pool_observed(pool(THREE), [current], pods(deployment)))
    ready, updated = (find(status, kind) or {} for kind in ("Ready", "Updated"))
    assert ready["status"] == "True", "at once"
    assert (updated["status"], updated["reason"]) == ("False", "Starting")
    assert updated["message"] == (
        "3 of 3 engines ready; complete once all of them have been ready for 10 seconds."
    )


@pytest.mark.parametrize(
    ("shares", "rest"),
    [
        ({"a": 3}, "3 come later in the roll-out"),
        ({"a": 2}, "1 are starting, 2 come later in the roll-out"),
    ],
)
def test_engines_that_have_no_place_yet_are_not_called_starting(
    shares: dict[str, int], rest: str
) -> None:
    spec = THREE | {"rollout": {"strategy": "InPlace"}}
    there = pool_with(spec, **shares)
    there["spec"]["revisions"][0]["replicas"] = 3 - sum(shares.values())
    observed = pool_observed(with_applied_fields(there))
    deployment = plan_pool(observed).deployment
    assert deployment is not None
    current = live(deployment, observedGeneration=1)
    started = pods(deployment, phase="Pending", conditions=[])
    status = _status(replace(observed, children=(current,), pods=tuple(started)))
    assert condition(status, "Updated")["message"] == f"0 of 3 engines ready; {rest}."


def test_a_pod_without_a_place_for_long_stalls_with_what_a_person_can_do() -> None:
    observed = _unschedulable()
    for pod in observed.pods:
        pod["metadata"]["creationTimestamp"] = NOW.isoformat()
    later = pool_status(observed, plan_pool(observed), NOW + timedelta(days=1))
    stalled = condition(later, "Stalled")
    assert (stalled["status"], stalled["reason"]) == ("True", "Unschedulable")
    assert stalled["message"].endswith(
        ". Add nodes with room, or ask for fewer or smaller engines."
    )


def test_the_failing_pod_is_named() -> None:
    message = find(_status(_unschedulable()), "Updated")["message"]  # type: ignore[index]
    pod = pods(_deployment())[2]["metadata"]["name"]
    assert message.startswith("2 of 3 engines ready; ")
    assert f"pod {pod}: no node takes it (0/1 nodes are available: 1" in message


def _seen(observed: PoolObserved, status: Manifest, generation: int = 1) -> PoolObserved:
    """What is observed of a pool that has had `status` before."""
    metadata = observed.pool["metadata"] | {"generation": generation}
    return replace(observed, pool=observed.pool | {"metadata": metadata, "status": status})


def test_tools_wait_for_a_change_and_not_for_the_engine_of_a_drained_node() -> None:
    assert kstatus(_seen(_starting(), _status(_starting())).pool) == "InProgress"
    done = _status(_ready())
    assert kstatus(_ready().pool | {"status": done}) == "Current"
    drained = _seen(_unschedulable(), done)
    drained = _seen(drained, _status(drained))
    assert kstatus(drained.pool) == "Current"
    assert find(drained.pool["status"], "Updated")["status"] == "False"  # type: ignore[index]
    edited = _seen(_unschedulable(), drained.pool["status"], generation=2)
    assert kstatus(_seen(edited, _status(edited), generation=2).pool) == "InProgress"


def test_a_pool_that_is_going_keeps_its_status() -> None:
    before = _status(_ready())
    going = pool(THREE) | {"status": before}
    going["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert _status(pool_observed(going)) == before


def test_the_selector_finds_every_pod_of_the_pool() -> None:
    selector = dict(pair.split("=") for pair in _status(_ready())["selector"].split(","))
    for pod in pods(_deployment()):
        assert selector.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("kept", [True, False])
def test_claims_that_the_api_server_drops_are_told(kept: bool) -> None:
    accelerator = {"claimTemplate": "gpus", "count": 1}
    spec = {"accelerator": accelerator}
    deployment = live(_deployment(spec), observedGeneration=1)
    if not kept:
        del deployment["spec"]["template"]["spec"]["resourceClaims"]
    observed = pool_observed(pool(spec), (deployment,))
    status = pool_status(observed, plan_pool(observed), NOW)
    updated = find(status, "Updated")
    assert updated is not None
    assert updated["reason"] == ("Starting" if kept else "ClaimsNotServed")
    assert (condition(status, "Stalled")["status"] == "True") is not kept


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        (
            2,
            "No engine is asked for: spec.prefill.replicas of InferenceService chat is 0. "
            "No engine computes prompts, so no request is answered.",
        ),
        (0, "No engine is asked for: spec.replicas of InferenceService chat is 0."),
    ],
)
def test_a_prefill_pool_without_engines_says_whose_zero_it_is(replicas: int, text: str) -> None:
    spec = {"replicas": replicas, "prefill": {"replicas": 0}}
    stopped = PoolObserved(pool(spec), service(spec))
    deployment = plan_pool(stopped).deployment
    assert deployment is not None
    observed = replace(stopped, children=(complete(deployment),))
    updated = find(pool_status(observed, plan_pool(observed), NOW), "Updated")
    assert updated is not None
    assert (updated["status"], updated["message"]) == ("True", text)
