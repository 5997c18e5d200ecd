"""Restricts the schema of a function's parameters to objects, because calls can carry nothing else;
pure.

A schema without a type becomes a schema of objects, and alternatives of other types are left out.
Schemas that no object fits and invalid schemas raise different errors, which name the place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.schema_keywords import IS_OF_TYPE, MAX_DEPTH, RESTRICTING, target_of

_OBJECT: Final = '"object"'
_REFERRED: Final = "a reference to a schema of an object"
_MAX_SHOWN: Final = 60

Schema = Mapping[str, Any]


class NoObjectError(GrammarError):
    """A schema's values include no object."""


def object_schema(schema: Schema, path: str) -> dict[str, Any]:
    """`schema`, restricted to objects.

    Raises:
        NoObjectError: no object fits the schema; names `path`, the value and what is allowed.
        GrammarError: the schema is not valid; names path, value and what is allowed.
    """
    root = schema
    schema = _target(schema, path, root)
    return _restricted(schema, path, root) | {
        key: root[key] for key in ("$defs", "definitions") if key in root
    }


def _target(schema: Schema, path: str, root: Schema) -> Schema:
    """The schema to which a chain of references leads, if each schema on the way has only its
    reference."""
    seen = set[str]()
    while _is_reference(schema):
        _check_type(schema, path)
        reference = schema["$ref"]
        target = target_of(reference, root)
        if target is False:
            raise NoObjectError(_text(f"{path}.$ref", reference, _REFERRED))
        if not (target is True or isinstance(target, Mapping)) or reference in seen:
            raise GrammarError(_text(f"{path}.$ref", reference, _REFERRED))
        seen.add(reference)
        schema = target if isinstance(target, Mapping) else {}
    return schema


def _restricted(schema: Schema, path: str, root: Schema, depth: int = 0) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        raise GrammarError(f"{path[:_MAX_SHOWN]}…: nested too deeply; allowed: {MAX_DEPTH} deep")
    _check_type(schema, path)
    result: dict[str, Any] = dict(schema)
    rest = {key: value for key, value in schema.items() if key != "type"}
    for key in ("enum", "const", "anyOf", "oneOf", "allOf"):
        if key in schema:
            result = rest = rest | {key: _objects(key, schema[key], f"{path}.{key}", root, depth)}
    return result if "$ref" in result or result is rest else result | {"type": "object"}


def _objects(key: str, given: Any, path: str, root: Schema, depth: int) -> Any:
    """A keyword's values or schemas, without those that are not objects."""
    if key == "const":
        if not isinstance(given, Mapping):
            raise NoObjectError(_text(path, given, "an object"))
        return given
    if not isinstance(given, list):
        raise GrammarError(_text(path, given, "a list with one that is an object"))
    parts = list(enumerate(given))
    kept: list[Any] = []
    if key == "enum":
        kept = [part for _, part in parts if isinstance(part, Mapping)]
    elif key == "allOf":
        kept = [_alternative(part, f"{path}[{i}]", root, depth + 1) for i, part in parts]
    else:
        kept = [
            _alternative(part, f"{path}[{i}]", root, depth + 1)
            for i, part in parts
            if not _is_none(part, root)
        ]
    if not kept:
        raise NoObjectError(_text(path, given, "one that is an object"))
    return kept


def _alternative(part: object, path: str, root: Schema, depth: int) -> dict[str, Any]:
    """One alternative, restricted to objects. A reference stays, with type "object" added if its
    target has no type."""
    if part is True:
        return {"type": "object"}
    if not isinstance(part, Mapping):
        error = NoObjectError if part is False else GrammarError
        raise error(_text(path, part, "a schema of an object"))
    if not _is_reference(part):
        return _restricted(part, path, root, depth)
    target = _target(part, path, root)
    _check_type(target, f"{path}.$ref")
    reference = {key: value for key, value in part.items() if key != "type"}
    return reference if target.get("type") == "object" else reference | {"type": "object"}


def _is_none(part: object, root: Schema) -> bool:
    """Whether no object fits the schema, by its type or its reference's target."""
    if isinstance(part, Mapping) and _is_reference(part):
        try:
            part = _target(part, "", root)
        except NoObjectError:
            return True
        except GrammarError:
            return False
    if not isinstance(part, Mapping):
        return part is False
    if "enum" in part and isinstance(part["enum"], list):
        return not any(isinstance(value, Mapping) for value in part["enum"])
    if "const" in part:
        return not isinstance(part["const"], Mapping)
    return "type" in part and _is_known(part["type"]) and not _may_be_object(part["type"])


def _is_reference(schema: Schema) -> bool:
    """Whether a schema is only a reference, to a place in the schema; `usable_schema` refuses other
    references."""
    reference = schema.get("$ref")
    return (
        isinstance(reference, str)
        and reference.startswith("#")
        and not schema.keys() & (RESTRICTING - {"$ref", "type"})
    )


def _check_type(schema: Schema, path: str) -> None:
    if "type" in schema and not _may_be_object(kind := schema["type"]):
        error = NoObjectError if _is_known(kind) else GrammarError
        raise error(_text(f"{path}.type", kind, _OBJECT))


def _may_be_object(kind: object) -> bool:
    return kind == "object" or (isinstance(kind, list) and "object" in kind)


def _is_known(kind: object) -> bool:
    """Whether `kind` is a JSON type or a list of types."""
    kinds = kind if isinstance(kind, list) else [kind]
    return all(isinstance(name, str) and name in IS_OF_TYPE for name in kinds)


def _text(path: str, value: object, allowed: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    cut = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
    return f"{path}: {cut} is not allowed; allowed: {allowed}"
