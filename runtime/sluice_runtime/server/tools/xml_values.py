"""Arguments written as plain text between tags, converted to JSON of the type in the schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from sluice_runtime.server.tools.calls import Calls
from sluice_runtime.server.tools.source import Reading, Source

END: Final = "</parameter>"
_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling, which models use."""
_NO_JSON: Final = ("NaN", "Infinity", "-Infinity")


def read_value(
    source: Source, calls: Calls, separator: str, key: str, schema: object
) -> Reading[bool]:
    """Passes on one argument, a string as it comes; returns whether it is complete."""
    lead = f"{separator}{_text(key)}: "
    kinds = kinds_of(schema)
    yield from source.take("\n")
    if kinds == {"string"}:
        calls.arguments(f'{lead}"')
        end = yield from source.until(
            [END], lambda part: calls.arguments(_text(part)[1:-1]), _without_line_end
        )
        calls.arguments('"' if end else "")
        return end is not None
    parts: list[str] = []
    if (yield from source.until([END], parts.append, _without_line_end)) is None:
        return False
    calls.arguments(lead + as_json("".join(parts), kinds))
    return True


def kinds_of(schema: object) -> set[str]:
    """The types that a schema allows; empty: it names none."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {str(kind) for kind in _list(schema, "type")}
    for part in (*_list(schema, "anyOf"), *_list(schema, "oneOf")):
        kinds |= kinds_of(part)
    values = _list(schema, "enum")
    if not kinds and values and all(isinstance(value, str) for value in values):
        return {"string"}
    return kinds


def as_json(text: str, kinds: set[str]) -> str:
    """The text as JSON of one of `kinds`; a string if it fits none."""
    word = _LITERALS.get(text.strip(), text.strip())
    if "string" in kinds and not ("null" in kinds and word == "null"):
        return _text(text)
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return _text(text)
    return _text(text) if word in _NO_JSON else word


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n")
