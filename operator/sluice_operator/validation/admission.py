"""Refusals of a change as it is applied: only what the change itself makes wrong. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from sluice_operator.api.findings import Finding
from sluice_operator.kube.kinds import Manifest, is_being_deleted
from sluice_operator.validation.errors import Refusal

SpecErrors = Callable[[Manifest], Iterable[Refusal]]
"""Everything that is wrong with the spec of an object."""
_INDEX: Final = re.compile(r"\[\d+\]")
_VALUE_ENDS: Final = re.compile(r" (?:is|are) not |; allowed: ")


def new_findings(
    old: Manifest | None, new: Manifest, spec_errors: SpecErrors
) -> tuple[Finding, ...]:
    """Findings in `new` that `old` does not have; `old` is None where an object is created. Nothing
    where the spec stays, or the object is being deleted."""
    if is_being_deleted(new) or (old is not None and old.get("spec") == new.get("spec")):
        return ()
    findings = [refusal.finding for refusal in spec_errors(new)]
    if not findings or old is None:
        return tuple(findings)
    accepted = {_wrong_value(refusal.finding) for refusal in spec_errors(old)}
    return tuple(finding for finding in findings if _wrong_value(finding) not in accepted)


def _wrong_value(finding: Finding) -> tuple[str, Any]:
    """Field and refused value of a finding, which tell whether it is new. Not compared are the
    allowed values, whole objects and places in a list, because edits of other fields change
    them."""
    message = finding.message.partition("; got ")[2] or finding.message
    value = _VALUE_ENDS.split(message, maxsplit=1)[0]
    return _INDEX.sub("[]", finding.field), "" if value.startswith(("{", "[")) else value
