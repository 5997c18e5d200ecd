"""Parsers for the calls of each model family; each is a generator over the growing text.

Text that looks like a call but is not one stays text. Once arguments have begun they become an
object, whatever follows, unless the answer is cut off.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from sluice_runtime.server.tools.calls import MAX_NAME_CHARACTERS, CallReader, Calls
from sluice_runtime.server.tools.json_calls import read_arguments, read_call
from sluice_runtime.server.tools.json_text import JsonReader, pass_nested, skip_leftover
from sluice_runtime.server.tools.source import CallSource, Reading
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


def calls_alone(read: CallReader, begins: Sequence[str]) -> CallReader:
    """Reader that reads calls only if the answer begins like a call; otherwise the whole answer is
    text."""

    def read_all(source: CallSource, calls: Calls) -> Reading[None]:
        if (yield from source.at_any(begins)):
            yield from read(source, calls)
            return
        while True:
            calls.text(source.rest())
            source.advance(source.available)
            source.mark()
            if source.ended:
                return
            yield

    return read_all


def read_hermes(source: CallSource, calls: Calls) -> Reading[None]:
    """Reads `<tool_call>`, an object with name and arguments, `</tool_call>`."""
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


def read_llama3(source: CallSource, calls: Calls) -> Reading[None]:
    """Reads objects with name and parameters, at the beginning, after `<|python_tag|>` or inside
    text.

    The name must be a known function's, since an answer may have other JSON; inside text the object
    may have no other keys.
    """
    names = calls.schemas.keys()
    begin: str | None = ""
    while begin is not None:
        in_text = begin not in ("", PYTHON_TAG)
        if in_text:
            source.rewind()
        start = source.position
        if not (yield from _read_objects(source, calls, _LLAMA3_MARKS, names, in_text=in_text)):
            yield from _pass_read(source, calls, start, whole_json=True)
        begin = yield from source.until([PYTHON_TAG, FENCE, "{", "["], calls.text)


def read_mistral(source: CallSource, calls: Calls) -> Reading[None]:
    """Reads `[TOOL_CALLS]` and a list of objects; or `[TOOL_CALLS]`, a name and its arguments for
    each call."""
    while (yield from source.until([TOOL_CALLS], calls.text)):
        if not (yield from _read_objects(source, calls, _MISTRAL_MARKS)):
            yield from _read_named(source, calls)
        _no_call(source, calls)


def read_qwen3_coder(source: CallSource, calls: Calls) -> Reading[None]:
    """Reads `<function=name>` with a `<parameter=name>` for each argument, inside `<tool_call>` or
    without it."""
    tags = begins = [CALL, FUNCTION]
    while tag := (yield from source.until(tags, calls.text)):
        if tag == CALL_END:
            tags = begins
            source.mark()
            continue
        yield from source.skip_space()
        if tag == FUNCTION or (yield from source.take(FUNCTION)):
            name = yield from source.take_while(_is_of_name, MAX_NAME_CHARACTERS)
            if name and (yield from source.peek()) in (">", "\n"):
                yield from source.take(">")
                yield from _read_function(source, calls, name)
                ended = yield from _take_call_end(source)
                tags = begins if ended else [*begins, CALL_END]
                source.mark()
        _no_call(source, calls)


def _take_call_end(source: CallSource) -> Reading[bool]:
    """Reads the tag that ends a call, or its beginning if the answer was cut off in it."""
    start = source.position
    yield from source.skip_space()
    if (yield from source.take(CALL_END)):
        return True
    if source.cut and CALL_END.startswith(source.ahead(len(CALL_END))):
        source.advance(source.available)
    else:
        source.go_back(start)
    return False


def _no_call(source: CallSource, calls: Calls) -> None:
    """Passes on as text what was read since the mark. Drops a later call that was cut off before
    its name."""
    text = source.since_mark()
    if not (calls.begun and (source.cut_here or text.isspace())):
        calls.text(text)


def _pass_read(source: CallSource, calls: Calls, start: int, *, whole_json: bool) -> Reading[None]:
    """Passes on, as text, the first part of what was read since the mark, or all of it if too much
    was read twice. The rest is read again. `whole_json`: JSON that begins at `start` is passed on
    to its end, since it contains no call."""
    if calls.begun and source.cut_here:
        source.mark()
        return
    reached = source.position
    source.go_back(start)
    if whole_json and (yield from _take_behind_space(source, FENCE)):
        yield from source.take_while(str.isalpha)
    calls.text(source.since_mark())
    if whole_json and (yield from _at_json(source)):
        yield from pass_nested(source, calls.text)
    else:
        yield from source.skip_space()
        if source.position < reached:
            source.advance(1)
            calls.text(source.since_mark())
        else:
            source.rewind()
    if source.position < reached and not source.may_read_again(reached):
        source.advance(reached - source.position)
        calls.text(source.since_mark())
    source.mark()


def _at_json(source: CallSource) -> Reading[bool]:
    """Whether an object or a list comes next whose first part is a string, an object or a list."""
    start = source.position
    yield from source.skip_space()
    is_json = (yield from source.take("{")) or (yield from source.take("["))
    if is_json:
        yield from source.skip_space()
        is_json = yield from source.at_any(['"', "{", "["])
    source.go_back(start)
    return is_json


def _is_of_name(character: str) -> bool:
    return character.isalnum() or character in "_-."


def _read_objects(
    source: CallSource,
    calls: Calls,
    marks: tuple[str, ...],
    names: Collection[str] | None = None,
    *,
    in_text: bool = False,
) -> Reading[bool]:
    """Reads successive calls, in a list, in a code fence or bare; returns whether there was any. If
    so, the source's mark is after the last."""
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
        yield from _skip_closers(source)
        separators = yield from source.take_while(_separates_calls)
        start = source.position
        another = (yield from read_call(source, calls, marks, names, in_text=in_text)) or (
            source.position == start and (yield from skip_leftover(source, marks, separators))
        )
    if source.position > start:
        yield from _pass_read(source, calls, start, whole_json=names is not None)
    elif not source.cut_here:
        source.rewind()
    if fenced:
        yield from _take_behind_space(source, FENCE)
    source.mark()
    return True


