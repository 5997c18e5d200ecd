"""Reads calls that are JSON objects of a name and arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sluice_runtime.server.fields import json_within
from sluice_runtime.server.tools.calls import MAX_NAME_CHARACTERS, Calls
from sluice_runtime.server.tools.json_strings import QUOTES
from sluice_runtime.server.tools.json_text import JsonReader
from sluice_runtime.server.tools.source import Reading, Source

_ARGUMENTS: Final = ("arguments", "parameters")
_NOTHING: Final = ("null", "None")


def read_call(
    source: Source,
    calls: Calls,
    marks: tuple[str, ...],
    names: Collection[str] | None = None,
    *,
    in_text: bool = False,
) -> Reading[bool]:
    """Reads an object of `name` and `arguments` and reports it as it comes; returns whether it was
    a call. `names`: the allowed names; None: any. `in_text`: it stands in a text, where only an
    object that is nothing but a call is one."""
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
    source: Source, key: str, marks: tuple[str, ...], *, in_text: bool
) -> Reading[bool]:
    """Reads the value of a key that is no part of a call; returns whether a call may have it. In a
    text only OpenAI's type of a call may be."""
    if in_text:
        return key == "type" and (yield from _string(source)) == "function"
    yield from JsonReader(source, lambda part: None, marks).read("}")
    return True


def read_arguments(
    source: Source, calls: Calls, name: str, marks: tuple[str, ...]
) -> Reading[bool]:
    """Reports a call of this name with the arguments that come next; returns whether they are an
    object, as JSON, as a text of it, or as null."""
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


def _early_arguments(source: Source, marks: tuple[str, ...]) -> Reading[str]:
    """The text of arguments, an object; "" if they are none, or not complete."""
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


def _take_loose_quote(source: Source) -> Reading[str]:
    """Reads and returns a quotation mark before an object that is not escaped in it."""
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
    """The JSON object that a text is, however it is spelled; "{}" for no text, "" for another.
    `cut`: what is incomplete is none."""
    text = text.strip()
    if not text or text in _NOTHING:
        return "{}"
    return whole_json(text, cut=cut) if text.startswith("{") else ""


def whole_json(text: str, *, cut: bool = False) -> str:
    """The JSON that a text is, however it is spelled; "" if more text follows it."""
    source = Source()
    source.add(text)
    source.ended, source.cut = True, cut
    parts: list[str] = []
    try:
        next(JsonReader(source, parts.append).read())
    except StopIteration as end:
        return "".join(parts) if end.value and not source.rest().strip() else ""
    raise AssertionError("it waits for no more text")


def _key(source: Source) -> Reading[str | None]:
    """The next key of an object, with its colon."""
    yield from source.skip_space()
    key = yield from _string(source)
    yield from source.skip_space()
    if key is None or not (yield from source.take(":")):
        return None
    yield from source.skip_space()
    return key


def _string(source: Source) -> Reading[str | None]:
    """The value of a string; None if no complete string comes next, or one too long for a name."""
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
