"""Checks a document against the API types, and names what is wrong as the API server would.

Knows no cluster: admission, quotas and whether references exist are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from sluice_contract.labels import API_VERSION

from sluice_operator.api.service import NAME_RULES, InferenceServiceSpec


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: where, and what is allowed."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidServiceError(ValueError):
    """A document that is not a valid InferenceService; `findings` says why, field by field."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        super().__init__("\n".join(str(finding) for finding in findings))


def parse_service(document: Any) -> InferenceServiceSpec:
    """The spec of an InferenceService document.

    Raises:
        InvalidServiceError: with every finding.
    """
    if not isinstance(document, Mapping):
        raise InvalidServiceError((Finding("(document)", "must be a mapping"),))
    head = tuple(_head_findings(document))
    try:
        spec = InferenceServiceSpec.model_validate(document.get("spec"))
    except ValidationError as error:
        raise InvalidServiceError((*head, *findings_of(error, "spec"))) from None
    if head:
        raise InvalidServiceError(head)
    return spec


def findings_of(error: ValidationError, root: str) -> tuple[Finding, ...]:
    """The findings of a pydantic error below the field `root`."""
    return tuple(_finding(detail, root) for detail in error.errors(include_url=False))


def _head_findings(document: Mapping[str, Any]) -> list[Finding]:
    expected = {"apiVersion": API_VERSION, "kind": "InferenceService"}
    found = [
        Finding(key, f"{document.get(key)!r} is not allowed; allowed: {value}")
        for key, value in expected.items()
        if document.get(key) != value
    ]
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(name, str):
        return [*found, Finding("metadata.name", "required")]
    return found + [
        Finding(rule.field, rule.message) for rule in NAME_RULES if not rule.holds(name)
    ]


def _finding(detail: ErrorDetails, root: str) -> Finding:
    path = root
    for part in detail["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    kind, context = detail["type"], detail.get("ctx") or {}
    if kind == "rule":
        field = context.get("field")
        return Finding(f"{path}.{field}" if field else path, detail["msg"])
    if kind == "extra_forbidden":
        return Finding(path, "unknown field")
    if kind == "missing":
        return Finding(path, "required")
    return Finding(path, f"{detail['input']!r} is not allowed: {detail['msg']}")
