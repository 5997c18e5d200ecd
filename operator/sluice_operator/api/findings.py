"""Findings about a part of a custom resource: a line each, with field, value and what is allowed.

Like the API server, checks types first and, if these are valid, the rules of all parts. The wording
is the contract's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.alias_generators import to_snake
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from sluice_contract.base import UNORDERED
from sluice_contract.error_text import Location, findings_of, models_at, path_of, text_of
from sluice_contract.log_lines import shown, shown_json

from sluice_operator.api.base import LIST_MAP_KEYS, ApiModel
from sluice_operator.api.stored import INT64, BeyondInt64

_ROOT: Final = "(document)"
_INTEGERS: Final = ("int_type", "int_from_float")

_FORMER: Final = {
    "mode": "prefill: {{}} where it was Disaggregated, and nothing where it was Mixed",
    "pools": "the pool mixed or decode at the top level of spec, the pool prefill as spec.prefill",
    "autoscaling.accelerator": "spec.accelerator",
    "autoscaling.target.queueSeconds": "spec.autoscaling.target.queueMilliseconds, a thousand "
    "times the number",
    "engine.memoryFraction": "{engine}.memoryPercent, a hundred times the number",
    "engine.scheduleConservativeness": "{engine}.reservePercent, a hundred times the number",
    "tracing.sampleRatio": "spec.tracing.samplePercent, a hundred times the number",
}
"""Field below spec in version 0.1.0 → what to write instead. `{engine}` stands for the section of
the engine settings. To be removed with version 0.2.0."""

_REQUIRED: Final = {
    "spec.model": "an object such as {uri: hf://org/name}",
    "spec.model.uri": "a URI such as hf://org/name or pvc://claim/path",
}
"""Required field → what to write there, with an example."""

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
    if detail["type"] == "extra_forbidden" and (instead := _instead_of(detail["loc"])):
        return Finding(path, f"unknown field; write {instead}")
    if detail["type"] == "missing" and path in _REQUIRED:
        return Finding(path, f"{detail['msg']}; allowed: {_REQUIRED[path]}")
    if isinstance(detail["input"], BeyondInt64) and detail["type"] in _INTEGERS:
        got = shown(detail["input"].written)
        return Finding(path, f"Input should be {INT64[0]} to {INT64[-1]}; got {got}")
    text = text_of(kind, detail)
    if detail["type"] in _INTEGERS and (limits := _percent_limits(kind, detail["loc"])):
        text += f"; allowed: {limits} percent, as a whole number"
    return Finding(path, text)


def _percent_limits(kind: type[BaseModel], location: Location) -> str | None:
    """The range of a share in percent; None for other fields."""
    *above, key = location
    if not str(key).endswith("Percent"):
        return None
    fields = (field for model in models_at(kind, above) for field in model.model_fields.values())
    metadata = [item for field in fields if field.alias == key for item in field.metadata]
    bounds = [
        getattr(item, name) for name in ("ge", "le") for item in metadata if hasattr(item, name)
    ]
    return " to ".join(map(str, bounds)) or None


def _instead_of(location: Location) -> str | None:
    """The text for a field that earlier specs had; None for other fields."""
    path = ".".join(key for key in location if isinstance(key, str) and key != "spec")
    engine = "spec.prefill.engine" if path.startswith("prefill.engine.") else "spec.engine"
    former = _FORMER.get(path.removeprefix("prefill.") if "prefill" in engine else path)
    return former and former.format(engine=engine)


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
