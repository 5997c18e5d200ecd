"""Arguments written as plain text between tags, converted to JSON of the type in the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from sluice_runtime.grammar.schema_keywords import target_of
from sluice_runtime.server.fields import json_within
from sluice_runtime.server.tools.calls import Calls
from sluice_runtime.server.tools.json_calls import whole_json
from sluice_runtime.server.tools.source import Reading, Source, possible_start

PARAMETER: Final = "<parameter="
END: Final = "</parameter>"
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
_STOPS: Final = (END, PARAMETER, FUNCTION_END, CALL_END, CALL, FUNCTION)
_STOP: Final = re.compile("|".join(_STOPS))
_PARAMETER: Final = re.compile(rf"{PARAMETER}[^<>\n\"'{{}}\[\]]*>")
_NAME: Final = re.compile(r"[^<>\n]*")
_CLOSING: Final = re.compile(rf"(\s|{FUNCTION_END}|{CALL_END})*")
_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}
"""Python's spelling, which models use."""
_BRACKETS: Final = {"{": "object", "[": "array", "(": "array"}
_KEYWORDS: Final = {"properties": "object", "items": "array"}
"""What a schema is about that names no type."""

_MAX_DEPTH: Final = 150
"""Schemas within each other that the types of an argument are looked for in."""


def read_value(
    source: Source, calls: Calls, lead: str, kinds: set[str], names: Collection[str]
) -> Reading[bool]:
    """Passes on one argument after `lead`, a string as it comes; returns whether it is complete.

    It ends at its own tag, or at the next one where its own is missing. `names`: the call's
    parameters, whose tags are none of its text.
    """
    yield from source.take("\n")
    if kinds == {"string"}:
        calls.arguments(f'{lead}"')
        ended = yield from _text(source, lambda part: calls.arguments(quoted(part)[1:-1]), names)
        calls.arguments('"' if ended else "")
        return ended
    parts: list[str] = []
    if not (yield from _text(source, parts.append, names)):
        return False
    calls.arguments(lead + as_json("".join(parts), kinds))
    return True


def _text(source: Source, sink: Callable[[str], None], names: Collection[str]) -> Reading[bool]:
    """Passes on the text of a value, without the line end around its end; returns whether it
    ended before the text did."""
    is_first = True
    while True:
        rest = source.rest()
        stop = _STOP.search(rest)
        if stop is None:
            held = possible_start(rest, _STOPS)
            text = _without_line_end(rest[: len(rest) - held])
            if source.ended and held == 1 and not source.cut:  # what is no tag after all
                text = rest
            sink(text)
            source.advance(len(rest) if source.ended else len(text))
            source.mark()
            if source.ended:
                return not source.cut
            is_first = is_first and not text
            yield
            continue
        text = _without_line_end(rest[: stop.start()])
        sink(text)
        source.advance(len(text))
        source.mark()
        begin = stop.start() - len(text)
        if stop[0] == END:
            source.advance(begin + len(END))
            return True
        begins_line = begin > 0 or (is_first and not text)
        inside = yield from _text_after(source, begin, stop[0], names, begins_line=begins_line)
        if inside is None:
            return True
        sink(source.rest()[:inside])
        source.advance(inside)
        is_first = False


def _text_after(
    source: Source, begin: int, tag: str, names: Collection[str], *, begins_line: bool
) -> Reading[int | None]:
    """Characters of the value from here on, where a tag comes after `begin` characters; None: the
    value ends before it."""
    at = begin + len(tag)
    if tag == PARAMETER:
        while _name_end(source.rest(), at) == len(source.rest()) and not source.ended:
            yield
        rest = source.rest()
        end = _name_end(rest, at)
        is_tag = rest[end : end + 1] == ">" and (begins_line or rest[at:end] in names)
        return None if is_tag or (end == len(rest) and begins_line) else at
    while True:
        rest = source.rest()
        end = rest.find(END, at)
        parameter = _PARAMETER.search(rest, at, end if end >= 0 else len(rest))
        if parameter is not None:
            return None
        if end >= 0:
            return len(_without_line_end(rest[:end]))
        if source.ended:
            return len(rest) if source.cut and not _CLOSING.fullmatch(rest) else None
        unclear = rest.rfind("<", at)
        at = unclear if unclear >= 0 else len(rest)
        yield


def _name_end(text: str, at: int) -> int:
    name = _NAME.match(text, at)
    assert name is not None, "it matches nothing, too"
    return name.end()


def kinds_of(
    schema: object, root: object = None, seen: set[str] | None = None, depth: int = 0
) -> set[str]:
    """The types that a schema allows; empty: it names none. `root`: where its references lead;
    `seen`: those that were followed; `depth`: of how many schemas it is within."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return set()
    seen = set() if seen is None else seen
    named = schema.get("type")
    kinds = {named} if isinstance(named, str) else {str(kind) for kind in _list(schema, "type")}
    parts = [part for key in ("anyOf", "oneOf", "allOf") for part in _list(schema, key)]
    reference = schema.get("$ref")
    if isinstance(reference, str) and isinstance(root, Mapping) and reference not in seen:
        seen.add(reference)
        parts.append(target_of(reference, root))
    for part in parts:
        kinds |= kinds_of(part, root, seen, depth + 1)
    return kinds or _kinds_without_type(schema)


def _kinds_without_type(schema: Mapping[str, Any]) -> set[str]:
    values = [schema["const"]] if "const" in schema else _list(schema, "enum")
    if any(isinstance(value, str) for value in values):
        others = [value for value in values if not isinstance(value, str)]
        if others in ([], [None]):
            return {"string", "null"} if others else {"string"}
    return {kind for keyword, kind in _KEYWORDS.items() if keyword in schema}


def as_json(text: str, kinds: set[str]) -> str:
    """The text as JSON of one of `kinds`; a string if it fits none."""
    word = _LITERALS.get(text.strip(), text.strip())
    if "string" in kinds and not ("null" in kinds and word == "null"):
        return quoted(text)
    try:
        json_within(word)
    except ValueError:
        mended = whole_json(word) if _BRACKETS.get(word[:1]) in kinds else ""
        return mended or quoted(text)
    return word


def quoted(text: str) -> str:
    """The text as a string of JSON."""
    return json.dumps(text, ensure_ascii=False)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n")
