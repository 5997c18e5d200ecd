"""The fields of a chat request that offer tools, and those of messages that report calls."""

from __future__ import annotations

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

MAX_TOOLS: Final = 512
MAX_TOOL_ENTRIES: Final = 2 * MAX_TOOLS
"""Of routes that skip some tools."""
MAX_NAME_CHARACTERS: Final = 128

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,128}$")]


def _object_text(given: object, info: ValidationInfo) -> object:
    """Arguments as the text of a JSON object. Of no arguments, or of some that were cut, an empty
    one: a client sends the history of a conversation again with every turn, so a refusal would end
    it for good."""
    if isinstance(given, str) and _is_object(given):
        return given
    if is_strict(info):
        if given is None or isinstance(given, str):
            raise ValueError(
                "a JSON object, as text, without halves of surrogate pairs and numbers beyond "
                "1.8e308"
            )
        return given
    if isinstance(given, dict) and infinite_at(given) is None:
        return pydantic_core.to_json(given).decode()
    if given is None or isinstance(given, (str, dict)):
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


JsonText = Annotated[str, BeforeValidator(_object_text)]
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
    """A function that is named."""

    name: FunctionName


class NamedTool(RequestModel):
    """`tool_choice`, when it names a function."""

    type: Literal["function"]
    function: NamedFunction


class ToolFields(RequestModel):
    """The fields of a chat request that are about tools."""

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
        """As chat templates expect it: arguments as an object."""
        arguments = json_within(self.function.arguments)
        function = {"name": self.function.name, "arguments": arguments}
        return {"id": self.id, "type": self.type, "function": function}
