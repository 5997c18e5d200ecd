"""Clients' JSON schemas, rewritten so that the grammar library enforces them; pure.

Keywords that the library would ignore are refused, with their place in the schema. What it gets
wrong is rewritten: a bound on a string's length becomes a pattern, because the library would allow
control characters, and `oneOf` becomes `anyOf`. Does not import the library, so the API process can
refuse before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.schema.keywords import (
    BOUNDS,
    IMPLIED,
    IS,
    KEYWORDS,
    LISTS,
    MAPS,
    SCHEMAS,
    at,
    refuse_malformed,
    refused,
)
from sluice_runtime.grammar.schema.references import refuse_unresolvable

MAX_DEPTH: Final = 64
MAX_BOUNDED_MULTIPLES: Final = 10_000
"""Integers between bounds beside `multipleOf`: the library enumerates them."""

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
        "maxContains",
        "minContains",
        "not",
        "then",
        "uniqueItems",
    }
)
"""Keywords that restrict values and that the library ignores or misreads, unless their value is
false."""
RESTRICTING: Final = (KEYWORDS.keys() | IMPLIED.keys() | IGNORED | {"$ref"}) - {
    "$defs",
    "definitions",
}
"""Any other key is an annotation."""
NOT_BESIDE: Final[Mapping[str, frozenset[str]]] = {
    "patternProperties": frozenset({"properties", "required", "minProperties", "maxProperties"}),
    "propertyNames": frozenset({"properties", "required"}),
    "pattern": frozenset({"format", "minLength", "maxLength"}),
    "format": frozenset({"minLength", "maxLength"}),
}
"""Of two such keywords the library enforces one."""
ALONE: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""The library enforces the first of these and ignores all other restrictions beside it."""

_OBJECT_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "unevaluatedProperties"}
)
_ARRAY_KEYWORDS: Final = frozenset({"items", "prefixItems", "unevaluatedItems"})
_ESCAPED: Final = re.compile(r'["\\\x00-\x1f]')
"""What JSON escapes; the library's pattern for additional names is wrong for such names."""
_INT64: Final = 2**63
_LENGTHS: Final = frozenset({"minLength", "maxLength"})


def usable_schema(schema: object) -> Any:
    """The schema for the library.

    Raises:
        GrammarError: a part of it would not be enforced; says where.
    """
    return _usable(schema, schema, "", 0)