def _separates_calls(character: str) -> bool:
    return character.isspace() or character in ",;"


def _skip_closers(source: CallSource) -> Reading[None]:
    """Skips brackets that close calls, and sets the mark after the last one."""
    while True:
        source.mark()
        yield from source.skip_space()
        if (yield from source.peek()) not in ("}", "]", ")"):
            source.rewind()
            return
        source.advance(1)


def _take_behind_space(source: CallSource, literal: str) -> Reading[bool]:
    """Reads white space and `literal` if both come next, else nothing; returns which."""
    start = source.position
    yield from source.skip_space()
    if (yield from source.take(literal)):
        return True
    source.go_back(start)
    return False


def _read_named(source: CallSource, calls: Calls) -> Reading[None]:
    name = yield from source.take_while(_is_of_name, MAX_NAME_CHARACTERS)
    if (yield from source.take(CALL_ID)):
        yield from source.take_while(_is_of_name, MAX_NAME_CHARACTERS)
    has_arguments = yield from source.take(ARGS)
    yield from source.skip_space()
    begins = bool(name) and (has_arguments or (yield from source.peek()) == "{")
    if begins and (yield from read_arguments(source, calls, name, _MISTRAL_MARKS)):
        yield from _skip_leftover(source, _MISTRAL_MARKS)


def _skip_leftover(source: CallSource, marks: tuple[str, ...]) -> Reading[None]:
    """Skips leftovers of a call that was read, and sets the mark after them."""
    source.mark()
    separators = yield from source.take_while(_separates_calls)
    if not (yield from skip_leftover(source, marks, separators)):
        source.rewind()


def _read_function(source: CallSource, calls: Calls, name: str) -> Reading[None]:
    """Reads a call's arguments and the tag that ends it. Stray text between arguments is passed on
    after the call."""
    calls.begin(name)
    parameters = calls.parameters(name)
    yield from source.skip_space()
    if (yield from source.peek()) == "{":
        if (yield from JsonReader(source, calls.arguments, _QWEN3_CODER_MARKS, parameters).read()):
            calls.end()
        yield from _skip_leftover(source, _QWEN3_CODER_MARKS)
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
        if not (ended or source.available):
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
