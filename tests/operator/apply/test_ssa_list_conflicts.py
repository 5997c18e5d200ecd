"""Lists that somebody's edit has tangled with ours."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.apply.ssa_list_conflicts import (
    REPAIR_MANAGER,
    list_replacements,
    ownership_removal,
)
from sluice_operator.kube.errors import Cause

OURS = {"name": "http", "port": 80, "targetPort": "http"}

TWO_PORTS = Cause("FieldValueDuplicate", "spec.ports[1].name")


def service(*ports: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "chat"}, "spec": {"type": "ClusterIP", "ports": list(ports)}}


def test_lists_as_desired_are_left_alone() -> None:
    live = service({**OURS, "protocol": "TCP"})
    live["spec"]["externalIPs"] = ["192.0.2.1"]
    assert list_replacements(service(OURS), live, [TWO_PORTS]) == []


def test_a_list_with_somebody_elses_item_is_set_as_a_whole() -> None:
    live = service(OURS, {**OURS, "port": 81})
    expected = [{"op": "replace", "path": "/spec/ports", "value": [OURS]}]
    assert list_replacements(service(OURS), live, [TWO_PORTS]) == expected


@pytest.mark.parametrize(
    "causes",
    [
        [],
        [Cause("FieldValueInvalid", "spec.ports[1].port")],
        [Cause("FieldValueDuplicate", "spec.portsOfCall[1].name")],
        [Cause("FieldValueDuplicate", "spec.selector")],
    ],
)
def test_a_refusal_for_another_reason_touches_no_list(causes: list[Cause]) -> None:
    live = service(OURS, {**OURS, "port": 81})
    assert list_replacements(service(OURS), live, causes) == []


def test_two_controllers_are_a_tangle() -> None:
    desired = {"metadata": {"ownerReferences": [{"uid": "1", "controller": True}]}}
    owners = [{"uid": "1", "controller": True}, {"uid": "2", "controller": True}]
    cause = Cause("FieldValueInvalid", "metadata.ownerReferences")
    (found,) = list_replacements(desired, {"metadata": {"ownerReferences": owners}}, [cause])
    assert found["path"] == "/metadata/ownerReferences"


def test_a_list_within_a_list_goes_with_the_outer_one() -> None:
    desired = {"spec": {"containers": [{"name": "engine", "ports": [OURS]}]}}
    live = {"spec": {"containers": [{"name": "engine", "ports": [OURS, OURS]}]}}
    cause = Cause("FieldValueDuplicate", "spec.containers[0].ports[1].name")
    (found,) = list_replacements(desired, live, [cause])
    assert found["path"] == "/spec/containers"


def test_names_are_escaped_for_the_patch() -> None:
    desired, cause = {"a": {"c~d": [1]}}, Cause("FieldValueDuplicate", "a.c~d[0]")
    assert list_replacements(desired, {"a": {"c~d": [2]}}, [cause])[0]["path"] == "/a/c~0d"


def test_a_list_that_is_not_there_is_for_apply_to_add() -> None:
    assert list_replacements(service(OURS), {"spec": {}}, [TWO_PORTS]) == []


def test_the_claim_of_the_repair_is_given_up_and_no_other() -> None:
    entries = [{"manager": "person"}, {"manager": REPAIR_MANAGER}]
    live = {"metadata": {"managedFields": entries}}
    test, remove = ownership_removal(live)
    assert test["value"] == REPAIR_MANAGER
    assert remove == {"op": "remove", "path": "/metadata/managedFields/1"}
    assert ownership_removal({"metadata": {"managedFields": [{"manager": "person"}]}}) == []
