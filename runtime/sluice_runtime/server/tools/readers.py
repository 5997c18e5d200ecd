"""Parsers for the calls of each model family: a generator each, over the text as it comes.

What looks like a call but is none stays text, unless it ends the answer after other calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluice_runtime.server.tools.calls import Calls, Reader
from sluice_runtime.server.tools.json_text import read_call, read_object
from sluice_runtime.server.tools.source import Reading, Source
from sluice_runtime.server.tools.xml_values import read_value

CALL: Final = "<tool_call>"
CALL_END: Final = "</tool_call>"
PYTHON_TAG: Final = "<|python_tag|>"
TOOL_CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"
FUNCTION: Final = "<function="
FUNCTION_END: Final = "</function>"
PARAMETER: Final = "<parameter="


def calls_alone(read: Reader, begins: Sequence[str]) -> Reader:
    """Reads calls if the answer begins like one; otherwise all of it is text."""

    def read_all(source: Source, calls: Calls) -> Reading[None]:
        while not source.ended and _may_begin(source.rest(), begins):
            yield
        if source.rest().startswith(tuple(begins)):
            yield from read(source, calls)
            return
        while True:
            calls.text(source.rest())
            source.advance(len(source.rest()))
            source.mark()
            if source.ended:
                return
            yield

    return read_all


def _may_begin(text: str, begins: Sequence[str]) -> bool:
    """Whether the text may still become the beginning of a call."""
    return any(len(text) < len(begin) and begin.startswith(text) for begin in begins)


def read_hermes(source: Source, calls: Calls) -> Reading[None]:
    """`<tool_call>`, an object of name and arguments, `</tool_call>`."""
    while (yield from source.until([CALL], calls.text)):
        yield from source.skip_space()
        if (yield from read_call(source, calls)):
            yield from source.skip_past(CALL_END)
            source.mark()
        else:
            _no_call(source, calls)


def read_llama3(source: Source, calls: Calls) -> Reading[None]:
    """Objects of name and parameters that begin the answer, or that follow `<|python_tag|>`.

    Their names must be known: an answer may be JSON of its own.
    """
    yield from source.skip_space()
    tag: str | None = PYTHON_TAG if (yield from source.take(PYTHON_TAG)) else ""
    while tag is not None:
        if tag:
            source.mark()
            yield from source.skip_space()
        while (yield from read_call(source, calls, calls.schemas.keys())):
            source.mark()
            yield from source.take_while(lambda character: character.isspace() or character == ";")
        _no_call(source, calls)
        tag = yield from source.until([PYTHON_TAG], calls.text)


def read_mistral(source: Source, calls: Calls) -> Reading[None]:
    """`[TOOL_CALLS]` and a list of objects; or, once for each call, a name and its arguments."""
    while (yield from source.until([TOOL_CALLS], calls.text)):
        yield from source.skip_space()
        if (yield from source.take("[")):
            yield from _read_list(source, calls)
        else:
            yield from _read_named(source, calls)
        _no_call(source, calls)


def read_qwen3_coder(source: Source, calls: Calls) -> Reading[None]:
    """`<function=name>` and a `<parameter=name>` for each argument, in `<tool_call>` or bare."""
    while tag := (yield from source.until([CALL, FUNCTION], calls.text)):
        yield from source.skip_space()
        if tag == FUNCTION or (yield from source.take(FUNCTION)):
            name = yield from source.take_while(_is_of_name)
            if name and (yield from source.take(">")):
                yield from _read_function(source, calls, name)
        _no_call(source, calls)


def _no_call(source: Source, calls: Calls) -> None:
    """Treats what was read since the mark as text."""
    text = source.since_mark()
    if not (calls.begun and (source.ended or text.isspace())):
        calls.text(text)


def _is_of_name(character: str) -> bool:
    return character.isalnum() or character in "_-."


def _read_list(source: Source, calls: Calls) -> Reading[None]:
    separated = True
    while separated:
        yield from source.skip_space()
        if not (yield from read_call(source, calls)):
            return
        source.mark()
        yield from source.skip_space()
        separated = yield from source.take(",")
    yield from source.take("]")
    source.mark()


def _read_named(source: Source, calls: Calls) -> Reading[None]:
    name = yield from source.take_while(_is_of_name)
    if (yield from source.take(CALL_ID)):
        yield from source.take_while(_is_of_name)
    yield from source.take(ARGS)
    yield from source.skip_space()
    if name and (yield from source.peek()) == "{":
        calls.begin(name)
        yield from read_object(source, calls.arguments)
        source.mark()


def _read_function(source: Source, calls: Calls, name: str) -> Reading[None]:
    schema = calls.schemas.get(name, {})
    properties = schema.get("properties") if isinstance(schema, dict) else None
    calls.begin(name)
    calls.arguments("{")
    separator = ""
    yield from source.skip_space()
    while (yield from source.take(PARAMETER)):
        key = yield from source.take_while(lambda character: character not in ">\n")
        yield from source.take(">")
        kind = properties.get(key, {}) if isinstance(properties, dict) else {}
        if not (yield from read_value(source, calls, separator, key, kind)):
            return
        separator = ", "
        yield from source.skip_space()
    calls.arguments("}")
    yield from source.take(FUNCTION_END)
    yield from source.skip_space()
    yield from source.take(CALL_END)
    if source.ended:
        source.advance(len(source.rest()))
    source.mark()
