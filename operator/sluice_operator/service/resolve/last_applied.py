"""The spec that was carried out last. A service is planned by it while a newer spec is refused or
waits for its model.

Pure. Of the newer spec only numbers are used (engines, their limits, the budget, routers), as far
as they are valid on their own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel
from sluice_contract.cluster.labels import Role

from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.scaling import AutoscalingSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.spec_history import (
    ACCELERATOR,
    ADAPTERS,
    MANNER,
    NUMBERS,
    newest_complete,
    spec_hash,
    spec_in_record,
)
from sluice_operator.service.observe import Children
from sluice_operator.validation.errors import scaling_contradictions


class SpecPart(NamedTuple):
    """Some fields of one section of a spec, which have a meaning only together."""

    section: tuple[str, ...]
    fields: tuple[str, ...]
    values: Manifest = {}  # noqa: RUF012 - never written
    """Those that are given; the others are left out."""


_SCALING: Final = tuple(
    name for name in map(to_camel, AutoscalingSpec.model_fields) if name != ACCELERATOR
)
_NUMBERS: Final = (
    *(SpecPart(("pools", role.value), NUMBERS) for role in Role),
    SpecPart(("router",), ("replicas",)),
    SpecPart(("autoscaling",), _SCALING),
)
_NOT_IN_HISTORY: Final = (SpecPart(("rollout",), MANNER), SpecPart(("model",), (ADAPTERS,)))
"""What a ControllerRevision has as it was when it was made."""


def last_applied(service: Manifest, children: Children) -> InferenceServiceSpec | None:
    """The spec that was carried out last, with the commit of its model and the numbers of the
    present one. None: there was none, or no record of it."""
    spec, taken = spec_in_record(service["metadata"]["name"], children), _NUMBERS
    if not spec:
        # Of an earlier release: what was complete last is as good as there is.
        spec = newest_complete(children)
        taken = (*_NUMBERS, *_NOT_IN_HISTORY)
    if not spec:
        return None
    parts = tuple(_set_parts(service.get("spec") or {}, taken))
    if (taken_whole := _read(spec, parts)) is not None:
        return taken_whole
    valid: tuple[SpecPart, ...] = ()
    for part in parts:
        if _read(spec, (*valid, part)) is not None:
            valid = (*valid, part)
    return _read(spec, valid)


def _set_parts(spec: Manifest, parts: Iterable[SpecPart]) -> Iterator[SpecPart]:
    """Those of `parts` of which `spec` says anything."""
    for part in parts:
        section: Any = spec
        for key in part.section:
            section = section.get(key) if isinstance(section, dict) else None
        values_set = section if isinstance(section, dict) else {}
        if values := {key: values_set[key] for key in part.fields if key in values_set}:
            yield part._replace(values=values)


def _read(spec: Manifest, parts: Iterable[SpecPart]) -> InferenceServiceSpec | None:
    """`spec` with other `parts`; None where that is not valid, or asks for other pods."""
    changed = copy.deepcopy(spec)
    for part in parts:
        section = changed
        for key in part.section:
            section = section.setdefault(key, {})
        for key in part.fields:
            section.pop(key, None)
        section.update(part.values)
    if spec_hash(changed) != spec_hash(spec):
        return None
    try:
        parsed = parse(InferenceServiceSpec, changed, "spec")
    except InvalidSpecError:
        return None
    return None if any(scaling_contradictions(parsed)) else parsed
