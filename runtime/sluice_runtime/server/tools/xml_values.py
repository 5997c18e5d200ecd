"""Reads arguments written as plain text between tags, and converts each to JSON of its schema's
type."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from sluice_runtime.grammar.schema_keywords import target_of
from sluice_runtime.server.fields import json_within
from sluice_runtime.server.tools.calls import MAX_NAME_CHARACTERS, Calls
from sluice_runtime.server.tools.json_calls import whole_json
from sluice_runtime.server.tools.source import CallSource, Lookahead, Reading

PARAMETER: Final = "<parameter="
END: Final = "</parameter>"
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
_STOPS: Final = (END, PARAMETER, FUNCTION_END, CALL_END, CALL, FUNCTION)
_STOP: Final = re.compile("|".join(_STOPS))
_CLOSING: Final = re.compile(rf"(\s|{FUNCTION_END}|{CALL_END})*")
_LITERALS: Final = {"True": "true", "False": "false", "None": "null"}
"""Python's spellings, which models use too, and JSON's."""
_BRACKETS: Final = {"{": "object", "[": "array", "(": "array"}
_KEYWORDS: Final = {"properties": "object", "items": "array"}
"""Type to assume for a schema without one, by a keyword it has."""

_MAX_DEPTH: Final = 150
"""Depth of nested schemas to which an argument's types are looked for."""


def read_value(
    source: CallSource, calls: Calls, lead: str, kinds: set[str], names: Collection[str]
) -> Reading[bool]:
    """Reads one argument and reports `lead` and its value, a string while it is read; returns
    whether it is complete.

    It ends at its closing tag, or at the next parameter's tag if that is missing. `names`: the
    call's parameters; a tag that names one of them is never part of the text.
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


def _text(source: CallSource, sink: Callable[[str], None], names: Collection[str]) -> Reading[bool]:
    """Passes on the text of a value, without the line end before its closing tag; returns whether
    the value was complete."""
    is_first = True
    while True:
        stop = source.find(_STOP)
        if stop is None:
            held = source.possible_start(_STOPS)
            text = _without_line_end(source.ahead(source.available - held))
            if source.ended and held == 1 and not source.cut:  # the "<" begins no tag after all
                text = source.rest()
            sink(text)
            source.advance(source.available if source.ended else len(text))
            source.mark()
            if source.ended:
                return not source.cut
            is_first = is_first and not text
            yield
            continue
        begin, tag = stop
        text = _without_line_end(source.ahead(begin))
        sink(text)
        source.advance(len(text))
        source.mark()
        begin -= len(text)
        if tag == END:
            source.advance(begin + len(END))
            return True
        begins_line = begin > 0 or (is_first and not text)
        inside = yield from _text_after(source, begin, tag, names, begins_line=begins_line)
        if inside is None:
            return True
        sink(source.ahead(inside - source.position))
        source.advance(inside - source.position)
        is_first = False


def _text_after(
    source: CallSource, begin: int, tag: str, names: Collection[str], *, begins_line: bool
) -> Reading[int | None]:
    """Decides on a tag found after `begin` characters of a value: the position up to which the
    value goes on, or None if the tag ends the value."""
    start = source.position
    at = start + begin + len(tag)
    source.advance(begin + len(tag))
    if tag == PARAMETER:
        name = yield from _name(source, _is_of_name, names)
        following = yield from source.peek()
        source.go_back(start)
        is_tag = following == ">" and (begins_line or name in names)
        return None if is_tag or (not following and begins_line) else at
    known = source.lookaheads.get(END)
    if known is None or not known.begin <= at <= known.reached:
        end = yield from _search_end(source, names)
        known = source.lookaheads[END] = Lookahead(at, source.position, end)
    source.go_back(start)
    if known.end is None or (source.ended and known.end - start == source.available):
        is_text = known.end is not None and source.cut and not _CLOSING.fullmatch(source.rest())
        return known.end if is_text else None
    return start + len(_without_line_end(source.ahead(known.end - start)))


def _search_end(source: CallSource, names: Collection[str]) -> Reading[int | None]:
    """Position of the next closing tag, or of the end of the text if there is none; None if another
    parameter's tag comes first."""
    while (yield from source.skip_to([END, PARAMETER])) == PARAMETER:
        position = source.position
        source.advance(len(PARAMETER))
        yield from _name(source, _is_of_spelled_name, names)
        if (yield from source.peek()) == ">":
            source.go_back(position)
            return None
    return source.position


def _name(
    source: CallSource, belongs: Callable[[str], bool], names: Collection[str]
) -> Reading[str]:
    """Reads the name in a parameter's tag, at most as long as a name may be or the longest of
    `names` is."""
    name = yield from source.take_while(belongs, MAX_NAME_CHARACTERS)
    if len(name) < MAX_NAME_CHARACTERS:
        return name
    more = max(0, max(map(len, names), default=0) - MAX_NAME_CHARACTERS)
    return name + (yield from source.take_while(belongs, more))


def _is_of_name(character: str) -> bool:
    return character not in "<>\n"


def _is_of_spelled_name(character: str) -> bool:
    """Whether a parameter's name may contain this character in a tag that may be part of the text,
    for example quoted."""
    return character not in "<>\n\"'{}[]"


def kinds_of(
    schema: object, root: object = None, seen: set[str] | None = None, depth: int = 0
) -> set[str]:
    """The types that a schema allows; empty if it names none. `root`: the schema that references
    are relative to; `seen`: references already followed; `depth`: number of schemas around this
    one."""
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
    """The text as JSON of one of `kinds`, or as a string if it fits none of them."""
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
    """The text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _without_line_end(text: str) -> str:
    return text.removesuffix("\n")
