"""Findings about a part of a custom resource: a line each, with field, value and what is allowed.

Like the API server, checks types first and, if these are valid, the rules of all parts. The wording
is the contract's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from sluice_contract.base import UNORDERED
from sluice_contract.error_text import (
    Location,
    Model,
    allowed_of,
    findings_of,
    known_keys,
    models_at,
    path_of,
    text_of,
)
from sluice_contract.log_lines import shown, shown_json

from sluice_operator.api.base import LIST_MAP_KEYS, ApiModel
from sluice_operator.api.stored import BeyondInt64

_ROOT: Final = "(document)"
_ALIKE: Final = 0.75
"""Least similarity of a key that is taken for a misspelt one."""
_INTEGERS: Final = ("int_type", "int_from_float")
_TYPES: Final = ("model_type", "model_attributes_type", "string_type")

_EXAMPLES: Final = {
    "spec.model": "an object such as {uri: hf://org/name}",
    "spec.model.uri": "a URI such as hf://org/name or pvc://claim/path",
    "spec.accelerator": "an object such as {product: NVIDIA-L4, count: 1}, or {} for any GPU",
    "spec.prefill": "an object, {} for prefill engines like those of spec",
    "spec.autoscaling": "an object such as {minReplicas: 1, maxReplicas: 4}",
}
"""Field → what to write there where it is missing or has another type, with an example."""

_ELSEWHERE: Final = {
    "memory": "resources.limits.memory",
    "cpu": "resources.limits.cpu",
    "gpu": "accelerator.count",
    "gpus": "accelerator.count",
    "gpuCount": "accelerator.count",
    "gpuType": "accelerator.product",
    "tensorParallel": "accelerator.count",
    "maxModelLen": "engine.contextLength",
    "maxNumSeqs": "engine.maxRunningRequests",
    "gpuMemoryUtilization": "engine.memoryPercent",
    "minReplicas": "autoscaling.minReplicas",
    "maxReplicas": "autoscaling.maxReplicas",
    "modelUri": "model.uri",
    "requests": "resources.requests",
    "limits": "resources.limits",
}
"""Key that users of pods or of other engines write → the field of spec."""

ApiModelT = TypeVar("ApiModelT", bound=ApiModel)


@dataclass(frozen=True)
class Finding:
    """An error: its place, and what is allowed there."""

    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class InvalidSpecError(ValueError):
    """A value that the API server would refuse; `findings` says why, field by field."""

    def __init__(self, findings: tuple[Finding, ...], parsed: object = None) -> None:
        self.findings = findings
        self.parsed = parsed
        """The parsed value, if only rules are broken."""
        super().__init__("\n".join(str(finding) for finding in findings))


def parse(kind: type[ApiModelT], value: object, root: str) -> ApiModelT:
    """`value` as a `kind`; `root` is the path of its field.

    Raises:
        InvalidSpecError: with every finding.
    """
    try:
        parsed = kind.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        findings = (_finding(detail, kind, root) for detail in findings_of(error))
        raise InvalidSpecError(tuple(findings)) from None
    if broken := tuple(_broken_rules(parsed, root)):
        raise InvalidSpecError(broken, parsed)
    return parsed


def _refused(field: str, value: object, allowed: str) -> Finding:
    """The finding that `value` is not allowed."""
    return Finding(field, f"{shown_json(value)} is not allowed; allowed: {allowed}")


def _finding(detail: ErrorDetails, kind: type[BaseModel], root: str) -> Finding:
    path = path_of(detail["loc"], root) or _ROOT
    if detail["type"] == "extra_forbidden" and (places := _elsewhere(kind, detail["loc"])):
        return Finding(path, f"unknown field; did you mean {' or '.join(places)}?")
    if detail["type"] == "missing" and path in _EXAMPLES:
        return Finding(path, f"required; allowed: {_EXAMPLES[path]}")
    if detail["type"] in _TYPES and path in _EXAMPLES:
        return _refused(path, detail["input"], _EXAMPLES[path])
    if isinstance(detail["input"], BeyondInt64) and detail["type"] in _INTEGERS:
        got, allowed = shown(detail["input"].written), allowed_of(kind, detail)
        return Finding(path, f"{got} is not allowed; allowed: {allowed}, of at most 64 bits")
    return Finding(path, text_of(kind, detail))


def _elsewhere(kind: Model, location: Location) -> list[str]:
    """Fields of the spec that an unknown key may be meant for; none if the object has a key that is
    spelled alike."""
    key = str(location[-1])
    alike = get_close_matches(key, known_keys(kind, location[:-1]), n=1, cutoff=_ALIKE)
    if location[0] != "spec" or alike:
        return []
    if key in _ELSEWHERE:
        return [f"spec.{_ELSEWHERE[key]}"]
    places = list(_places(models_at(kind, ("spec",)), key))
    depth = min((place.count(".") for place in places), default=0)
    return [f"spec.{place}" for place in places if place.count(".") == depth]


def _places(kinds: Sequence[Model], key: str) -> Iterator[str]:
    """Places of a key below `kinds`. Left out are entries of lists, and the pool prefill, whose
    fields are those of spec."""
    for kind in kinds:
        for name, field in kind.model_fields.items():
            alias = field.alias or name
            if alias == key:
                yield alias
            elif alias != "prefill" and "list[" not in str(field.annotation):
                yield from (f"{alias}.{place}" for place in _places(models_at(kind, (name,)), key))


def _broken_rules(value: object, path: str) -> Iterator[Finding]:
    """Findings in `value` and everything below it, where all types are valid."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _broken_rules(entry, f"{path}[{index}]")
    if not isinstance(value, ApiModel):
        return
    for rule in value.RULES:
        if not rule.holds(value):
            part: Any = value.model_dump(
                mode="json", by_alias=True, exclude_none=True, exclude_unset=True
            )
            for key in filter(None, rule.field.split(".")):
                part = part.get(key) if isinstance(part, dict) else None
            place = _below(path, rule.field) if rule.field else path
            yield _refused(place, part, rule.text(value))
    for name, field in type(value).model_fields.items():
        below, place = getattr(value, name), _below(path, field.alias or name)
        yield from _repeated_entries(below, field, place)
        yield from _broken_rules(below, place)


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _repeated_entries(entries: Any, field: FieldInfo, path: str) -> Iterator[Finding]:
    """Findings about entries that repeat an earlier one: with equal keys in a list, or equal in a
    set."""
    extra = field.json_schema_extra
    if not isinstance(entries, list) or not isinstance(extra, dict):
        return
    names: Any = extra.get(LIST_MAP_KEYS, ())
    if not names and extra != UNORDERED:
        return
    allowed = f"each {', '.join(names)} once" if names else "each once"
    former = list[Any]()
    for index, entry in enumerate(entries):
        key = {name: getattr(entry, to_snake(name)) for name in names} if names else entry
        if key in former:
            yield _refused(f"{path}[{index}]", key, allowed)
        former.append(key)
