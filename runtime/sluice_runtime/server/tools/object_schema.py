"""A function's parameters as a schema of objects, which is all that calls can carry; pure.

A schema without a type becomes one of objects, alternatives of other types are left out, and a
schema that no object fits is refused, with its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.schema_keywords import RESTRICTING, target_of

_OBJECT: Final = '"object"'
_REFERRED: Final = 'a reference to a schema of type "object"'
_MAX_SHOWN: Final = 60

Schema = Mapping[str, Any]


def object_schema(schema: Schema, path: str) -> dict[str, Any]:
    """`schema`, restricted to objects.

    Raises:
        GrammarError: no object is one of its values; names `path`, the value and what is allowed.
    """
    root, seen = schema, set[str]()
    while _is_reference(schema):
        _check_type(schema, path)
        reference = schema["$ref"]
        target = target_of(reference, root)
        if not isinstance(target, Mapping) or reference in seen:
            raise _no_object(f"{path}.$ref", reference, _REFERRED)
        seen.add(reference)
        schema = target
    return _restricted(schema, path, root) | {
        key: root[key] for key in ("$defs", "definitions") if key in root
    }


def _restricted(schema: Schema, path: str, root: Schema) -> dict[str, Any]:
    _check_type(schema, path)
    result: dict[str, Any] = dict(schema)
    rest = {key: value for key, value in schema.items() if key != "type"}
    for key in ("enum", "const", "anyOf", "oneOf", "allOf"):
        if key in schema:
            result = rest = rest | {key: _objects(key, schema[key], f"{path}.{key}", root)}
    return result if "$ref" in result or result is rest else result | {"type": "object"}


def _objects(key: str, given: Any, path: str, root: Schema) -> Any:
    """A keyword's values or schemas, without those that are not objects."""
    if key == "const":
        if not isinstance(given, Mapping):
            raise _no_object(path, given, "an object")
        return given
    parts = list(enumerate(given if isinstance(given, list) else []))
    kept: list[Any] = []
    if key == "enum":
        kept = [part for _, part in parts if isinstance(part, Mapping)]
    elif key == "allOf":
        kept = [_alternative(part, f"{path}[{i}]", root) for i, part in parts]
    else:
        kept = [
            _alternative(part, f"{path}[{i}]", root)
            for i, part in parts
            if not _is_none(part, root)
        ]
    if not kept:
        raise _no_object(path, given, "one that is an object")
    return kept


def _alternative(part: object, path: str, root: Schema) -> dict[str, Any]:
    """One alternative, restricted to objects. A reference stays; its target must be an object."""
    if part is True:
        return {"type": "object"}
    if not isinstance(part, Mapping):
        raise _no_object(path, part, "a schema of an object")
    if _is_reference(part):
        target = target_of(part["$ref"], root)
        if not isinstance(target, Mapping) or target.get("type") != "object":
            raise _no_object(f"{path}.$ref", part["$ref"], _REFERRED)
        return {key: value for key, value in part.items() if key != "type"}
    return _restricted(part, path, root)


def _is_none(part: object, root: Schema) -> bool:
    """Whether no object fits it, by its own type or that of its reference's target."""
    if isinstance(part, Mapping) and _is_reference(part):
        part = target_of(part["$ref"], root)
    if not isinstance(part, Mapping):
        return part is False
    if "enum" in part and isinstance(part["enum"], list):
        return not any(isinstance(value, Mapping) for value in part["enum"])
    if "const" in part:
        return not isinstance(part["const"], Mapping)
    return "type" in part and not _may_be_object(part["type"])


def _is_reference(schema: Schema) -> bool:
    """A reference that stands alone and within the schema; `usable_schema` refuses others."""
    reference = schema.get("$ref")
    return (
        isinstance(reference, str)
        and reference.startswith("#")
        and not schema.keys() & (RESTRICTING - {"$ref", "type"})
    )


def _check_type(schema: Schema, path: str) -> None:
    if "type" in schema and not _may_be_object(schema["type"]):
        raise _no_object(f"{path}.type", schema["type"], _OBJECT)


def _may_be_object(kind: object) -> bool:
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _no_object(path: str, value: object, allowed: str) -> GrammarError:
    text = json.dumps(value, ensure_ascii=False)
    cut = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    return GrammarError(f"{path}: {cut} is not allowed; allowed: {allowed}")
