"""Keys that are no keywords are annotations, as JSON Schema has it."""

from __future__ import annotations

import json
from datetime import date
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from sluice_runtime.grammar.constraint import refuse_unusable
from sluice_runtime.grammar.json_schema import usable_schema

ANNOTATED: dict[str, Any] = {
    "$comment": "c", "$vocabulary": {}, "$type": "t", "@type": "Person", "_enum": ["a"], "id": "i",
    "title": "t", "examples": [1], "default": 1, "deprecated": True, "readOnly": True,
    "contentEncoding": "base64", "contentMediaType": "image/png", "externalDocs": {}, "xml": {},
    "x-enum": ["a"], "x_items": {}, "x-enum-varnames": ["A"], "enumNames": ["A"],
    "enumDescriptions": ["a"], "markdownDescription": "m", "errorMessage": "e", "note": True,
    "notes": ["n"], "cost": 1, "ref": "r", "item": {}, "kind": "k", "unit": "m", "min": 0, "max": 9,
    "propertyOrdering": ["a"], "propertyName": "p", "types": "t", "formats": ["a"],
    "requiredWhen": {"a": 1}, "requires": "login", "patternErrorMessage": "p",
    "defaultSnippets": [], "tsType": "string", "optional": True,
    "ui:order": ["a"], "maxLines": 3, "maxTokens": 5, "formatMinimum": "a", "propertyOrder": 1,
    "when": {}, "subtype": "s", "content": {}, "contents": {}, "options": ["a"], "value": 1,
    "requierd": ["a"],
}  # fmt: skip
"""Annotations of other tools, and a misspelt keyword."""


def test_what_is_no_keyword_is_an_annotation() -> None:
    for schema in ({"type": "string"}, {"$ref": "#/$defs/a", "$defs": {"a": {"enum": [1]}}}):
        assert usable_schema(schema | ANNOTATED) == schema


class Colour(Enum):
    RED = "red"


class Node(BaseModel):
    """A schema as pydantic writes them."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "a"}]})
    name: str = Field(max_length=5, description="d")
    colour: Colour | None = None
    next: Node | None = None
    kind: Literal["a"] = Field(default="a", deprecated=True)
    sizes: dict[str, list[int]] = Field(default={}, title="S")
    when: date | None = None
    pair: tuple[int, str] = Field(repr=False)


COOKBOOK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "steps": {"type": "array", "items": {"$ref": "#/$defs/step"}},
        "ui": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        "final_answer": {"type": "string"},
    },
    "$defs": {
        "step": {
            "type": "object",
            "properties": {"explanation": {"type": "string"}, "output": {"type": "string"}},
            "required": ["explanation", "output"],
            "additionalProperties": False,
        }
    },
    "required": ["steps", "ui", "final_answer"],
    "additionalProperties": False,
}
"""As OpenAI's guide to structured outputs writes them."""


@pytest.mark.parametrize(
    "schema",
    [
        COOKBOOK,
        Node.model_json_schema(),
        TypeAdapter(list[Node]).json_schema(),
        Node.model_json_schema(mode="serialization"),
    ],
)
def test_schemas_as_they_are_written_elsewhere_are_taken(schema: Any) -> None:
    refuse_unusable("json_schema", json.dumps(usable_schema(schema)))