def _usable(schema: object, root: object, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise GrammarError(f"the schema is nested too deeply; allowed: {MAX_DEPTH} deep")
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise refused(path or "the schema", schema, "an object, true or false", "is no schema")
    refuse_malformed(schema, path)
    schema = _with_whole_multiples(schema)
    _refuse_ignored(schema, path)
    if "$ref" in schema:
        refuse_unresolvable(schema["$ref"], root, path)
    _refuse_names_and_counts(schema, path)
    _refuse_contradiction(schema, path)
    usable = _typed(_bounded_string(schema))
    for key, value in schema.items():
        below = at(path, key)
        if key in SCHEMAS:
            usable[key] = _usable(value, root, below, depth + 1)
        elif key in LISTS:
            usable[key] = [
                _usable(part, root, f"{below}[{i}]", depth + 1) for i, part in enumerate(value)
            ]
        elif key in MAPS:
            usable[key] = {
                name: _usable(part, root, f"{below}.{name}", depth + 1)
                for name, part in value.items()
            }
    if "oneOf" in usable:  # beside anyOf it has been refused
        usable["anyOf"] = usable.pop("oneOf")
    return _with_required_properties(usable, path)


def _with_whole_multiples(schema: dict[str, Any]) -> dict[str, Any]:
    """With `multipleOf` as the library supports it: an integer, beside the type integer. Multiples
    of an integer are integers; all integers are multiples of a fraction of 1 such as 0.01."""
    step, kind = schema.get("multipleOf"), schema.get("type")
    if step is None or kind not in ("integer", "number"):
        return schema
    if step == int(step):
        bounds = [schema[key] for key in BOUNDS if key in schema]
        whole_bounds = all(bound == int(bound) and abs(bound) < _INT64 for bound in bounds)
        return schema | {"multipleOf": int(step), "type": "integer" if whole_bounds else kind}
    if kind == "integer" and (1 / step).is_integer():
        return {key: value for key, value in schema.items() if key != "multipleOf"}
    return schema | {"type": "number"}


def _refuse_ignored(schema: Mapping[str, Any], path: str) -> None:
    for key in schema.keys() & IGNORED:
        if schema[key] is not False:
            raise _unimplemented(schema, path, key, "leaving it out")
    if len(schema.get("allOf", ())) > 1:
        raise _unimplemented(schema, path, "allOf", "a list of one schema")
    if "multipleOf" in schema and schema.get("type") != "integer":
        allowed = 'an integer, beside type "integer" or "number"; or a part of 1 beside "integer"'
        raise _unimplemented(schema, path, "multipleOf", allowed)
    _refuse_multiples(schema, path)
    for key, others in NOT_BESIDE.items():
        if key in schema and (beside := sorted(schema.keys() & others)):
            raise _unimplemented(schema, path, key, "one of the two", beside[0])


def _refuse_multiples(schema: Mapping[str, Any], path: str) -> None:
    """Refuses `multipleOf` within an open or too wide range."""
    bounds = sorted(schema.keys() & BOUNDS)
    if "multipleOf" not in schema or not bounds:
        return
    least = [int(schema[key]) + (key != "minimum") for key in bounds if "inimum" in key]
    most = [int(schema[key]) - (key != "maximum") for key in bounds if "aximum" in key]
    if not least or not most or min(most) - max(least) >= MAX_BOUNDED_MULTIPLES:
        allowed = (
            f"without bounds, or beside a least and a greatest value with at most "
            f"{MAX_BOUNDED_MULTIPLES} integers from one to the other"
        )
        raise _unimplemented(schema, path, "multipleOf", allowed, " and ".join(bounds))


def _unimplemented(
    schema: Mapping[str, Any], path: str, key: str, allowed: str, beside: str = ""
) -> GrammarError:
    why = f"beside {beside} is not implemented" if beside else "is not implemented"
    return refused(at(path, key), schema[key], allowed, why)


def _refuse_names_and_counts(schema: Mapping[str, Any], path: str) -> None:
    names = [*schema.get("properties", ()), *schema.get("required", ())]
    if escaped := next((name for name in names if _ESCAPED.search(name)), None):
        allowed = "names without quotes, backslashes and control characters"
        raise refused(at(path, "properties"), escaped, allowed, "is not implemented")
    if schema.get("minProperties", 0) > 1 and schema.get("additionalProperties") is not False:
        # The same additional name may come twice, and then counts twice.
        allowed = "0 or 1; more beside additionalProperties: false"
        raise _unimplemented(schema, path, "minProperties", allowed)


def _refuse_contradiction(schema: Mapping[str, Any], path: str) -> None:
    """Refuses restrictions that would be ignored beside a keyword of `ALONE`."""
    first = next((key for key in ALONE if key in schema), None)
    if first is None:
        return
    others = (schema.keys() & RESTRICTING) - {first}
    allowed = "in each part" if first in LISTS else f"{first} alone"
    if first in ("const", "enum"):
        allowed = f"{first} alone, or with a type of all its values"
        if all(_has_type(value, schema.get("type", ())) for value in _values(schema, first)):
            others -= {"type"}
    if others:
        raise _unimplemented(schema, path, min(others), allowed, first)


def _values(schema: Mapping[str, Any], key: str) -> list[Any]:
    """The values that `const` or `enum` allows."""
    return [schema[key]] if key == "const" else list(schema[key])


def _has_type(value: object, kinds: str | Sequence[str]) -> bool:
    return any(IS[kind](value) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """With the types that its keywords apply to, if it has none: the library ignores most keywords
    without a type. And with any contents, if it says nothing of them: the library allows none."""
    if any(key in schema for key in ALONE):
        return schema
    given = schema.get("type", sorted({IMPLIED[key] for key in schema.keys() & IMPLIED.keys()}))
    kinds = [given] if isinstance(given, str) else given
    typed = schema | ({"type": kinds} if kinds and "type" not in schema else {})
    if "object" in kinds and not schema.keys() & _OBJECT_KEYWORDS:
        typed["additionalProperties"] = True
    if "array" in kinds and not schema.keys() & _ARRAY_KEYWORDS:
        typed["items"] = True
    return typed


def _bounded_string(schema: Mapping[str, Any]) -> dict[str, Any]:
    """With bounds on a string's length as a pattern."""
    rest = {key: value for key, value in schema.items() if key not in _LENGTHS}
    if len(rest) == len(schema):
        return rest
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return rest | {"pattern": f"^.{{{least},{most}}}$"}


def _with_required_properties(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """With every required name among the properties: the library requires no others."""
    properties = schema.get("properties", {})
    missing = [name for name in schema.get("required", ()) if name not in properties]
    if not missing:
        return schema
    others = schema.get("additionalProperties", True)
    if others is False:
        allowed = "names of properties, where additionalProperties is false"
        raise refused(at(path, "required"), missing[0], allowed)
    return schema | {"properties": properties | dict.fromkeys(missing, others)}
