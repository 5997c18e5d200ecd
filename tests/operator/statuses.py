"""What the tests of both kinds' statuses ask of every status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from sluice_operator.cli.yaml_text import to_yaml
from sluice_operator.conditions.conditions import ABNORMAL, find, status_events
from sluice_operator.kube.kinds import Manifest

from tests.operator.golden import assert_golden


class Told(NamedTuple):
    """What a status is to say: whether it serves, whether it is up to date, and why it is so."""

    ready: str
    updated: str
    reason: str


def condition(status: Manifest, kind: str) -> Manifest:
    """The condition of one type, with its text. It has to be there, unless it is one that kstatus
    takes for False where it is missing."""
    found = find(status, kind)
    if found is None and kind in ABNORMAL:
        return {"type": kind, "status": "False", "reason": "", "message": ""}
    assert found is not None, kind
    return found


def assert_situation(status: Manifest, told: Told, *, stalled: bool, golden: str) -> None:
    """As told, with one voice, not both stalled and reconciling, and as in the golden file."""
    ready, updated = condition(status, "Ready"), condition(status, "Updated")
    assert Told(ready["status"], updated["status"], updated["reason"]) == told
    if ready["status"] == updated["status"] == "False":
        assert ready["reason"] == updated["reason"], "the table of a person shows only one"
    assert_said_once(status)
    is_stalled = condition(status, "Stalled")["status"] == "True"
    assert is_stalled is stalled
    is_reconciling = condition(status, "Reconciling")["status"] == "True"
    assert not (is_stalled and is_reconciling), "kstatus takes these for opposites"
    assert [value for value in leaves(status) if isinstance(value, float)] == []
    assert_golden(f"status/{golden}.yaml", to_yaml(status))


def leaves(value: Any) -> Iterator[Any]:
    """Every value in a document that is neither an object nor a list."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        yield value
        return
    for below in value:
        yield from leaves(below)


def assert_at_rest(first: Manifest, later: Manifest) -> None:
    """Nothing happened: the status is the same an hour later, and nobody is told anything."""
    assert later == first
    assert status_events(first, later) == ()


def assert_said_once(status: Manifest) -> None:
    """One finding is one text. Only what tools show by kstatus repeats it, and is there only while
    it is True."""
    shown = status["conditions"]
    assert all(c["status"] == "True" for c in shown if c["type"] in ABNORMAL)
    texts = [c["message"] for c in shown if c["type"] not in ABNORMAL]
    texts = [text for text in texts if not text.startswith("See ")]
    is_well = condition(status, "Updated")["status"] == "True"
    assert is_well or len(texts) == len(set(texts)), texts
    for entry in shown:
        if entry["message"].startswith("See "):
            assert condition(status, entry["type"])["message"] != entry["message"], "leads nowhere"


def kstatus(item: Manifest) -> str:
    """What sigs.k8s.io/cli-utils, and so Flux and `kubectl apply` of others, makes of an object."""
    status = item["status"]
    if status["observedGeneration"] != item["metadata"]["generation"]:
        return "InProgress"
    if condition(status, "Reconciling")["status"] == "True":
        return "InProgress"
    if condition(status, "Stalled")["status"] == "True":
        return "Failed"
    return "Current" if condition(status, "Ready")["status"] == "True" else "InProgress"
