"""Values to try on a schema: most fit it, some nearly, and a few are anything."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from llguidance import LLMatcher

from tests.runtime.grammar.drawing import accepts

NAMES = ["a", "b", "c d", 'e"f', "px", "z"]
TEXTS = ["", "a", "aa", "b", "ab", "ba", "xz", "12", "a b", "é", "a@b.c", 'q"\nz', "x-1", "aaaaa"]
SIMPLE: list[Any] = [None, True, False, 0, 1, 2, 3, -4, 6, 9, 12, 0.5, 2.5, -1.25, [], {}, *TEXTS]
MAX_SPELLINGS = 2_000


def value_for(schema: Any, draw: random.Random, depth: int = 0) -> Any:
    """A value that may fit a schema."""
    if not isinstance(schema, dict) or depth > 4 or draw.random() < 0.06:
        return draw.choice(SIMPLE)
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values and draw.random() < 0.9:
        return draw.choice(values)
    merged = dict(schema)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            merged = _merged(merged, draw.choice(schema[key]))
    for part in schema.get("allOf", ()):
        merged = _merged(merged, part)
    if merged.get("$ref", "").startswith("#/$defs/"):
        merged = _merged(merged, {"type": "boolean"})
    if merged != schema:
        merged = {key: merged[key] for key in merged.keys() - {"anyOf", "oneOf", "allOf", "$ref"}}
        return value_for(merged, draw, depth + 1)
    kinds = schema.get("type", [])
    kind = draw.choice(kinds if isinstance(kinds, list) and kinds else [kinds])
    return _of_kind(kind, schema, draw, depth)


def _merged(schema: dict[str, Any], part: Any) -> dict[str, Any]:
    if not isinstance(part, dict):
        return schema
    properties = schema.get("properties", {}) | part.get("properties", {})
    required = [*schema.get("required", []), *part.get("required", [])]
    merged = schema | part
    if properties:
        merged["properties"] = properties
    return merged | ({"required": required} if required else {})


def _of_kind(kind: Any, schema: dict[str, Any], draw: random.Random, depth: int) -> Any:
    match kind:
        case "object":
            properties = schema.get("properties", {})
            names = {name for name in properties if draw.random() < 0.6}
            names |= {name for name in schema.get("required", ()) if draw.random() < 0.95}
            names |= set(draw.sample(NAMES, draw.choice([0, 0, 0, 1, 2])))
            names = set(draw.sample(sorted(names), min(3, len(names))))
            others = schema.get("additionalProperties", {})
            return {
                name: value_for(properties.get(name, others), draw, depth + 1) for name in names
            }
        case "array":
            first = schema.get("prefixItems", [])
            count = draw.choice([schema.get("minItems", 0), len(first), 0, 1, 2, 3])
            items = [*first, *[schema.get("items", {})] * 5][: min(count, 5)]
            return [value_for(item, draw, depth + 1) for item in items]
        case "string":
            return draw.choice(TEXTS)
        case "integer" | "number":
            step = schema.get("multipleOf", 1)
            number = draw.randint(-12, 12) * draw.choice([step, 1])
            number = number if kind == "integer" or draw.random() < 0.7 else number + 0.5
            return int(number) if number == int(number) else number
        case "boolean":
            return draw.random() < 0.5
        case "null":
            return None
    return draw.choice(SIMPLE)


def spellings(value: Any) -> Iterator[str]:
    """The value in JSON, with the properties of objects in every order."""
    if isinstance(value, dict):
        for order in itertools.permutations(value):
            parts = [[f"{_json(key)}:{text}" for text in spellings(value[key])] for key in order]
            yield from ("{" + ",".join(texts) + "}" for texts in itertools.product(*parts))
    elif isinstance(value, list):
        parts = [list(spellings(item)) for item in value]
        yield from ("[" + ",".join(texts) + "]" for texts in itertools.product(*parts))
    else:
        yield _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def allows(matcher: LLMatcher, value: Any) -> bool:
    """Whether an answer may be the value: the order of properties is the grammar's."""
    texts = itertools.islice(spellings(value), MAX_SPELLINGS)
    return any(accepts(matcher, list(text.encode())) for text in texts)


def tried(schema: Any, draw: random.Random, count: int) -> Sequence[Any]:
    return [value_for(schema, draw) for _ in range(count)]
