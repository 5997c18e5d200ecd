"""JSON schemas as clients send them: what each keyword that is honoured does, and some nesting."""

from __future__ import annotations

from typing import Any


def record(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


SHORT = {"type": "string", "maxLength": 6}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}

SCHEMAS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "const": {"const": "only this"},
    "enum": {"enum": ["red", 7, None, {"a": [1]}]},
    "enum of strings": {"type": "string", "enum": ["north", "south"]},
    "bounded integer": {"type": "integer", "minimum": -5, "maximum": 1200},
    "open interval": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "number": {"type": "number", "minimum": 0, "maximum": 10},
    "short string": SHORT,
    "long enough": {"type": "string", "minLength": 3, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "time"},
    "date-time": {"type": "string", "format": "date-time"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "uuid": {"type": "string", "format": "uuid"},
    "empty object": record(),
    "record": record(name=SHORT, age=DIGIT),
    "optional": record("a", a=DIGIT, b={"type": "boolean"}),
    "nested": record(outer=record(inner=record(value=DIGIT))),
    "array": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 4},
    "array of records": {"type": "array", "items": record(x=DIGIT), "minItems": 1, "maxItems": 3},
    "matrix": {
        "type": "array",
        "items": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2},
        "minItems": 2,
        "maxItems": 2,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [DIGIT, {"type": "boolean"}],
        "items": False,
        "minItems": 2,
        "maxItems": 2,
    },
    "any of": {"anyOf": [{"type": "boolean"}, record(x=DIGIT)]},
    "one of": {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, record(x=DIGIT)]},
    "one of references": {
        "$defs": {"a": record(kind={"const": "a"}, x=DIGIT), "b": record(kind={"const": "b"})},
        "discriminator": {"propertyName": "kind", "mapping": {"a": "#/$defs/a", "b": "#/$defs/b"}},
        "oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
    },
    "several types": {"type": ["integer", "null"], "minimum": 0, "maximum": 99},
    "definition": {"$defs": {"point": record(x=DIGIT, y=DIGIT)}, "$ref": "#/$defs/point"},
    "definition in a list": {
        "$defs": {"color": {"enum": ["r", "g", "b"]}},
        "type": "array",
        "items": {"$ref": "#/$defs/color"},
        "minItems": 1,
        "maxItems": 3,
    },
    "map": {
        "type": "object",
        "additionalProperties": DIGIT,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "nullable": record(note={"anyOf": [SHORT, {"type": "null"}]}),
    "titles": {"title": "T", "description": "d", "type": "boolean", "default": True},
}
