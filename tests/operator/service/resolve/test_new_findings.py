"""A change is refused for what it makes wrong, and for nothing that was wrong before."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.resolve.spec_errors import new_findings
from sluice_operator.validation.errors import INVALID, Refusal


def service(*errors: str, **metadata: Any) -> Manifest:
    """One whose spec has these errors."""
    return {"metadata": metadata, "spec": {"errors": list(errors)}}


def errors_of(item: Manifest) -> list[Refusal]:
    return [Refusal(INVALID, e.partition(": ")[0], e) for e in item["spec"]["errors"]]


def refused(old: Manifest | None, new: Manifest) -> list[str]:
    return [str(finding) for finding in new_findings(old, new, errors_of)]


A = "spec.a: 1 is not allowed; allowed: at least 2"
B = 'spec.b: "x" is not implemented yet; allowed: "y"'


def test_a_new_object_is_refused_with_every_finding() -> None:
    assert refused(None, service(A, B)) == [A, B]
    assert refused(None, service()) == []


def test_what_was_accepted_stays_so_while_other_fields_change() -> None:
    new = service(A)
    new["spec"]["other"] = 1
    assert refused(service(A), new) == []
    assert refused(service(A), service(A, B)) == [B]
    assert refused(service(A, B), service(B)) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(A, A.replace("at least 2", "at least 3"), id="what is allowed depends"),
        pytest.param("spec.l[2].a: 1 is not allowed", "spec.l[1].a: 1 is not allowed", id="place"),
        pytest.param(
            'spec.o: {"a":1} is not allowed; allowed: no',
            'spec.o: {"a":1,"b":2} is not allowed; allowed: no',
            id="an object of which a part changes",
        ),
        pytest.param(
            "spec.o: [1] is not allowed; allowed: a string",
            "spec.o: [1,2] is not allowed; allowed: a string",
            id="a list in pydantic's words",
        ),
    ],
)
def test_the_same_wrong_value_is_known_again(old: str, new: str) -> None:
    assert refused(service(old), service(new)) == []


def test_another_wrong_value_is_refused() -> None:
    for finding in (A, "spec.a: 1 is not allowed; allowed: a whole number, at least 2"):
        other = finding.replace("1", "0")
        assert refused(service(finding), service(other)) == [other]


def test_a_spec_that_stays_is_not_looked_at() -> None:
    def fails(item: Manifest) -> list[Refusal]:
        raise AssertionError(item)

    old, new = service(A), service(A, labels={"a": "b"}) | {"status": {}}
    assert new_findings(old, new, fails) == ()


def test_what_is_being_deleted_may_change_as_it_likes() -> None:
    new = service(A, deletionTimestamp="2026-11-24T00:00:00Z")
    assert refused(service(), new) == []
