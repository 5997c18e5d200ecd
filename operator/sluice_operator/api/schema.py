"""Turns a pydantic model into a structural OpenAPI v3 schema, as apiextensions/v1 requires.

Inlines references, and drops titles, nulls and every unmarked default. Defaults that it drops are
stated in the description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]

_DROPPED = frozenset(
    {"title", "default", "x-crd-default", "x-left-out", "x-refuses-null", "propertyNames"}
)


def inlined_schema(model: type[BaseModel]) -> Schema:
    """pydantic's schema of `model` without `$ref` and without null."""
    document = model.model_json_schema(by_alias=True)
    return _inlined(document, document.get("$defs", {}))


def structural_schema(model: type[BaseModel]) -> Schema:
    """The schema of `model` as a CRD may hold it; every field keeps its description."""
    return _structural(inlined_schema(model))


def with_nullable_fields(schema: Schema) -> Schema:
    """`schema` where optional fields may also be null, which means left out. Fields with an enum
    stay as they are, because an API server never finds a null in an enum. It refuses a null of such
    a field in server-side apply, and drops it in all other writes."""
    required = schema.get("required", ())
    properties = {
        name: child if name in required or "enum" in child else child | {"nullable": True}
        for name, child in schema.get("properties", {}).items()
    }
    nullable = schema | {"properties": properties} if properties else schema
    return _with_children(nullable, with_nullable_fields)


def left_out(node: Schema) -> str | None:
    """Words for what holds when a field is left out; None where there is no default."""
    if "x-left-out" in node:
        return str(node["x-left-out"])
    value = node.get("default")
    if value is None or isinstance(value, dict):
        return None
    return value if isinstance(value, str) else json.dumps(value)


def _inlined(node: Schema, definitions: Schema) -> Schema:
    """The node and all below it with references resolved."""
    node = _resolved(_without_null(_resolved(node, definitions)), definitions)
    schema = {key: value for key, value in node.items() if key != "$defs"}
    return _with_children(schema, lambda child: _inlined(child, definitions))


def _structural(node: Schema) -> Schema:
    schema = {key: value for key, value in node.items() if key not in _DROPPED}
    if node.get("x-crd-default"):
        schema["default"] = node["default"]
    if (default := left_out(node)) is not None:
        schema["description"] = f"{node['description']} Default: {default}."
    if node.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        return schema
    if isinstance(schema.get("additionalProperties"), bool):
        # Unknown fields are pruned (and refused by strict clients) by the API server itself.
        del schema["additionalProperties"]
    return _bounds(_with_children(schema, _structural))


def _resolved(node: Schema, definitions: Schema) -> Schema:
    """The node with its own reference resolved; keys next to the reference win."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].rpartition("/")[2]]
    return _resolved(target, definitions) | {k: v for k, v in node.items() if k != "$ref"}


def _without_null(node: Schema) -> Schema:
    """An optional field is one that may be absent, not one that may be null."""
    if "anyOf" not in node or node.get("x-kubernetes-int-or-string"):
        return node
    options = [option for option in node["anyOf"] if option.get("type") != "null"]
    assert len(options) == 1, f"a union is not structural: {node}"
    option: Schema = options[0]
    return option | {k: v for k, v in node.items() if k != "anyOf"}


def _with_children(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    if "properties" in schema:
        properties = {name: change(child) for name, child in schema["properties"].items()}
        schema = schema | {"properties": properties}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            schema = schema | {key: change(schema[key])}
    return schema


def _bounds(schema: Schema) -> Schema:
    if schema.get("minLength") == 1 and not re.search(schema.get("pattern", ""), ""):
        del schema["minLength"]  # The pattern says it, and a CRD has a largest size.
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    return schema
