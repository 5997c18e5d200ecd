"""Lists that somebody's edit has tangled with ours."""

from __future__ import annotations

from typing import Any

from sluice_operator.untangle import REPAIR_MANAGER, disowning, list_replacements

OURS = {"name": "http", "port": 80, "targetPort": "http"}


def service(*ports: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"name": "chat"}, "spec": {"type": "ClusterIP", "ports": list(ports)}}


def test_lists_as_desired_are_left_alone() -> None:
    live = service({**OURS, "protocol": "TCP"})
    live["spec"]["externalIPs"] = ["192.0.2.1"]
    assert list_replacements(service(OURS), live) == []


def test_a_list_with_somebody_elses_item_is_set_as_a_whole() -> None:
    live = service(OURS, {**OURS, "port": 81})
    expected = [{"op": "replace", "path": "/spec/ports", "value": [OURS]}]
    assert list_replacements(service(OURS), live) == expected


def test_names_are_escaped_for_the_patch() -> None:
    desired = {"a/b": {"c~d": [1]}}
    assert list_replacements(desired, {"a/b": {"c~d": [2]}})[0]["path"] == "/a~1b/c~0d"


def test_a_list_that_is_not_there_is_for_apply_to_add() -> None:
    assert list_replacements(service(OURS), {"spec": {}}) == []


def test_the_claim_of_the_repair_is_given_up_and_no_other() -> None:
    entries = [{"manager": "person"}, {"manager": REPAIR_MANAGER}]
    live = {"metadata": {"managedFields": entries}}
    test, remove = disowning(live)
    assert test["value"] == REPAIR_MANAGER
    assert remove == {"op": "remove", "path": "/metadata/managedFields/1"}
    assert disowning({"metadata": {"managedFields": [{"manager": "person"}]}}) == []
