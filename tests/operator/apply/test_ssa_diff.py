"""Whether an apply would change anything, against objects that a real API server returned.

`live_objects.json` holds, per kind, a manifest and what Kubernetes 1.34 made of applying it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sluice_operator.apply.ssa_diff import changed_fields, is_applied, owned_fields

MANAGER = "sluice-operator"
OBJECTS = json.loads((Path(__file__).parent / "live_objects.json").read_text())
Path_ = tuple[str | int, ...]


def leaves(tree: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The paths of every value that is no map and no list."""
    branches = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for step, below in branches:
        if isinstance(below, dict | list) and below:
            yield from leaves(below, (*path, step))
        elif path or step not in ("apiVersion", "kind"):
            yield (*path, step)


def at(tree: Any, path: Path_) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def owned_leaves(desired: dict[str, Any]) -> list[Path_]:
    identity = {("metadata", "name"), ("metadata", "namespace")}
    return [path for path in leaves(desired) if path not in identity]


CASES = [
    pytest.param(kind, path, id=f"{kind}:{'.'.join(map(str, path))}")
    for kind, pair in OBJECTS.items()
    for path in owned_leaves(pair["desired"])
]


@pytest.fixture(params=sorted(OBJECTS))
def pair(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    found = copy.deepcopy(OBJECTS[request.param])
    return found["desired"], found["live"]


def test_what_was_applied_is_applied(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert is_applied(*pair, MANAGER)


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_any_other_desired_value_differs(kind: str, path: Path_) -> None:
    pair = copy.deepcopy(OBJECTS[kind])
    parent, last = at(pair["desired"], path[:-1]), path[-1]
    parent[last] = "7.5Zi" if not isinstance(parent[last], bool) else not parent[last]
    assert not is_applied(pair["desired"], pair["live"], MANAGER)


def test_what_was_applied_has_no_changed_field(
    pair: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    assert changed_fields(*pair, MANAGER) == ()


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_the_field_of_another_value_is_named(kind: str, path: Path_) -> None:
    pair = copy.deepcopy(OBJECTS[kind])
    parent, last = at(pair["desired"], path[:-1]), path[-1]
    parent[last] = "7.5Zi" if not isinstance(parent[last], bool) else not parent[last]
    steps = path[:2] if isinstance(pair["desired"][path[0]], dict) else path[:1]
    changed = changed_fields(pair["desired"], pair["live"], MANAGER)
    assert changed == (".".join(map(str, steps)),)


@pytest.mark.parametrize(("kind", "path"), CASES)
def test_a_field_that_is_no_longer_desired_differs(kind: str, path: Path_) -> None:
    pair = copy.deepcopy(OBJECTS[kind])
    while len(at(pair["desired"], path[:-1])) == 1 and len(path) > 1:
        path = path[:-1]
    del at(pair["desired"], path[:-1])[path[-1]]
    assert not is_applied(pair["desired"], pair["live"], MANAGER)


def test_a_new_desired_field_differs(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    desired, live = pair
    desired["metadata"]["annotations"] = {"a": "b"}
    live["metadata"]["annotations"] = {"a": "b"}
    assert not is_applied(desired, live, MANAGER), "there, but not ours: it could go any time"


def test_fields_of_others_are_nobodys_business(
    pair: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    desired, live = pair
    live["metadata"]["annotations"] = {"someone": "else"}
    live["metadata"].setdefault("labels", {})["someone"] = "else"
    live["status"] = {"anything": 1}
    assert is_applied(desired, live, MANAGER)


def test_a_value_that_another_manager_took_differs() -> None:
    pair = copy.deepcopy(OBJECTS["Deployment"])
    owned = owned_fields(pair["live"], MANAGER)
    assert owned is not None
    del owned["f:spec"]["f:replicas"]
    pair["live"]["spec"]["replicas"] = 5
    assert not is_applied(pair["desired"], pair["live"], MANAGER)


def test_an_object_that_was_never_applied_differs(
    pair: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    desired, live = pair
    assert not is_applied(desired, live, "somebody-else")
    assert not is_applied(desired, live, MANAGER, "status")
    del live["metadata"]["managedFields"]
    assert not is_applied(desired, live, MANAGER)


@pytest.mark.parametrize(
    ("spelling", "same"),
    [("500m", True), ("0.5", True), ("5e-1", True), ("0.50", True), ("501m", False), ("x", False)],
)
def test_quantities_are_numbers_however_spelled(spelling: str, same: bool) -> None:
    pair = copy.deepcopy(OBJECTS["Deployment"])
    container = pair["desired"]["spec"]["template"]["spec"]["containers"][0]
    container["resources"]["requests"]["cpu"] = spelling
    assert is_applied(pair["desired"], pair["live"], MANAGER) is same


def test_other_strings_are_not_quantities() -> None:
    pair = copy.deepcopy(OBJECTS["Deployment"])
    env = pair["desired"]["spec"]["template"]["spec"]["containers"][0]["env"][0]
    assert env["value"] == "1"
    env["value"] = "1000m"
    assert not is_applied(pair["desired"], pair["live"], MANAGER)
