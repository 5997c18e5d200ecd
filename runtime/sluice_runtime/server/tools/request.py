"""Fields of a chat request that offer tools, and fields of messages that report calls."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Final, Literal

import pydantic_core
from pydantic import BeforeValidator, Field, ValidationInfo

from sluice_runtime.server.fields import (
    OBJECT,
    STRING,
    RequestModel,
    by_type,
    infinite_at,
    is_strict,
    json_within,
    note_ignored,
)
from sluice_runtime.server.tools.json_calls import object_of

MAX_TOOLS: Final = 512
MAX_TOOL_ENTRIES: Final = 2 * MAX_TOOLS
"""Most entries of `tools`, on routes that skip some tools."""

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,128}$")]


_MAX_MENDED_CHARACTERS: Final = 1 << 17
"""Most characters of calls' arguments that are mended in one request; further arguments are not
mended."""
_NO_NUMBER: Final = re.compile(r"\b(NaN|Infinity)\b")


def _object_text(given: object, info: ValidationInfo) -> object:
    """A call's arguments as the text of a JSON object, mended like those of an answer. Missing or
    unusable arguments become an empty object: clients resend the history with every turn, so a
    refusal would end the conversation."""
    if isinstance(given, str) and _is_object(given):
        return given
    if is_strict(info):
        if given is None or isinstance(given, str):
            raise ValueError(
                "a JSON object, as text, without halves of surrogate pairs and numbers beyond "
                "1.8e308"
            )
        return given
    if isinstance(given, dict):
        return pydantic_core.to_json(_finite(given, info)).decode()
    if isinstance(given, str) and (mended := _mended(given, info)):
        return mended
    if given is None or isinstance(given, str):
        if given:
            note_ignored(info)
        return "{}"
    return given


def _is_object(text: str) -> bool:
    try:
        value = json_within(text)
    except ValueError:
        return False
    return isinstance(value, dict) and infinite_at(value) is None


def _mended(text: str, info: ValidationInfo) -> str:
    """JSON of the object that a text is meant to be, with numbers too large for a float as strings;
    "" if it is none."""
    context: dict[str, Any] = {} if info.context is None else info.context
    left = context.get("mended_characters", _MAX_MENDED_CHARACTERS) - len(text)
    if left < 0:
        return ""
    context["mended_characters"] = left
    value = _loosely_parsed(text)
    if isinstance(value, str):
        text, value = value, _loosely_parsed(value)
    if value is None:
        value = _loosely_parsed(object_of(text, cut=True))
        if value is not None and _NO_NUMBER.search(text):  # NaN became null, if not in a string
            note_ignored(info)
    if not isinstance(value, dict):
        return ""
    return json.dumps(value, ensure_ascii=False)


def _loosely_parsed(text: str) -> object:
    """The value of a JSON text, with numbers too large for a float as strings; None if it is not
    valid JSON."""
    try:
        value: object = json.loads(text, parse_float=_number, parse_constant=str)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value


def _number(text: str) -> float | str:
    number = float(text)
    return number if math.isfinite(number) else text


def _finite(value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """An object from a request's body, with numbers too large for a float replaced by their names
    as strings, and reported as ignored."""
    if infinite_at(value) is None:
        return value
    note_ignored(info)
    finite: dict[str, Any] = json.loads(json.dumps(value), parse_constant=str)
    return finite


def _finite_object(given: object, info: ValidationInfo) -> object:
    if not isinstance(given, dict) or (place := infinite_at(given)) is None:
        return given
    if is_strict(info):
        raise ValueError(f"an object without numbers beyond 1.8e308, as at {place[1:]}")
    return _finite(given, info)


JsonText = Annotated[str, BeforeValidator(_object_text)]
FiniteObject = Annotated[dict[str, Any], BeforeValidator(_finite_object)]
ToolMode = Annotated[Literal["none", "auto", "required"], STRING]
TOOL_CHOICE: Final = by_type("none, auto, required or an object that names a function")


class Function(RequestModel):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema of an object; None: no arguments."""
    strict: bool | None = None
    """Whether arguments are constrained by the schema, even if the model chooses whether to
    call."""

    @property
    def arguments(self) -> dict[str, Any]:
        """The schema of a call's arguments."""
        return {"type": "object", "properties": {}} if self.parameters is None else self.parameters


class Tool(RequestModel):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Function


class NamedFunction(RequestModel):
    """A function, by name."""

    name: FunctionName


class NamedTool(RequestModel):
    """`tool_choice`, when it names a function."""

    type: Literal["function"]
    function: NamedFunction


class ToolFields(RequestModel):
    """A chat request's fields about tools."""

    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Annotated[ToolMode | Annotated[NamedTool, OBJECT], TOOL_CHOICE] | None = None
    parallel_tool_calls: bool | None = None


class CalledFunction(RequestModel):
    """`tool_calls[].function` of a message."""

    name: FunctionName
    arguments: JsonText


class MadeCall(RequestModel):
    """A call that the assistant made earlier in the conversation."""

    id: str
    type: Literal["function"]
    function: CalledFunction

    def for_template(self) -> dict[str, Any]:
        """The call as chat templates expect it, with arguments as an object."""
        arguments = json_within(self.function.arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}
