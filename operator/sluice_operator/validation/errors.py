"""All validation errors of a spec at once: invalid values, contradictions, and what this version
does not support.

Pure. Contradictions need resolved settings, so the caller finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sluice_operator.api.findings import InvalidSpecError
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.validation.adapters import adapter_contradictions
from sluice_operator.validation.refusal import INVALID, Refusal
from sluice_operator.validation.scaling import scaling_contradictions
from sluice_operator.validation.unsupported import refusals

Contradictions = Callable[[InferenceServiceSpec], Iterable[Refusal]]
"""Finds contradictions in a spec whose types are valid."""


def validation_errors(
    spec: InferenceServiceSpec, contradictions: Contradictions
) -> tuple[Refusal, ...]:
    """The errors of a spec whose types and rules are valid; each once over all pools."""
    return tuple(
        dict.fromkeys(
            (
                *contradictions(spec),
                *scaling_contradictions(spec),
                *adapter_contradictions(spec),
                *refusals(spec),
            )
        )
    )


def invalid(error: InvalidSpecError, contradictions: Contradictions) -> tuple[Refusal, ...]:
    """The errors of a spec that is invalid. If its types are valid, the rest is checked as well; a
    field that breaks a rule is not named twice."""
    refusals = tuple(Refusal(INVALID, finding.field, str(finding)) for finding in error.findings)
    if not isinstance(error.parsed, InferenceServiceSpec):
        return refusals
    fields = {refusal.field for refusal in refusals}
    rest = validation_errors(error.parsed, contradictions)
    return (*refusals, *(refusal for refusal in rest if refusal.field not in fields))


def joined(refusals: tuple[Refusal, ...]) -> Refusal:
    """One refusal for all of `found`, with the reason and the field of the first."""
    message = "; ".join(item.message for item in refusals)
    return Refusal(refusals[0].reason, refusals[0].field, message, refusals)
