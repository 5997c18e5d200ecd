"""Reads calls that are JSON objects with a name and arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sluice_runtime.server.fields import json_within
from sluice_runtime.server.tools.calls import MAX_NAME_CHARACTERS, Calls
from sluice_runtime.server.tools.json_strings import QUOTES
from sluice_runtime.server.tools.json_text import JsonReader
from sluice_runtime.server.tools.source import CallSource, Reading

_ARGUMENTS: Final = ("arguments", "parameters")
_NOTHING: Final = ("null", "None")


def read_call(
    source: CallSource,
    calls: Calls,
    marks: tuple[str, ...],
    names: Collection[str] | None = None,
    *,
    in_text: bool = False,
) -> Reading[bool]:
    """Reads an object with `name` and `arguments` and reports the call while it is read; returns
    whether it was a call. `names`: the allowed names; None: any. `in_text`: the object is in free
    text, where it counts as a call only if it has no other keys."""
    if not (yield from source.take("{")):
        return False
    name, early, reported = "", "", False
    while (key := (yield from _key(source))) is not None:
        if key == "name":
            name = (yield from _string(source)) or ""
            if not name or (names is not None and name not in names):
                return reported
        elif key in _ARGUMENTS and not (reported or early):
            if name:
                reported = yield from read_arguments(source, calls, name, marks)
            elif not in_text:
                early = yield from _early_arguments(source, marks)
            if not (reported or early):
                return False
        elif not (yield from _skip_other(source, key, marks, in_text=in_text and not reported)):
            return False
        yield from source.skip_space()
        if not (yield from source.take(",")):
            break
    ends = [mark for mark in marks if mark.startswith("</")]
    closed = (yield from source.take("}")) or (yield from source.at_any(ends))
    if reported or not name or in_text or not (closed or early):
        return reported
    calls.add(name, early or "{}")
    return True


def _skip_other(
    source: CallSource, key: str, marks: tuple[str, ...], *, in_text: bool
) -> Reading[bool]:
    """Reads the value of a key other than a call's name and arguments; returns whether a call may
    have it. In free text that is only OpenAI's `type`, "function"."""
    if in_text:
        return key == "type" and (yield from _string(source)) == "function"
    yield from JsonReader(source, lambda part: None, marks).read("}")
    return True


def read_arguments(
    source: CallSource, calls: Calls, name: str, marks: tuple[str, ...]
) -> Reading[bool]:
    """Reads the arguments that come next and reports a call with this name; returns whether the
    arguments were an object, a string with one, or null."""
    quote = yield from _take_loose_quote(source)
    if (yield from source.peek()) == "{":
        calls.begin(name)
        reader = JsonReader(source, calls.arguments, marks, calls.parameters(name))
        if (yield from reader.read()):
            calls.end()
            yield from source.take(quote)
        return True
    text = yield from _early_arguments(source, marks)
    if text:
        calls.add(name, text)
    return bool(text)


def _early_arguments(source: CallSource, marks: tuple[str, ...]) -> Reading[str]:
    """Reads arguments that may come before the call's name and returns them as the text of an
    object; "" if they are not an object or incomplete."""
    quote = yield from _take_loose_quote(source)
    character = yield from source.peek()
    parts: list[str] = []
    if character == "{":
        whole = yield from JsonReader(source, parts.append, marks).read()
        yield from source.take(quote)
        return "".join(parts) if whole else ""
    for nothing in _NOTHING:
        if (yield from source.take(nothing)):
            return "{}"
    if not character or character not in QUOTES:
        return ""
    if not (yield from JsonReader(source, parts.append, marks).read("}")):
        return ""
    return object_of(json_within("".join(parts)))


def _take_loose_quote(source: CallSource) -> Reading[str]:
    """Reads and returns a quotation mark before an object whose own quotation marks are not
    escaped, as some models write; else returns "" and reads nothing."""
    quote = yield from source.peek()
    if not quote or quote not in QUOTES:
        return ""
    source.advance(1)
    begin = source.position
    yield from source.skip_space()
    at = source.position
    is_object = yield from source.take("{")
    if is_object:
        yield from source.skip_space()
        is_object = (yield from source.peek()) == quote
    source.go_back(at if is_object else begin - 1)
    return quote if is_object else ""


def object_of(text: str, *, cut: bool = False) -> str:
    """A text that is an object, as valid JSON; "{}" for an empty text, "" for any other. `cut`: an
    incomplete object counts as no object."""
    text = text.strip()
    if not text or text in _NOTHING:
        return "{}"
    return whole_json(text, cut=cut) if text.startswith("{") else ""


def whole_json(text: str, *, cut: bool = False) -> str:
    """A text that is JSON in some spelling, as valid JSON; "" if it is not, or if more text
    follows."""
    source = CallSource()
    source.add(text)
    source.ended, source.cut = True, cut
    parts: list[str] = []
    try:
        next(JsonReader(source, parts.append).read())
    except StopIteration as end:
        return "".join(parts) if end.value and not source.rest().strip() else ""
    raise AssertionError("it waits for no more text")


def _key(source: CallSource) -> Reading[str | None]:
    """Reads the next key of an object and the colon after it; None if there is none."""
    yield from source.skip_space()
    key = yield from _string(source)
    yield from source.skip_space()
    if key is None or not (yield from source.take(":")):
        return None
    yield from source.skip_space()
    return key


def _string(source: CallSource) -> Reading[str | None]:
    """Reads a string; None if no complete string comes next, or one that is too long for a name."""
    quote = yield from source.peek()
    if not quote or quote not in QUOTES:
        return None
    source.advance(1)
    raw, escaped = "", False
    while len(raw) <= MAX_NAME_CHARACTERS and (character := (yield from source.peek())):
        source.advance(1)
        if character == quote and not escaped:
            return _decoded(raw)
        raw += character
        escaped = character == "\\" and not escaped
    return None


def _decoded(raw: str) -> str | None:
    try:
        return str(json_within(f'"{raw}"'))
    except ValueError:
        return None
