"""What the roll-out planner is told of the revisions that are there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_operator.api.conditions import UPDATED
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.deployments import with_replicas, with_trial
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import owner
from sluice_operator.service.plan import plan_service
from sluice_operator.service.resolve.resolved_service import resolve
from sluice_operator.service.rollout.in_place import plan_in_place
from sluice_operator.service.rollout.revisions import pool_state
from sluice_operator.service.rollout.surge import PoolState

from tests.operator.examples import (
    POOL_UID,
    edited_pool,
    live,
    pool,
    pool_plan,
    pool_with,
    service,
    service_observed,
)

OLD: Manifest = {"engine": {"image": "old:1"}}
NEW: Manifest = {"engine": {"image": "new:2"}}
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}


def _state(*children: Manifest) -> PoolState:
    """The pool of a service that wants `NEW`."""
    observed = service_observed(service(NEW), children)
    spec = plan_service(observed).spec
    assert spec is not None
    top = owner(INFERENCE_SERVICE, observed.service, "chat")
    (resolved,) = resolve(observed, top, spec).resolved().pools
    return pool_state(observed.children, resolved.spec, resolved.config_map)


def _deployment(spec: Manifest, **status: Any) -> Manifest:
    built = pool_plan(spec).deployment
    assert built is not None
    owned = [{"kind": "EnginePool", "uid": POOL_UID, "controller": True}]
    return live(built | {"metadata": built["metadata"] | {"ownerReferences": owned}}, **status)


def _says(reason: str, status: str = "False") -> Manifest:
    """The pool, as it says how its wanted revision is doing."""
    name = revision_of(_deployment(NEW))
    revisions = [{"name": name, "current": True}, {"name": "other", "current": False}]
    found = {"type": UPDATED, "status": status, "reason": reason, "message": ""}
    return pool(NEW) | {"status": {"revisions": revisions, "conditions": [found]}}


def test_an_engine_that_is_ready_for_an_instant_replaces_nobody() -> None:
    counts = {"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}
    wanted = _deployment(NEW, observedGeneration=1, **counts)
    former = _deployment(OLD, observedGeneration=1, **counts)
    state = _state(pool(NEW), wanted, former)
    assert (state.desired.ready, state.is_complete) == (0, False)
    assert [revision.ready for revision in state.others] == [1], "it serves at once"
    later = _deployment(NEW, observedGeneration=1, availableReplicas=1, **counts)
    state = _state(pool(NEW), later, former)
    assert (state.desired.ready, state.is_complete) == (1, True)
    assert wanted["spec"]["minReadySeconds"] > 0


def test_a_revision_without_a_deployment_is_not_there() -> None:
    assert not _state(pool(NEW)).desired.is_tried
    assert _state(pool(NEW), _deployment(NEW)).desired.is_tried
    made = with_trial(with_replicas(_deployment(NEW), 0), None)
    assert not _state(pool(NEW), made).desired.is_tried


def test_a_revision_that_the_last_plan_does_not_list_is_leaving() -> None:
    (left,) = _state(pool(NEW), _deployment(NEW), _deployment(OLD)).others
    assert left.is_leaving
    (kept,) = _state(pool_with(NEW, **{left.name: 0}), _deployment(OLD)).others
    assert not kept.is_leaving


@pytest.mark.parametrize(
    ("condition", "stopped"),
    [
        (LATE, True),
        ({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}, True),
        ({"type": "Progressing", "status": "True", "reason": "ReplicaSetUpdated"}, False),
    ],
)
def test_a_deployment_says_that_it_comes_no_further(condition: Manifest, stopped: bool) -> None:
    wanted = _state(pool(NEW), _deployment(NEW, conditions=[condition])).desired
    assert wanted.stopped is stopped


@pytest.mark.parametrize(
    ("reason", "stopped"),
    [
        ("Unschedulable", True),
        ("ProgressDeadlineExceeded", True),
        ("ModelLoadFailed", True),
        ("Starting", False),
        ("Applying", False),
    ],
)
def test_a_pool_says_what_keeps_its_engines_from_starting(reason: str, stopped: bool) -> None:
    found = _state(_says(reason), _deployment(NEW), _deployment(OLD))
    assert found.desired.stopped is stopped
    assert [other.stopped for other in found.others] == [False]
    assert not _state(_says("AllReady", "True"), _deployment(NEW)).desired.stopped


@pytest.mark.parametrize(
    ("reason", "observed", "is_late"),
    [
        ("ProgressDeadlineExceeded", 1, True),
        ("ProgressDeadlineExceeded", 0, False),
        ("ModelLoadFailed", 1, False),
    ],
)
def test_a_pool_says_that_engines_of_a_deployment_that_was_complete_once_are_late(
    reason: str, observed: int, *, is_late: bool
) -> None:
    says = _says(reason)
    says["metadata"] = says["metadata"] | {"generation": 1}
    says["status"]["observedGeneration"] = observed
    assert _state(says, _deployment(NEW)).desired.is_late is is_late


def test_what_a_deployment_said_of_its_former_number_of_engines_is_not_late() -> None:
    late = _deployment(NEW, conditions=[LATE], observedGeneration=1)
    assert _state(pool(NEW), late).desired.is_late
    late["metadata"]["generation"] = 2
    assert not _state(pool(NEW), late).desired.is_late


def test_a_deployment_whose_engines_load_is_not_late() -> None:
    late = _deployment(NEW, conditions=[LATE])
    loading = {"name": revision_of(late), "current": True, "loading": 1}
    assert not _state(pool(NEW) | {"status": {"revisions": [loading]}}, late).desired.stopped
    done = loading | {"loading": None}
    assert _state(pool(NEW) | {"status": {"revisions": [done]}}, late).desired.stopped


@pytest.mark.parametrize(
    ("counts", "is_late"),
    [
        ({"gated": 2}, False),
        ({"gated": 1, "loading": 1}, False),
        ({"gated": 1}, True),
        ({"loading": 1}, True),
        ({}, True),
    ],
)
def test_one_whose_engines_wait_in_a_queue_is_not_late(
    counts: dict[str, int], *, is_late: bool
) -> None:
    """In place, a roll-out that is late gives the places of its new engines back."""
    status = {"conditions": [LATE], "replicas": 3, "readyReplicas": 1, "observedGeneration": 1}
    late = _deployment(NEW, **status)
    revision = {"name": revision_of(late), "current": True, **counts}
    desired = _state(pool(NEW) | {"status": {"revisions": [revision]}}, late).desired
    assert (desired.is_late, desired.stopped) == (is_late, is_late)


def test_a_roll_out_in_place_waits_for_a_queue_longer_than_its_deadline() -> None:
    status: Manifest = {"replicas": 1, "conditions": [LATE], "observedGeneration": 1}
    old = with_replicas(_deployment(OLD, replicas=2, readyReplicas=2), 2)
    new = with_replicas(_deployment(NEW, **status), 1)
    names = revision_of(new), revision_of(old)
    for counts, shares in (({"gated": 1}, (1, 2)), ({}, (0, 3))):
        there = pool_with(NEW, **{names[1]: 2})
        there["status"] = {"revisions": [{"name": names[0], "current": True, **counts}]}
        state = replace(_state(there, new, old), replicas=3)
        plan = plan_in_place((state,), {state.role: names[1]})
        assert tuple(plan.shares[state.role].get(name) for name in names) == shares


def test_engines_are_counted_as_planned_and_not_as_somebody_edited_them() -> None:
    old = _deployment(OLD)
    scaled = old | {"spec": old["spec"] | {"replicas": 1}}
    (other,) = _state(pool_with(NEW, **{revision_of(old): 4}), scaled).others
    assert (other.planned, other.replicas) == (4, 1)
    (other,) = _state(edited_pool(NEW, revisions=[]), scaled).others
    assert other.planned == 1, "nothing is known of an edited pool"


def test_the_wanted_revision_is_that_of_the_spec() -> None:
    found = _state(pool(NEW), _deployment(NEW), _deployment(OLD))
    assert found.desired.name == revision_of(_deployment(NEW)) != revision_of(_deployment(OLD))
