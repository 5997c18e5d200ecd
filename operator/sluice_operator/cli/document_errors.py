"""The errors of a document or a file, as text or JSON.

Reads no file and checks nothing: `documents` reads, and the plan checks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.findings import Finding, InvalidSpecError
from sluice_operator.cli.documents import Document
from sluice_operator.kube.kinds import Manifest
from sluice_operator.validation.errors import INVALID, Refusal

UNREADABLE: Final = "Unreadable"
NO_START: Final = "EnginesWouldNotStart"
MORE: Final = "(more is checked once this is right)"


@dataclass(frozen=True)
class DocumentErrors:
    """All errors of one document."""

    document: Document
    reason: str
    findings: tuple[Finding, ...]
    is_all: bool = True
    """False if only the types were checked."""


def invalid(document: Document, error: InvalidSpecError) -> DocumentErrors:
    """The errors of a document whose types are invalid."""
    return DocumentErrors(document, INVALID, error.findings, is_all=False)


def refused(document: Document, refusal: Refusal) -> DocumentErrors:
    """The errors of a document whose plan refuses it."""
    refusals = refusal.parts or (refusal,)
    return DocumentErrors(document, refusal.reason, tuple(item.finding for item in refusals))


def misfitting(document: Document, findings: tuple[Finding, ...]) -> DocumentErrors:
    """The errors of a document whose GPUs cannot hold its model, or run no engine."""
    return DocumentErrors(document, NO_START, findings)


def unreadable(file: str, why: str) -> DocumentErrors:
    """The error of a whole file."""
    return DocumentErrors(Document(file), UNREADABLE, (Finding("", why),))


def as_text(errors: DocumentErrors) -> str:
    """A text for people: the place, and below it a line for each error."""
    place = errors.document.place
    if errors.reason == UNREADABLE:
        return f"{place}: {errors.findings[0].message}\n"
    what = f"would be refused: {errors.reason}"
    if errors.reason == INVALID:
        what = "invalid InferenceService"
    if errors.reason == NO_START:
        what = "engines would not start"
    rest = () if errors.is_all else (MORE,)
    return "\n  ".join((f"{place}: {what}", *map(str, errors.findings), *rest)) + "\n"


def as_json(errors: DocumentErrors) -> Manifest:
    """JSON for programs: the keys of a plan, left empty, and `refusal.findings`."""
    document, findings = errors.document, errors.findings
    value = document.value if isinstance(document.value, dict) else {}
    metadata = value.get("metadata")
    namespace = metadata.get("namespace", "default") if isinstance(metadata, dict) else None
    return {
        "file": document.file,
        "document": document.number,
        "name": document.name,
        "namespace": namespace,
        "refusal": {
            "reason": errors.reason,
            "field": findings[0].field,
            "message": "; ".join(map(str, findings)) if findings[0].field else findings[0].message,
            "findings": [
                {"field": finding.field, "message": finding.message} for finding in findings
            ],
        },
        "slo": {},
        "pools": {},
        "objects": [],
    }
