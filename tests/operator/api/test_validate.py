"""What the command line says about an invalid InferenceService."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.stored import as_stored
from sluice_operator.api.validate import ServiceDocument, parse_service, with_stored_spec
from sluice_operator.cli.yaml_text import read_yaml_stream, to_yaml

from tests.operator.api.documents import ONE_OF_YAML, document, in_yaml, with_nulls
from tests.operator.api.invalid_specs import INVALID, INVALID_NAMES, SEVERAL
from tests.operator.api.valid_specs import VALID, VALID_NAMES, Invalid
from tests.operator.examples import FULL_SPEC


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_spec_is_refused_by_field(case: Invalid) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        parse_service(document(case.spec))
    (finding,) = caught.value.findings
    assert finding.field == case.field
    assert case.says in finding.message


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_a_name_that_its_children_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"metadata\.name"):
        parse_service(document({}, name))


@pytest.mark.parametrize("name", VALID_NAMES)
def test_other_names_are_accepted(name: str) -> None:
    parse_service(document({}, name))


@pytest.mark.parametrize(("text", "field"), ONE_OF_YAML.values(), ids=ONE_OF_YAML.keys())
def test_yaml_is_read_as_kubectl_reads_it(text: str, field: str) -> None:
    (service,) = read_yaml_stream(in_yaml(text))
    if not field:
        parse_service(service)
        return
    with pytest.raises(InvalidSpecError) as caught:
        parse_service(service)
    assert [finding.field for finding in caught.value.findings] == [field]


@pytest.mark.parametrize("text", ["y", "N", "on", "1e3", "0o7", "09", "2.", "1:30", "2024-01-01"])
def test_text_that_a_reader_would_take_for_another_value_is_written_in_quotes(text: str) -> None:
    written = to_yaml({"a": text})
    (read,) = read_yaml_stream(written)
    assert read == {"a": text}
    assert "'" in written


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID.keys())
def test_null_means_left_out_of_a_spec_that_the_api_server_has(spec: dict[str, Any]) -> None:
    """It keeps the nulls of server-side apply."""
    left_out = parse_service(document(spec)).spec
    filled = document(with_nulls(as_stored(document(spec), ServiceDocument)["spec"]))
    stored = with_stored_spec(filled)["spec"]
    assert parse(InferenceServiceSpec, stored, "spec") == left_out
    assert "null" not in json.dumps(stored)


def test_a_null_of_prefill_stays() -> None:
    stored = with_stored_spec(document({"prefill": None, "engine": {"dtype": None}}))["spec"]
    assert stored == {"model": {"uri": "dummy://tiny"}, "engine": {}, "prefill": None}


def test_every_field_of_the_full_example_is_accepted() -> None:
    assert parse_service(document(FULL_SPEC)).spec.engine is not None


@pytest.mark.parametrize(("spec", "fields"), SEVERAL.values(), ids=SEVERAL.keys())
def test_every_finding_is_told_at_once(spec: dict[str, Any], fields: set[str]) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        parse_service(document(spec))
    assert {finding.field for finding in caught.value.findings} == fields


@pytest.mark.parametrize("spec", VALID.values(), ids=VALID.keys())
def test_what_the_server_takes_is_accepted(spec: dict[str, Any]) -> None:
    parse_service(document(spec))


@pytest.mark.parametrize("value", [None, "text", [1], 3])
def test_a_document_that_is_no_mapping_is_refused(value: Any) -> None:
    with pytest.raises(InvalidSpecError):
        parse_service(value)


def test_another_kind_is_refused() -> None:
    wrong = document({}) | {"kind": "Deployment"}
    with pytest.raises(
        InvalidSpecError, match='kind: "Deployment" is not allowed; allowed: InferenceService'
    ):
        parse_service(wrong)
