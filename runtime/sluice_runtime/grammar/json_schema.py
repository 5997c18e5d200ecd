"""JSON schemas as clients send them, made into what the grammar library does right; pure.

What it would ignore is refused, by the place in the schema; what it does wrong is written another
way: it lets control characters into strings of bounded length, and does not into patterns. Imports
no library, so that the API process can refuse before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice_runtime.errors import GrammarError

MOST_DEPTH: Final = 64

IGNORED: Final = frozenset(
    {
        "$dynamicRef",
        "$recursiveRef",
        "additionalItems",
        "contains",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "if",
        "not",
        "then",
        "uniqueItems",
    }
)
"""Keywords that restrict values and that the library reads over, unless their value is false."""
ANNOTATIONS: Final = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "nullable",
        "readOnly",
        "strict",
        "title",
        "writeOnly",
    }
)
"""Keywords that restrict nothing."""
NOT_BESIDE: Final[Mapping[str, frozenset[str]]] = {
    "patternProperties": frozenset({"properties", "required", "minProperties", "maxProperties"}),
    "propertyNames": frozenset({"properties", "required"}),
    "pattern": frozenset({"format", "minLength", "maxLength"}),
    "format": frozenset({"minLength", "maxLength"}),
}
"""Of two such keywords the library keeps one."""
ALONE: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The library takes the first of these and reads over whatever else restricts the value."""

_OBJECT_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"}
)
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
"""What JSON escapes; the library's pattern for all other names goes wrong with it."""
_SCHEMAS: Final = ("additionalProperties", "items", "propertyNames", "unevaluatedProperties")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS: Final = ("$defs", "definitions", "properties", "patternProperties")

_IS: Final[Mapping[str, Callable[[object], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def usable_schema(schema: object, path: str = "", depth: int = 0) -> Any:
    """The schema as the library gets it.

    Raises:
        GrammarError: it asks for something that would not be kept; says where.
    """
    if depth > MOST_DEPTH:
        raise GrammarError(f"the schema is nested more than {MOST_DEPTH} deep")
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise GrammarError(f"{path or 'the schema'} is no schema; allowed: an object")
    _refuse_ignored(schema, path)
    _refuse_names_and_counts(schema, path)
    _refuse_contradiction(schema, path)
    usable = _bounded_string(schema, path)
    if schema.get("type") == "object" and not schema.keys() & _OBJECT_KEYWORDS:
        usable["additionalProperties"] = True  # else the library takes it for the empty object
    for key, value in schema.items():
        below = f"{path}.{key}" if path else key
        if key in _SCHEMAS:
            usable[key] = usable_schema(value, below, depth + 1)
        elif key in _LISTS and isinstance(value, list):
            usable[key] = [
                usable_schema(part, f"{below}[{i}]", depth + 1) for i, part in enumerate(value)
            ]
        elif key in _MAPS and isinstance(value, dict):
            usable[key] = {
                name: usable_schema(part, f"{below}.{name}", depth + 1)
                for name, part in value.items()
            }
    return _with_required_properties(usable, path)


def _refuse_ignored(schema: Mapping[str, Any], path: str) -> None:
    for key in schema.keys() & IGNORED:
        if schema[key] is not False:
            raise GrammarError(f"{_at(path, key)} is not implemented")
    if isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1:
        raise GrammarError(f"{_at(path, 'allOf')} of several schemas is not implemented")
    reference = schema.get("$ref", "#")
    if not (isinstance(reference, str) and reference.startswith("#")):
        raise GrammarError(f"{_at(path, '$ref')} leads out of the schema; allowed: #/…")
    if "multipleOf" in schema and schema.get("type") != "integer":
        raise GrammarError(f"{_at(path, 'multipleOf')} is implemented for type integer only")
    for key, others in NOT_BESIDE.items():
        if key in schema and (beside := sorted(schema.keys() & others)):
            raise GrammarError(f"{_at(path, key)} beside {beside[0]} is not implemented")


def _refuse_names_and_counts(schema: Mapping[str, Any], path: str) -> None:
    properties, required = schema.get("properties"), schema.get("required")
    names = [
        *(properties if isinstance(properties, dict) else ()),
        *(required if isinstance(required, list) else ()),
    ]
    if escaped := next((name for name in names if _ESCAPED.search(str(name))), None):
        raise GrammarError(f"{_at(path, 'properties')}: {escaped!r} needs escapes")
    least = schema.get("minProperties", 0)
    if isinstance(least, int) and least > 1 and schema.get("additionalProperties") is not False:
        # Of names that are not mentioned one may come twice, and then counts twice.
        raise GrammarError(
            f"{_at(path, 'minProperties')} above 1 is implemented with additionalProperties false "
            "only"
        )


def _refuse_contradiction(schema: Mapping[str, Any], path: str) -> None:
    """Whatever would be read over because of a keyword that is to stand alone."""
    first = next((key for key in ALONE if key in schema), None)
    if first is None:
        return
    others = schema.keys() - ANNOTATIONS - {first}
    if first in ("const", "enum") and all(
        _has_type(value, schema.get("type")) for value in _values(schema, first)
    ):
        others -= {"type"}
    if others:
        raise GrammarError(
            f"{_at(path, min(others))} beside {first} is not implemented; allowed: in each part"
            if first in _LISTS
            else f"{_at(path, min(others))} beside {first} is not implemented"
        )


def _values(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The values that `const` or `enum` allows."""
    if key == "const":
        return [schema[key]]
    values = schema[key]
    return values if isinstance(values, list) else []


def _has_type(value: object, kinds: object) -> bool:
    names = kinds if isinstance(kinds, list) else [kinds]
    return any(isinstance(name, str) and name in _IS and _IS[name](value) for name in names)


def _bounded_string(schema: Mapping[str, Any], path: str) -> dict[str, Any]:
    """With bounds on a string's length as a pattern."""
    bounds = {key: schema[key] for key in ("minLength", "maxLength") if key in schema}
    rest = {key: value for key, value in schema.items() if key not in bounds}
    if not bounds:
        return rest
    for key, bound in bounds.items():
        if not isinstance(bound, int) or isinstance(bound, bool) or bound < 0:
            raise GrammarError(f"{_at(path, key)} is no length; allowed: an integer of 0 or more")
    least, most = bounds.get("minLength", 0), bounds.get("maxLength")
    if most is not None and least > most:
        raise GrammarError(f"{_at(path, 'minLength')} is more than maxLength")
    return rest | {"pattern": f"^.{{{least},{'' if most is None else most}}}$"}


def _with_required_properties(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """With every required name among the properties: the library asks for no other."""
    required, properties = schema.get("required"), schema.get("properties", {})
    if not (isinstance(required, list) and isinstance(properties, dict)):
        return schema
    missing = [name for name in required if isinstance(name, str) and name not in properties]
    if not missing:
        return schema
    others = schema.get("additionalProperties", True)
    if others is False:
        raise GrammarError(f"{_at(path, 'required')}: {missing[0]!r} is none of the properties")
    return schema | {"properties": properties | dict.fromkeys(missing, others)}


def _at(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
