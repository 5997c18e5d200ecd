"""What a field takes, in plain words: one row for each kind of finding that models can make.

For requests and for configuration files. Uses pydantic's types of findings, none of its sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from pydantic_core import ErrorDetails

from sluice_contract.error_location import Location, Model, bounds_at
from sluice_contract.http_errors import shown

MISSING: Final = "required"
_MANY_KEYS: Final = 12
_NEAR_KEYS: Final = 6
_BOOLEANS: Final = {"True": "true", "False": "false"}

Words = Callable[[Mapping[str, Any]], str]


def _always(text: str) -> Words:
    return lambda context: text


WORDS: Final[Mapping[str, Words]] = {
    "bool_type": _always("true or false"),
    "dict_type": _always("an object"),
    "finite_number": _always("a finite number"),
    "float_type": _always("a number"),
    "enum": lambda context: _choices(context),
    "greater_than": lambda context: _range(context),
    "greater_than_equal": lambda context: _range(context),
    "int_from_float": _always("an integer"),
    "int_type": _always("an integer"),
    "json_invalid": lambda context: f"a JSON object ({context['error']})",
    "less_than": lambda context: _range(context),
    "less_than_equal": lambda context: _range(context),
    "list_type": _always("a list"),
    "literal_error": lambda context: _choices(context),
    "model_type": _always("an object"),
    "none_required": _always("leaving it out"),
    "string_pattern_mismatch": lambda context: f"text that matches {context['pattern']}",
    "string_too_long": lambda context: f"at most {_count(context['max_length'], 'character')}",
    "string_too_short": lambda context: f"at least {_count(context['min_length'], 'character')}",
    "string_type": _always("a string"),
    "too_long": lambda context: f"{_holder(context)} of at most {_items(context['max_length'])}",
    "too_short": lambda context: f"a list of at least {_items(context['min_length'])}",
    "tuple_type": _always("a list"),
    "value_error": lambda context: str(context["error"]),
}
"""By pydantic's type of the finding; `missing` and `extra_forbidden` are about keys, not values."""


def allowed_words(kind: Model, finding: ErrorDetails) -> str:
    """What is allowed at `finding` in `kind`: both ends of a range."""
    return WORDS[finding["type"]](finding.get("ctx", {}) | bounds_at(kind, finding["loc"]))


def unknown_field(key: str, allowed_keys: Sequence[str]) -> str:
    """The text for an unknown key; of many `allowed_keys` only those that may be meant."""
    meant = get_close_matches(key, allowed_keys, n=1)
    hint = f"did you mean {meant[0]}? " if meant else ""
    allowed = ", ".join(allowed_keys)
    if meant and len(allowed_keys) > _MANY_KEYS:
        near = get_close_matches(key, allowed_keys, n=_NEAR_KEYS, cutoff=0.3)
        allowed = f"{', '.join(near)} and {len(allowed_keys) - len(near)} more"
    return f"unknown field; {hint}allowed: {allowed}"


def path_of(location: Location, root: str = "") -> str:
    """The place of a finding, below `root`, as in `spec.env[0].name`."""
    path = root
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{shown(part)}" if path else shown(part)
    return path


def _choices(context: Mapping[str, Any]) -> str:
    """Choices quoted as values are, with JSON's spelling of true and false."""
    expected = str(context["expected"])
    return _BOOLEANS.get(expected, expected.replace("'", '"'))


def _range(bounds: Mapping[str, Any]) -> str:
    number = {key: _number(value) for key, value in bounds.items()}
    if "ge" in number and "le" in number:
        return f"{number['ge']} to {number['le']}"
    templates = {"ge": "{} or more", "gt": "more than {}", "le": "{} or less", "lt": "less than {}"}
    return " and ".join(
        text.format(number[key]) for key, text in templates.items() if key in number
    )


def _items(number: int) -> str:
    return _count(number, "item")


def _holder(context: Mapping[str, Any]) -> str:
    return "an object" if context["field_type"] == "Dictionary" else "a list"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
