"""What the command line says about an invalid InferenceService."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.api.validate import InvalidServiceError, parse_service

from tests.operator.api.invalid_specs import (
    INVALID,
    INVALID_NAMES,
    VALID_NAMES,
    Invalid,
    document,
)
from tests.operator.examples import FULL_SPEC


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_spec_is_refused_by_field(case: Invalid) -> None:
    with pytest.raises(InvalidServiceError) as caught:
        parse_service(document(case.spec))
    (finding,) = caught.value.findings
    assert finding.field == case.field
    assert case.says in finding.message


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_its_children_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(InvalidServiceError, match=r"metadata\.name"):
        parse_service(document({}, name))


@pytest.mark.parametrize("name", VALID_NAMES)
def test_other_names_are_accepted(name: str) -> None:
    parse_service(document({}, name))


def test_every_field_of_the_full_example_is_accepted() -> None:
    assert parse_service(document(FULL_SPEC)).engine is not None


def test_every_finding_is_told_at_once() -> None:
    broken: dict[str, Any] = {"mode": "Both", "engine": {"dtype": "int3", "tempo": 1}}
    with pytest.raises(InvalidServiceError) as caught:
        parse_service(document(broken))
    fields = {finding.field for finding in caught.value.findings}
    assert fields == {"spec.mode", "spec.engine.dtype", "spec.engine.tempo"}


@pytest.mark.parametrize("value", [None, "text", [1], 3])
def test_a_document_that_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(InvalidServiceError):
        parse_service(value)


def test_another_kind_is_refused() -> None:
    wrong = document({}) | {"kind": "Deployment"}
    with pytest.raises(InvalidServiceError, match="kind: 'Deployment' is not allowed"):
        parse_service(wrong)
