"""Reads JSON from growing text, and calls written as JSON objects.

Finds where values end; does not validate them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from sluice_runtime.server.fields import json_within
from sluice_runtime.server.tools.calls import Calls
from sluice_runtime.server.tools.source import Reading, Source

_ARGUMENTS: Final = ("arguments", "parameters")
_CLOSING: Final = ",}]"


def read_call(source: Source, calls: Calls, names: Collection[str] | None = None) -> Reading[bool]:
    """Reads an object of `name` and `arguments` and reports it as it comes; returns whether it was
    a call. `names`: the allowed names; None: any."""
    if not (yield from source.take("{")):
        return False
    name, early, reported = "", "", False
    while (key := (yield from _key(source))) is not None:
        if key == "name":
            name = (yield from _string(source)) or ""
            if not name or (names is not None and name not in names):
                return reported
        elif key in _ARGUMENTS and not (reported or early):
            if (yield from source.peek()) != "{":
                return False
            reported = bool(name) and _report(calls, name)
            parts: list[str] = []
            if not (yield from read_object(source, calls.arguments if reported else parts.append)):
                return reported
            early = "".join(parts)
        else:
            yield from _value(source)
        yield from source.skip_space()
        if not (yield from source.take(",")):
            break
    closed = yield from source.take("}")
    return reported or (closed and bool(name) and _report(calls, name, early or "{}"))


def read_object(source: Source, sink: Callable[[str], None]) -> Reading[bool]:
    """Passes on an object or a list as it comes; returns whether it is complete."""
    depth, quoted, escaped = 0, False, False
    while (yield from source.peek()):
        part = source.rest()
        for number, character in enumerate(part, 1):
            if quoted:
                quoted = escaped or character != '"'
                escaped = character == "\\" and not escaped
            elif character == '"':
                quoted = True
            elif character in "{[":
                depth += 1
            elif character in "}]":
                depth -= 1
                if depth == 0:
                    sink(part[:number])
                    source.advance(number)
                    return True
        sink(part)
        source.advance(len(part))
    return False


def _report(calls: Calls, name: str, arguments: str = "") -> bool:
    calls.begin(name)
    calls.arguments(arguments)
    return True


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
    """The value of a string; None if no complete string comes next."""
    if not (yield from source.take('"')):
        return None
    raw, escaped = '"', False
    while character := (yield from source.peek()):
        raw += character
        source.advance(1)
        if character == '"' and not escaped:
            return _decoded(raw)
        escaped = character == "\\" and not escaped
    return None


def _decoded(raw: str) -> str | None:
    try:
        return str(json_within(raw))
    except ValueError:
        return None


def _value(source: Source) -> Reading[None]:
    """Reads a value of any type."""
    character = yield from source.peek()
    if character == '"':
        yield from _string(source)
    elif character and character in "{[":
        yield from read_object(source, lambda part: None)
    else:
        yield from source.take_while(lambda character: character not in _CLOSING)
