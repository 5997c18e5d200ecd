"""Parsers for the calls of each model family: a generator each, over the text as it comes.

What looks like a call but is none stays text. Arguments that were begun become an object, whatever
follows; only those of an answer that was cut do not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from sluice_runtime.server.tools.calls import Calls, Reader
from sluice_runtime.server.tools.json_calls import read_arguments, read_call
from sluice_runtime.server.tools.json_text import JsonReader, pass_nested
from sluice_runtime.server.tools.source import Reading, Source
from sluice_runtime.server.tools.xml_values import (
    CALL as CALL,
)
from sluice_runtime.server.tools.xml_values import (
    CALL_END as CALL_END,
)
from sluice_runtime.server.tools.xml_values import (
    END,
    FUNCTION,
    FUNCTION_END,
    PARAMETER,
    kinds_of,
    quoted,
    read_value,
)

PYTHON_TAG: Final = "<|python_tag|>"
TOOL_CALLS: Final = "[TOOL_CALLS]"
CALL_ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"
FENCE: Final = "```"
_HERMES_MARKS: Final = (CALL_END, CALL)
_LLAMA3_MARKS: Final = (PYTHON_TAG,)
_MISTRAL_MARKS: Final = (TOOL_CALLS,)
_QWEN3_CODER_MARKS: Final = (FUNCTION_END, CALL_END)
_JSON: Final = re.compile(r"\s*[{\[]\s*[\"{\[]")


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
    tags = [CALL]
    while tag := (yield from source.until(tags, calls.text)):
        if tag == CALL_END:
            tags = [CALL]
            source.mark()
        elif (yield from _read_objects(source, calls, _HERMES_MARKS)):
            tags = [CALL] if (yield from _take_call_end(source)) else [CALL, CALL_END]
            source.mark()
        else:
            _no_call(source, calls)


def read_llama3(source: Source, calls: Calls) -> Reading[None]:
    """Objects of name and parameters, at the beginning, after `<|python_tag|>` or within a text.

    Their names must be known, since an answer may have JSON of its own; within a text they are
    nothing but a call.
    """
    names = calls.schemas.keys()
    begin: str | None = ""
    while begin is not None:
        in_text = begin not in ("", PYTHON_TAG)
        if in_text:
            source.rewind()
        if not (yield from _read_objects(source, calls, _LLAMA3_MARKS, names, in_text=in_text)):
            yield from _pass_text(source, calls, begin)
        begin = yield from source.until([PYTHON_TAG, FENCE, "{", "["], calls.text)


def read_mistral(source: Source, calls: Calls) -> Reading[None]:
    """`[TOOL_CALLS]` and a list of objects; or, once for each call, a name and its arguments."""
    while (yield from source.until([TOOL_CALLS], calls.text)):
        if not (yield from _read_objects(source, calls, _MISTRAL_MARKS)):
            yield from _read_named(source, calls)
        _no_call(source, calls)


def read_qwen3_coder(source: Source, calls: Calls) -> Reading[None]:
    """`<function=name>` and a `<parameter=name>` for each argument, in `<tool_call>` or bare."""
    tags = begins = [CALL, FUNCTION]
    while tag := (yield from source.until(tags, calls.text)):
        if tag == CALL_END:
            tags = begins
            source.mark()
            continue
        yield from source.skip_space()
        if tag == FUNCTION or (yield from source.take(FUNCTION)):
            name = yield from source.take_while(_is_of_name)
            if name and (yield from source.peek()) in (">", "\n"):
                yield from source.take(">")
                yield from _read_function(source, calls, name)
                ended = yield from _take_call_end(source)
                tags = begins if ended else [*begins, CALL_END]
                source.mark()
        _no_call(source, calls)


def _take_call_end(source: Source) -> Reading[bool]:
    """Reads the tag that ends a call, or what there is of it where the answer was cut."""
    if (yield from source.take(CALL_END)):
        return True
    if source.cut and CALL_END.startswith(source.rest()):
        source.advance(len(source.rest()))
    return False


def _no_call(source: Source, calls: Calls) -> None:
    """Treats what was read since the mark as text. A further call that is cut before its name is
    left out."""
    text = source.since_mark()
    if not (calls.begun and (source.cut_here or text.isspace())):
        calls.text(text)


def _pass_text(source: Source, calls: Calls, begin: str) -> Reading[None]:
    """Passes on what is no call; JSON as a whole, since nothing within it is a call."""
    if calls.begun and source.cut_here:
        source.mark()
        return
    source.rewind()
    if begin != PYTHON_TAG and _JSON.match(source.rest()):
        yield from pass_nested(source, calls.text)
    elif begin:
        rest = source.rest()
        characters = len(rest) - len(rest.lstrip()) + len(begin)
        calls.text(rest[:characters])
        source.advance(characters)
    source.mark()


def _is_of_name(character: str) -> bool:
    return character.isalnum() or character in "_-."


def _read_objects(
    source: Source,
    calls: Calls,
    marks: tuple[str, ...],
    names: Collection[str] | None = None,
    *,
    in_text: bool = False,
) -> Reading[bool]:
    """Reads calls one after the other, in a list, in a fence or neither; returns whether there was
    one. Then all of them is read, and the mark behind them."""
    yield from source.skip_space()
    fenced = yield from source.take(FENCE)
    if fenced:
        yield from source.take_while(str.isalpha)
        yield from source.skip_space()
    listed = yield from source.take("[")
    if listed:
        yield from source.skip_space()
    in_text = in_text or (names is not None and (fenced or listed))
    if not (yield from read_call(source, calls, marks, names, in_text=in_text)):
        return False
    another = True
    while another:
        yield from source.take_while(lambda character: character.isspace() or character in "}])")
        source.mark()
        yield from source.take_while(lambda character: character.isspace() or character in ",;")
        another = yield from read_call(source, calls, marks, names, in_text=in_text)
    if not source.cut_here:
        source.rewind()
    if fenced:
        yield from source.take(FENCE)
    source.mark()
    return True


def _read_named(source: Source, calls: Calls) -> Reading[None]:
    name = yield from source.take_while(_is_of_name)
    if (yield from source.take(CALL_ID)):
        yield from source.take_while(_is_of_name)
    has_arguments = yield from source.take(ARGS)
    yield from source.skip_space()
    begins = bool(name) and (has_arguments or (yield from source.peek()) == "{")
    if begins and (yield from read_arguments(source, calls, name, _MISTRAL_MARKS)):
        source.mark()


def _read_function(source: Source, calls: Calls, name: str) -> Reading[None]:
    """Reads a call's arguments and the tag that ends it. Text between the arguments, where none
    belongs, comes behind the call."""
    calls.begin(name)
    parameters = calls.parameters(name)
    yield from source.skip_space()
    if (yield from source.peek()) == "{":
        if (yield from JsonReader(source, calls.arguments, _QWEN3_CODER_MARKS, parameters).read()):
            calls.end()
        source.mark()
        yield from source.skip_space()
        yield from source.take(FUNCTION_END)
        yield from source.skip_space()
        return
    calls.arguments("{")
    separator = ""
    texts: list[str] = []
    tags = [PARAMETER, END, FUNCTION_END, CALL_END, CALL, FUNCTION]
    while (tag := (yield from source.until(tags, texts.append))) in (PARAMETER, END):
        if tag == END:
            continue
        key = yield from source.take_while(lambda character: character not in "<>\n")
        ended = yield from source.take(">")
        if not (ended or source.rest()):
            continue
        kinds = kinds_of(parameters.get(key), calls.schemas.get(name))
        lead = f"{separator}{quoted(key)}: "
        if not (yield from read_value(source, calls, lead, kinds, parameters)):
            return
        separator = ", "
    if tag is not None or not source.cut:
        calls.arguments("}")
        calls.end()
    if tag == FUNCTION_END:
        yield from source.skip_space()
    elif tag is not None:
        source.rewind()
    source.mark()
    calls.text("".join(texts).strip())
