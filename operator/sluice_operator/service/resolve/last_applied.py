"""The spec that was carried out last. A service is planned by it while a newer spec is refused or
waits for its model.

Pure. The newer spec contributes only numbers that are valid on their own: engines, their limits,
the budget, routers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from pydantic.alias_generators import to_camel

from sluice_operator.api.canonical import canonical
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.scaling import AutoscalingSpec
from sluice_operator.api.service import InferenceServiceSpec, mode_of
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.parts import (
    AUTOSCALING,
    NUMBERS,
    PREFILL,
)
from sluice_operator.service.revisions.revision import Revision
from sluice_operator.validation.errors import scaling_contradictions


class SpecPart(NamedTuple):
    """Some fields of a spec, which have a meaning only together."""

    paths: tuple[tuple[str, ...], ...]
    values: dict[tuple[str, ...], Any] = {}  # noqa: RUF012 - never written
    """Values of the given fields, by path; fields that are missing are left out of the spec."""


def _part(section: tuple[str, ...], fields: Iterable[str]) -> SpecPart:
    return SpecPart(tuple((*section, name) for name in fields))


_BUDGET: Final = "gpuBudget"
_SCALING: Final = [name for name in map(to_camel, AutoscalingSpec.model_fields) if name != _BUDGET]
_ENGINES: Final = (
    SpecPart((("replicas",), *_part((AUTOSCALING,), _SCALING).paths)),
    _part((PREFILL,), NUMBERS),
)
_NUMBERS: Final[tuple[SpecPart, ...]] = (
    *_ENGINES,
    _part(("router",), ("replicas",)),
    _part((AUTOSCALING,), (_BUDGET,)),
)


def with_numbers_of(present: Manifest, last: Revision) -> InferenceServiceSpec | None:
    """The spec of `last`, which was carried out last, with the numbers of the `present` one. None:
    this release would refuse it."""
    spec, taken = last.spec, _NUMBERS
    if mode_of(present) != mode_of(spec):  # numbers of another mode count other engines
        taken = taken[len(_ENGINES) :]
    parts = tuple(_set_parts(present, taken))
    if (taken_whole := _read(spec, parts)) is not None:
        return taken_whole
    valid: tuple[SpecPart, ...] = ()
    for part in parts:
        if _read(spec, (*valid, part)) is not None:
            valid = (*valid, part)
    return _read(spec, valid)


def _set_parts(spec: Manifest, parts: Iterable[SpecPart]) -> Iterator[SpecPart]:
    """The `parts` that `spec` sets at least in part, with their values."""
    for part in parts:
        sections = ((path, _section(spec, path)) for path in part.paths)
        if values := {path: at[path[-1]] for path, at in sections if path[-1] in at}:
            yield part._replace(values=values)


def _section(spec: Manifest, path: tuple[str, ...]) -> Manifest:
    """The object that has the field at `path`; empty where there is none."""
    section: Any = spec
    for key in path[:-1]:
        section = section.get(key) if isinstance(section, dict) else None
    return section if isinstance(section, dict) else {}


def _read(spec: Manifest, parts: Iterable[SpecPart]) -> InferenceServiceSpec | None:
    """`spec` with other `parts`, which change no pod; None if the result is invalid."""
    changed = copy.deepcopy(spec)
    for part in parts:
        for path in part.paths:
            _section(changed, path).pop(path[-1], None)
        for path, value in part.values.items():
            section = changed
            for key in path[:-1]:
                section = section.setdefault(key, {})
            section[path[-1]] = value
    if not changed.get(AUTOSCALING):
        changed.pop(AUTOSCALING, None)
    try:
        parsed = canonical(parse(InferenceServiceSpec, changed, "spec"))
    except InvalidSpecError:
        return None
    return None if any(scaling_contradictions(parsed)) else parsed
