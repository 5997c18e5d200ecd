"""What is wrong with a document or a file, in one shape: a line each, or JSON.

Knows no file and no rule: `documents` reads, and the plan decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_operator.api.findings import Finding, InvalidSpecError
from sluice_operator.documents import Document
from sluice_operator.observed import Manifest, Refusal
from sluice_operator.service.objections import INVALID

UNREADABLE: Final = "Unreadable"
MORE: Final = "(more is checked once this is right)"


@dataclass(frozen=True)
class Mistakes:
    """All that was found in one document."""

    document: Document
    reason: str
    findings: tuple[Finding, ...]
    is_all: bool = True
    """Whether everything was checked, and not the types alone."""


def invalid(document: Document, error: InvalidSpecError) -> Mistakes:
    """Of a document whose types do not hold."""
    return Mistakes(document, INVALID, error.findings, is_all=False)


def refused(document: Document, refusal: Refusal) -> Mistakes:
    """Of a document whose plan refuses it."""
    each = refusal.each or (refusal,)
    return Mistakes(document, refusal.reason, tuple(one.finding for one in each))


def unreadable(file: str, why: str) -> Mistakes:
    """Of a whole file."""
    return Mistakes(Document(file), UNREADABLE, (Finding("", why),))


def as_text(mistakes: Mistakes) -> str:
    """For a person: where, and a line for each mistake below it."""
    place = mistakes.document.place
    if mistakes.reason == UNREADABLE:
        return f"{place}: {mistakes.findings[0].message}\n"
    what = f"would be refused: {mistakes.reason}"
    if mistakes.reason == INVALID:
        what = "invalid InferenceService"
    rest = () if mistakes.is_all else (MORE,)
    return "\n  ".join((f"{place}: {what}", *map(str, mistakes.findings), *rest)) + "\n"


def as_json(mistakes: Mistakes) -> Manifest:
    """For a program: the keys of a plan, of which there is none, and `refusal.findings`."""
    document, findings = mistakes.document, mistakes.findings
    value = document.value if isinstance(document.value, dict) else {}
    metadata = value.get("metadata")
    namespace = metadata.get("namespace", "default") if isinstance(metadata, dict) else None
    return {
        "file": document.file,
        "document": document.number,
        "name": document.name,
        "namespace": namespace,
        "refusal": {
            "reason": mistakes.reason,
            "field": findings[0].field,
            "message": "; ".join(map(str, findings)) if findings[0].field else findings[0].message,
            "findings": [{"field": each.field, "message": each.message} for each in findings],
        },
        "slo": {},
        "pools": {},
        "objects": [],
    }
