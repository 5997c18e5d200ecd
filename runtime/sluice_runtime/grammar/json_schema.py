"""Clients' JSON schemas as the grammar library takes them; pure.

Keywords that the library would ignore are refused, with their place in the schema. Objects without
`additionalProperties` are closed where that is asked for, a keyword's type is written out, patterns
describe whole strings, `oneOf` becomes `anyOf`, and formats that are not known are annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import GrammarError

MAX_DEPTH: Final = 64
MAX_PROPERTIES: Final = 1_000
"""Of one object: the library's time grows with their square."""
MAX_MULTIPLE: Final = 1024
"""The library's automaton has a state for each remainder."""

SCHEMAS: Final = ("additionalProperties", "items", "unevaluatedItems", "unevaluatedProperties")
LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS: Final = ("$defs", "definitions", "properties", "patternProperties")
"""Keywords that hold a schema, a list of schemas, and schemas by name."""
IGNORED: Final = frozenset(
    {
        *("$dynamicRef", "$recursiveRef", "additionalItems", "contains", "dependencies", "not"),
        *("dependentRequired", "dependentSchemas", "if", "then", "else", "uniqueItems"),
        *("minContains", "maxContains"),
    }
)
"""Keywords that restrict values and that the library does not know."""
_RESTRICTS_NOTHING: Final = frozenset({"additionalItems", "not", "uniqueItems"})
"""Those that say nothing when they are false (`additionalItems`: without a list of `items`)."""
_IMPLIED: Final[Mapping[str, str]] = {
    key: kind
    for kind, keys in {
        "number": "exclusiveMaximum exclusiveMinimum maximum minimum",
        "string": "format maxLength minLength pattern",
        "array": "items maxItems minItems prefixItems unevaluatedItems",
        "object": "additionalProperties maxProperties minProperties patternProperties properties "
        "propertyNames required unevaluatedProperties",
    }.items()
    for key in keys.split()
}
"""The type whose values a keyword restricts."""
ALONE: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
"""Beside one of these no other restriction is taken: their product may be without bounds."""
RESTRICTING: Final = (
    _IMPLIED.keys() | IGNORED | {"multipleOf", "type", "const", "enum", "$ref"} | set(LISTS)
)
"""Any other key is an annotation."""
_FORMATS: Final = frozenset(
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
)
_OBJECT_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "additionalProperties", "propertyNames"}
)
_IS: Final[Mapping[str, Callable[[object], bool]]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def usable_schema(schema: object, *, closed: bool = True) -> Any:
    """The schema for the library. `closed`: objects have no properties, and tuples no items, that
    it does not name.

    Raises:
        GrammarError: a part of it would not be enforced; says where.
    """
    return _Rewriting(schema, closed).usable(schema, "", 0)


def subschemas(schema: object, path: str = "") -> list[tuple[str, Any]]:
    """The schemas directly in a schema, with their places."""
    parts: list[tuple[str, Any]] = []
    if isinstance(schema, dict):
        _replaced(schema, path, lambda part, place: parts.append((place, part)))
    return parts


def at(path: str, key: str) -> str:
    """The place of a keyword of the schema at `path`."""
    return f"{path}.{key}" if path else key


def refused(place: str, value: object, allowed: str, why: str = "is not allowed") -> GrammarError:
    """The error for a keyword's value."""
    return GrammarError(f"{place}: {shown_json(value)} {why}; allowed: {allowed}")


class _Rewriting:
    """Of one schema."""

    def __init__(self, root: object, closed: bool) -> None:
        self._root = root
        self._closed = closed

    def usable(self, schema: object, path: str, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise GrammarError(f"the schema is nested too deeply; allowed: {MAX_DEPTH} deep")
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise refused(path or "the schema", schema, "an object, true or false", "is no schema")
        _refuse_unimplemented(schema, path)
        self._refuse_reference(schema.get("$ref"), path)
        usable = _with_names(_typed(_without_annotations(schema)), path)
        usable = _replaced(usable, path, lambda part, place: self.usable(part, place, depth + 1))
        if "oneOf" in usable:  # beside anyOf it has been refused
            usable["anyOf"] = usable.pop("oneOf")
        return self._complete(usable, path)

    def _complete(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """With every required name among the properties, and closed."""
        properties = schema.get("properties", {})
        missing = [name for name in _list(schema, "required") if name not in properties]
        others = schema.get("additionalProperties", True)
        if missing and others is False and "patternProperties" not in schema:
            allowed = "names of properties, where additionalProperties is false"
            raise refused(at(path, "required"), missing[0], allowed)
        if missing and isinstance(properties, dict) and "patternProperties" not in schema:
            schema = schema | {"properties": properties | dict.fromkeys(missing, others)}
        if self._closed and schema.keys() & {"properties", "patternProperties"}:
            schema.setdefault("additionalProperties", False)
        if self._closed and "prefixItems" in schema:
            schema.setdefault("items", False)
        return schema

    def _refuse_reference(self, reference: object, path: str) -> None:
        """Only what keywords lead to is rewritten and checked."""
        if not (isinstance(reference, str) and reference.startswith("#/")):
            return  # the library says what is wrong with others
        left = iter(reference[2:].split("/"))
        for step in left:
            if step in MAPS or step in LISTS:
                next(left, None)
            elif step not in SCHEMAS:
                allowed = "a reference through keywords, such as #/$defs/name"
                why = "leads through what is no keyword"
                raise refused(at(path, "$ref"), reference, allowed, why)


def _refuse_unimplemented(schema: Mapping[str, Any], path: str) -> None:
    for key in sorted(schema.keys() & IGNORED):
        if schema[key] is not False or key not in _RESTRICTS_NOTHING:
            raise _unimplemented(schema, path, key, "leaving it out")
    if isinstance(parts := schema.get("allOf"), list) and len(parts) > 1:
        raise _unimplemented(schema, path, "allOf", "a list of one schema")
    properties = schema.get("properties", {})
    if isinstance(properties, dict) and len(properties) > MAX_PROPERTIES:
        raise refused(at(path, "properties"), len(properties), f"at most {MAX_PROPERTIES} of them")
    step = schema.get("multipleOf", 1)
    if not (_IS["number"](step) and 0 < step <= MAX_MULTIPLE):
        raise refused(at(path, "multipleOf"), step, f"a number above 0, to {MAX_MULTIPLE}")
    least = schema.get("minProperties", 0)
    if _IS["integer"](least) and least > 1 and schema.get("additionalProperties") is not False:
        # The same additional name may come twice, and then counts twice.
        allowed = "0 or 1; more beside additionalProperties: false"
        raise _unimplemented(schema, path, "minProperties", allowed)
    _refuse_beside(schema, path)


def _refuse_beside(schema: Mapping[str, Any], path: str) -> None:
    """Refuses restrictions beside a keyword of `ALONE`."""
    first = next((key for key in ALONE if key in schema), None)
    if first is None:
        return
    others = (schema.keys() & RESTRICTING) - {first}
    allowed = "in each part" if first in LISTS else f"{first} alone"
    if first in ("const", "enum"):
        allowed = f"{first} alone, or with a type of all its values"
        values = [schema[first]] if first == "const" else _list(schema, first)
        if all(_has_type(value, schema.get("type", ())) for value in values):
            others -= {"type"}
    if others:
        raise _unimplemented(schema, path, min(others), allowed, first)


def _unimplemented(
    schema: Mapping[str, Any], path: str, key: str, allowed: str, beside: str = ""
) -> GrammarError:
    why = f"beside {beside} is not implemented" if beside else "is not implemented"
    return refused(at(path, key), schema[key], allowed, why)


def _has_type(value: object, kinds: object) -> bool:
    names = kinds if isinstance(kinds, list | tuple) else [kinds]
    return any(isinstance(kind, str) and kind in _IS and _IS[kind](value) for kind in names)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _without_annotations(schema: dict[str, Any]) -> dict[str, Any]:
    """Only what the library has to know; it refuses some keys that say nothing."""
    kept = {
        key: value
        for key, value in schema.items()
        if (key in RESTRICTING and key not in IGNORED) or key in MAPS
    }
    if isinstance(kept.get("format"), str) and kept["format"] not in _FORMATS:
        del kept["format"]
    for key, same in (
        ("unevaluatedProperties", "additionalProperties"),
        ("unevaluatedItems", "items"),
    ):
        if key in kept:
            kept.setdefault(same, kept.pop(key))
            kept.pop(key, None)
    if isinstance(pattern := kept.get("pattern"), str):
        kept["pattern"] = whole(pattern)
    return kept


def whole(pattern: str) -> str:
    """A pattern that describes the whole string, which JSON Schema's need not."""
    body = pattern.removeprefix("^")
    if body.endswith("$") and (len(body) - len(body[:-1].rstrip("\\"))) % 2:
        body = body[:-1]
    return f"^(?:{body})$"


def _typed(schema: dict[str, Any]) -> dict[str, Any]:
    """With the types that its keywords apply to, if it has none; objects and arrays of which it
    says nothing have any contents."""
    if any(key in schema for key in ALONE):
        return schema
    implied = sorted({_IMPLIED[key] for key in schema.keys() & _IMPLIED.keys()})
    typed = schema | ({"type": implied} if implied and "type" not in schema else {})
    kinds = typed.get("type")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds)
    if is_object and not schema.keys() & _OBJECT_KEYWORDS:
        typed["additionalProperties"] = True
    return typed


def _with_names(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """With `propertyNames` as the properties that it names, or as a pattern of them."""
    names = schema.pop("propertyNames", True)
    if names is True or names == {} or names == {"type": "string"}:
        return schema
    allowed = 'with a "pattern" or an "enum" of names, beside nothing but additionalProperties'
    place, others = at(path, "propertyNames"), schema.pop("additionalProperties", True)
    if not isinstance(names, dict) or schema.keys() & (_OBJECT_KEYWORDS | {"required"}):
        raise refused(place, names, allowed, "is not implemented")
    restrictions = {
        key: value for key, value in names.items() if key in RESTRICTING and key != "type"
    }
    kind = "string" if names.get("type", "string") == "string" else None
    match restrictions:
        case {"pattern": str(pattern), **rest} if kind and not rest:
            fits = {"patternProperties": {whole(pattern): others}}
        case {"enum": [*listed], **rest} if kind and not rest and all(map(_IS["string"], listed)):
            fits = {"properties": dict.fromkeys(listed, others)}
        case {"const": str(name), **rest} if kind and not rest:
            fits = {"properties": {name: others}}
        case _:
            raise refused(place, names, allowed, "is not implemented")
    return schema | fits | {"additionalProperties": False}


def _replaced(
    schema: dict[str, Any], path: str, replace: Callable[[Any, str], Any]
) -> dict[str, Any]:
    """With what `replace` returns of each schema directly in it and its place."""
    result = dict(schema)
    for key, value in schema.items():
        place = at(path, key)
        if key in SCHEMAS:
            result[key] = replace(value, place)
        elif key in LISTS and isinstance(value, list):
            result[key] = [replace(part, f"{place}[{i}]") for i, part in enumerate(value)]
        elif key in MAPS and isinstance(value, dict):
            result[key] = {name: replace(part, f"{place}.{name}") for name, part in value.items()}
    return result
