"""The fields of a chat request that offer tools, and those of messages that report calls."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from sluice_runtime.server.fields import (
    OBJECT,
    STRING,
    RequestModel,
    by_type,
    infinite_at,
    json_within,
)

MAX_TOOLS: Final = 128

FunctionName = Annotated[str, Field(pattern="^[a-zA-Z0-9_.-]{1,64}$")]


def _json_object(text: str) -> str:
    try:
        value = json_within(text)
    except ValueError:
        value = None
    if not isinstance(value, dict) or infinite_at(value) is not None:
        raise ValueError(
            "a JSON object, as text, without halves of surrogate pairs and numbers beyond 1.8e308"
        )
    return text


JsonText = Annotated[str, AfterValidator(_json_object)]
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
