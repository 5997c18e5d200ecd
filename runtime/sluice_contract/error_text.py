"""Turns pydantic's findings into the text of refusals: the value and what is allowed, or the known
keys.

For requests, configuration files and custom resources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from sluice_contract.log_lines import shown, shown_json

Model = type[BaseModel]
Location = Sequence[str | int]

UNTOLD: Final[dict[str, Any]] = {"x-untold": True}
"""Schema extra that marks a field which is read, but which no message suggests."""
ALTERNATIVES: Final = "alternatives"
"""Type of a finding: the value matches none of the field's alternatives, which the message
names."""
_PYTHON_WORD: Final = re.compile(r"\b(True|False)\b")
_MANY_KEYS: Final = 12
_NEAR_KEYS: Final = 6
_NEAR_CHOICE: Final = 0.54
"""Least similarity of a choice that may be meant: fp8 for fp8_e4m3."""
_PREFIX: Final = "Input should be "
_ALLOWED: Final = {
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "finite_number": "a finite number",
    "string_pattern_mismatch": "a string that matches {pattern}",
}
"""pydantic's type of a finding → what is allowed."""
_LENGTHS: Final = {
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
}
_OBJECTS: Final = ("model_type", "model_attributes_type")
_BOUNDS: Final = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
_NUMBERS: Final = re.compile("int_type|int_from_float|float_type|(greater|less)_than(_equal)?")


def findings_of(error: ValidationError) -> list[ErrorDetails]:
    """Findings in JSON's words. Unknown keys come first, since a key that is missing is often
    misspelt."""
    findings: list[Any] = error.errors(include_url=False)
    for finding in findings:
        if finding["type"] == ALTERNATIVES:
            finding["type"] = PydanticCustomError(ALTERNATIVES, finding["msg"])
    in_json = ValidationError.from_exception_data(error.title, findings, "json")
    findings = in_json.errors(include_url=False)
    for finding in findings:
        finding["msg"] = _PYTHON_WORD.sub(lambda word: word[0].lower(), finding["msg"])
    return sorted(findings, key=lambda finding: finding["type"] != "extra_forbidden")


def text_of(kind: Model, finding: ErrorDetails) -> str:
    """Text of a refusal, to follow the path: what a `kind` allows there, and the value, cut
    short."""
    if finding["type"] == "extra_forbidden":
        *above, key = finding["loc"]
        return unknown_field(str(key), known_keys(kind, above))
    if finding["type"] == "missing":
        *above, key = finding["loc"]
        allowed = _allowed_at(models_at(kind, above), str(key))
        return "required" + (f"; allowed: {allowed}" if allowed else "")
    value = finding["input"]
    got = shown_json(value.decode(errors="replace") if isinstance(value, bytes) else value)
    if finding["type"] == "json_invalid":
        return f"{finding['msg']}; got {got}"
    return f"{got} is not allowed; {_hint(finding)}allowed: {allowed_of(kind, finding)}"


def allowed_of(kind: Model, finding: ErrorDetails) -> str:
    """What a `kind` allows at a finding that is of a value, not of a key."""
    type_, context = finding["type"], finding.get("ctx", {})
    if _NUMBERS.fullmatch(type_):
        return _number(kind, finding)
    if type_ in _OBJECTS:
        keys = known_keys(kind, finding["loc"])
        names = f" with {', '.join(keys)}" if 0 < len(keys) <= _MANY_KEYS else ""
        return f"an object{names}"
    if type_ in _LENGTHS:
        least_or_most, key, item = _LENGTHS[type_]
        if (number := context[key]) == 0:
            return "an empty list"
        return f"{least_or_most} {number} {item}{'' if number == 1 else 's'}"
    if type_ in _ALLOWED:
        return _ALLOWED[type_].format(**context)
    return str(context["error"]) if type_ == "value_error" else finding["msg"].removeprefix(_PREFIX)


def _number(kind: Model, finding: ErrorDetails) -> str:
    """The numbers that the field at a finding allows: `a whole number from 0 to 1000`."""
    *above, key = finding["loc"] or ("",)
    fields = [
        field
        for model in models_at(kind, above)
        for name, field in model.model_fields.items()
        if key in (name, field.alias)
    ]
    types = {part for field in fields for part in (field.annotation, *get_args(field.annotation))}
    is_whole = finding["type"].startswith("int") or (int in types and float not in types)
    bounds = dict(finding.get("ctx", {}))
    for constraint in (constraint for field in fields for constraint in field.metadata):
        bounds |= {name: getattr(constraint, name) for name in _BOUNDS if hasattr(constraint, name)}
    if is_whole and "lt" in bounds:
        bounds["le"] = bounds.pop("lt") - 1
    number = "a whole number" if is_whole else "a number"
    texts = {name: str(bounds[name]).removesuffix(".0") for name in _BOUNDS if name in bounds}
    if "ge" in texts and "le" in texts:
        return f"{number} from {texts['ge']} to {texts['le']}"
    return ", ".join((number, *(f"{_BOUNDS[name]} {text}" for name, text in texts.items())))


def _hint(finding: ErrorDetails) -> str:
    """The choice that is spelled like the value, if there is one."""
    value = finding["input"]
    if finding["type"] != "literal_error" or not isinstance(value, str):
        return ""
    choices = {name.lower(): name for name in re.findall("'([^']+)'", finding["ctx"]["expected"])}
    meant = get_close_matches(value.lower(), choices, n=1, cutoff=_NEAR_CHOICE)
    return f"did you mean {choices[meant[0]]}? " if meant else ""


def unknown_field(key: str, allowed_keys: Sequence[str]) -> str:
    """The text for an unknown key. If many keys are allowed, it names only similar ones."""
    meant = get_close_matches(key, allowed_keys, n=1)
    hint = f"did you mean {meant[0]}? " if meant else ""
    allowed = ", ".join(allowed_keys)
    if meant and len(allowed_keys) > _MANY_KEYS:
        near = get_close_matches(key, allowed_keys, n=_NEAR_KEYS, cutoff=0.3)
        allowed = f"{', '.join(near)} and {len(allowed_keys) - len(near)} more"
    return f"unknown field; {hint}allowed: {allowed}"


def known_keys(kind: Model, above: Location) -> list[str]:
    """Keys of the object at `above`, in camelCase; if it has alternatives, the keys of all of them.
    Keys that users never write are left out."""
    return sorted(
        {
            field.alias or name
            for model in models_at(kind, above)
            for name, field in model.model_fields.items()
            if field.json_schema_extra != UNTOLD
        }
    )


def models_at(kind: Model, above: Location) -> list[Model]:
    """Models that the object at `above` may be."""
    models = [kind]
    for step in above:
        below = [
            field.annotation
            for model in models
            for name, field in model.model_fields.items()
            if step in (name, field.alias)
        ]
        if below:
            models = [model for annotation in below for model in _models(annotation)]
    return models


def _allowed_at(models: Sequence[Model], key: str) -> str:
    """What is allowed at a missing key, taken from pydantic's refusal of null there; empty if null
    is accepted."""
    for model in models:
        try:
            model.model_validate({key: None})
        except ValidationError as error:
            for finding in findings_of(error):
                if finding["loc"] == (key,) and finding["type"] != "extra_forbidden":
                    return allowed_of(model, finding)
    return ""


def path_of(location: Location, root: str = "") -> str:
    """The place of a finding, below `root`, as in `spec.env[0].name`."""
    path = root
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{shown(part)}" if path else shown(part)
    return path


def _models(annotation: Any) -> Iterator[Model]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)
