"""Turns a pydantic model into a structural OpenAPI v3 schema, as apiextensions/v1 wants it.

Inlines references, drops titles, nulls and every default that is not marked, and spells bounds
the OpenAPI way. Knows no model.
"""

from __future__ import annotations

from typing import Any

from sluice_operator.api.base import ApiModel

Schema = dict[str, Any]

_DROPPED = frozenset({"title", "default", "x-crd-default", "$defs", "propertyNames"})


def structural_schema(model: type[ApiModel]) -> Schema:
    """The schema of `model`, without `$ref`; every field keeps its description."""
    document = model.model_json_schema(by_alias=True)
    return _structural(document, document.get("$defs", {}))


def _structural(node: Schema, definitions: Schema) -> Schema:
    node = _without_null(_inlined(node, definitions))
    schema = {key: value for key, value in node.items() if key not in _DROPPED}
    if node.get("x-crd-default"):
        schema["default"] = node["default"]
    if node.get("x-kubernetes-int-or-string"):
        schema.pop("type", None)
        return schema
    return _bounds(_children(schema, definitions))


def _inlined(node: Schema, definitions: Schema) -> Schema:
    """The node with its reference resolved; what stands beside the reference wins."""
    if "$ref" not in node:
        return node
    target = definitions[node["$ref"].rpartition("/")[2]]
    return _inlined(target, definitions) | {k: v for k, v in node.items() if k != "$ref"}


def _without_null(node: Schema) -> Schema:
    """An optional field is one that may be absent, not one that may be null."""
    if "anyOf" not in node or node.get("x-kubernetes-int-or-string"):
        return node
    options = [option for option in node["anyOf"] if option.get("type") != "null"]
    assert len(options) == 1, f"a union is not structural: {node}"
    option: Schema = options[0]
    return option | {k: v for k, v in node.items() if k != "anyOf"}


def _children(schema: Schema, definitions: Schema) -> Schema:
    if "$ref" in schema:
        return _structural(schema, definitions)
    if "properties" in schema:
        schema["properties"] = {
            name: _structural(child, definitions) for name, child in schema["properties"].items()
        }
    if isinstance(schema.get("additionalProperties"), dict):
        schema["additionalProperties"] = _structural(schema["additionalProperties"], definitions)
    elif "additionalProperties" in schema:
        # Unknown fields are pruned (and refused by strict clients) by the API server itself.
        del schema["additionalProperties"]
    if "items" in schema:
        schema["items"] = _structural(schema["items"], definitions)
    return schema


def _bounds(schema: Schema) -> Schema:
    for exclusive, plain in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            schema[plain] = schema[exclusive]
            schema[exclusive] = True
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    return schema
