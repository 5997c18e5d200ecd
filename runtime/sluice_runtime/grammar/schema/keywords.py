"""Allowed values of the keywords of a JSON schema, and the message of a refusal; pure.

Types follow the specification; ranges are narrower where the grammar library's are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import GrammarError

MAX_COUNT: Final = 2**31 - 1
MAX_MULTIPLE: Final = 1024
_INTEGERS: Final = range(-(2**63), 2**63)

IS: Final[Mapping[str, Callable[[object], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}
"""Tests of a value's type, by the type's name."""


class Values(NamedTuple):
    """Allowed values of a keyword; `allowed` is for a person."""

    fits: Callable[[Any], bool]
    allowed: str


def _is_type(value: object) -> bool:
    names = value if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in IS for name in names)


def _is_exact(value: object) -> bool:
    """Whether the library can represent all its integers exactly."""
    if isinstance(value, dict):
        return all(_is_exact(part) for part in value.values())
    if isinstance(value, list):
        return all(_is_exact(part) for part in value)
    return not isinstance(value, int) or value in _INTEGERS


_COUNT: Final = Values(
    lambda value: IS["integer"](value) and 0 <= value <= MAX_COUNT,
    f"an integer from 0 to {MAX_COUNT}",
)
_NUMBER: Final = Values(IS["number"], "a number")
_OBJECT: Final = Values(IS["object"], "an object")
_STRING: Final = Values(IS["string"], "a string")
_PARTS: Final = Values(
    lambda value: isinstance(value, list) and value != [], "a list of at least one schema"
)
_EXACT: Final = f"integers from {_INTEGERS[0]} to {_INTEGERS[-1]}"

KEYWORDS: Final[Mapping[str, Values]] = {
    "$defs": _OBJECT,
    "allOf": _PARTS,
    "anyOf": _PARTS,
    "const": Values(_is_exact, f"a value with {_EXACT}"),
    "definitions": _OBJECT,
    "enum": Values(
        lambda value: isinstance(value, list) and value != [] and _is_exact(value),
        f"a list of at least one value, with {_EXACT}",
    ),
    "exclusiveMaximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "format": _STRING,
    "maxItems": _COUNT,
    "maxLength": _COUNT,
    "maxProperties": _COUNT,
    "maximum": _NUMBER,
    "minItems": _COUNT,
    "minLength": _COUNT,
    "minProperties": _COUNT,
    "minimum": _NUMBER,
    "multipleOf": Values(
        lambda value: IS["number"](value) and 0 < value <= MAX_MULTIPLE,
        f"a number above 0, to {MAX_MULTIPLE}",
    ),
    "oneOf": _PARTS,
    "pattern": _STRING,
    "patternProperties": _OBJECT,
    "prefixItems": Values(IS["array"], "a list of schemas"),
    "properties": _OBJECT,
    "required": Values(
        lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
        "a list of strings",
    ),
    "type": Values(_is_type, f"one of {', '.join(sorted(IS))}, or a list of at least one of them"),
}
"""Keywords whose values are not schemas themselves."""

SCHEMAS: Final = (
    "additionalProperties",
    "items",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
)
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS: Final = ("$defs", "definitions", "properties", "patternProperties")
"""Keywords that hold a schema, a list of schemas, and schemas by name."""
IMPLIED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"), "number"),
    **dict.fromkeys(("format", "maxLength", "minLength", "pattern"), "string"),
    **dict.fromkeys(("items", "maxItems", "minItems", "prefixItems", "unevaluatedItems"), "array"),
    **dict.fromkeys(
        (
            "additionalProperties",
            "maxProperties",
            "minProperties",
            "patternProperties",
            "properties",
            "propertyNames",
            "required",
            "unevaluatedProperties",
        ),
        "object",
    ),
}
"""The type whose values a keyword restricts."""
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_PAIRS: Final = (
    ("minItems", "maxItems"),
    ("minLength", "maxLength"),
    ("minProperties", "maxProperties"),
    ("minimum", "maximum"),
)


def refuse_malformed(schema: Mapping[str, Any], path: str) -> None:
    """Checks the schema's own keywords, not those of its subschemas.

    Raises:
        GrammarError: one has a value that is not allowed; names place, value and what is allowed.
    """
    for key in schema.keys() & KEYWORDS.keys():
        if not KEYWORDS[key].fits(schema[key]):
            raise refused(at(path, key), schema[key], KEYWORDS[key].allowed)
    kinds = schema.get("type", ())
    if "integer" in ([kinds] if isinstance(kinds, str) else kinds):
        for key in schema.keys() & set(BOUNDS):
            if not (schema[key] == int(schema[key]) and int(schema[key]) in _INTEGERS):
                allowed = f'an integer from {_INTEGERS[0]} to {_INTEGERS[-1]} beside type "integer"'
                raise refused(at(path, key), schema[key], allowed)
    for least, most in _PAIRS:
        if least in schema and most in schema and schema[least] > schema[most]:
            raise refused(at(path, least), schema[least], f"at most {most}, {schema[most]}")


def refused(place: str, value: object, allowed: str, why: str = "is not allowed") -> GrammarError:
    """The error for a keyword's value."""
    return GrammarError(f"{place}: {shown_json(value)} {why}; allowed: {allowed}")


def at(path: str, key: str) -> str:
    """The place of a keyword of the schema at `path`."""
    return f"{path}.{key}" if path else key
