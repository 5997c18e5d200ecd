"""All that keeps a spec from being carried out, at once: what is invalid, what contradicts itself,
and what this version does not have.

Pure; knows no field, only whom to ask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_contract.base import ConfigError

from sluice_operator.accelerators import find_accelerator
from sluice_operator.api.findings import InvalidSpecError
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.observed import Refusal, ServiceObserved
from sluice_operator.service.settings import pinned_settings, pool_settings
from sluice_operator.service.supported import refusals

INVALID: Final = "InvalidSpec"


def objections(observed: ServiceObserved, spec: InferenceServiceSpec) -> tuple[Refusal, ...]:
    """Of a spec whose types and rules hold; each once, whichever pools have it."""
    return tuple(dict.fromkeys((*_contradictions(observed, spec), *refusals(spec))))


def invalid(observed: ServiceObserved, error: InvalidSpecError) -> tuple[Refusal, ...]:
    """Of a spec that is invalid. Where its types hold, the rest is checked as well; of a field
    that breaks a rule, no more is said."""
    found = tuple(Refusal(INVALID, each.field, str(each)) for each in error.findings)
    if not isinstance(error.parsed, InferenceServiceSpec):
        return found
    fields = {each.field for each in found}
    rest = objections(observed, error.parsed)
    return (*found, *(each for each in rest if each.field not in fields))


def joined(found: tuple[Refusal, ...]) -> Refusal:
    """All of them as one, with the reason and the field of the first."""
    message = "; ".join(item.message for item in found)
    return Refusal(found[0].reason, found[0].field, message, found)


def _contradictions(observed: ServiceObserved, spec: InferenceServiceSpec) -> Iterator[Refusal]:
    for role in spec.roles:
        accelerator = find_accelerator(spec.pool(role), observed.nodes).accelerator
        try:
            pool_settings(spec, accelerator, pinned_settings(observed.service, role))
        except ConfigError as error:
            for each in error.each:
                yield Refusal(INVALID, f"spec.engine.{each.key}", f"spec.engine.{each}")
