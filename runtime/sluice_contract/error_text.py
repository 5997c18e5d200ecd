"""Turns pydantic's findings into the text of refusals: pydantic's message and the value, or the
known keys.

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
        allowed = _allowed(models_at(kind, above), str(key))
        return finding["msg"] + (f"; allowed: {allowed}" if allowed else "")
    value = finding["input"]
    got = shown_json(value.decode(errors="replace") if isinstance(value, bytes) else value)
    if finding["type"] == "value_error":
        return f"{got} is not allowed; allowed: {finding['ctx']['error']}"
    return f"{finding['msg']}; got {got}"


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


def _allowed(models: Sequence[Model], key: str) -> str:
    """Text of the allowed values of a missing key, taken from pydantic's refusal of null there;
    empty if null is accepted."""
    for model in models:
        try:
            model.model_validate({key: None})
        except ValidationError as error:
            for finding in findings_of(error):
                if finding["loc"] == (key,) and finding["type"] != "extra_forbidden":
                    reason = finding.get("ctx", {}).get("error", finding["msg"])
                    return str(reason).removeprefix("Input should be ")
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
