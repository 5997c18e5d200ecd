"""The tools of `POST /v1/responses`, and the functions that the model sees in their place.

Functions of a namespace get its name as prefix. A custom tool becomes a function with one text
argument. Tools that OpenAI runs itself are skipped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import pydantic_core
from pydantic import BeforeValidator, Discriminator, Field, Tag
from sluice_contract.log_lines import shown_json

from sluice_runtime.server.content import type_of
from sluice_runtime.server.fields import RequestModel
from sluice_runtime.server.tools.calls import MAX_NAME_CHARACTERS
from sluice_runtime.server.tools.request import (
    MAX_TOOL_ENTRIES,
    MAX_TOOLS,
    Function,
    FunctionName,
    NamedFunction,
)

HOSTED: Final = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "computer_use_preview",
    "image_generation", "mcp", "local_shell", "tool_search",
)  # fmt: skip
_OWN: Final = ("function", "custom", "namespace")
_INPUT: Final = "input"
"""Name of the one argument of a custom tool's function."""


def _known_type(kind: object) -> object:
    """Refuses an unknown `type` of a tool, which the discriminator reads as a function."""
    if kind != "function":
        raise ValueError(", ".join(map(shown_json, (*_OWN, *HOSTED))))
    return kind


class OfTypeFunction(RequestModel):
    """Mixin that checks `type`. As the last base its field is validated first, so that an unknown
    type is refused before missing fields."""

    type: Annotated[Literal["function"], BeforeValidator(_known_type)]


class FunctionTool(Function, OfTypeFunction):
    """A function."""


class CustomToolFormat(RequestModel):
    """`format` of a custom tool: shown to the model, and not enforced."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class CustomTool(RequestModel):
    """A tool whose input is text."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: CustomToolFormat | None = None

    @property
    def function(self) -> dict[str, Any]:
        """The function that the model sees."""
        description = self.description or ""
        if self.format is not None and self.format.definition is not None:
            syntax = f"{self.format.syntax} " if self.format.syntax else ""
            description += (
                f"\n\n`{_INPUT}` is text of this {syntax}grammar:\n{self.format.definition}"
            )
        schema = {
            "type": "object",
            "properties": {_INPUT: {"type": "string"}},
            "required": [_INPUT],
            "additionalProperties": False,
        }
        return {"name": self.name, "description": description.strip(), "parameters": schema}


_IN_NAMESPACE: Final = Discriminator(
    lambda tool: "as text" if type_of(tool) == "custom" else "as a function"
)
_FUNCTION: Final = Tag("as a function")
_TEXT: Final = Tag("as text")


class NamespaceTool(RequestModel):
    """Tools under a common name."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: Annotated[
        list[
            Annotated[
                Annotated[FunctionTool, _FUNCTION] | Annotated[CustomTool, _TEXT], _IN_NAMESPACE
            ]
        ],
        Field(max_length=MAX_TOOLS, fail_fast=True),
    ]


class HostedTool(RequestModel):
    """A tool that is not run here."""

    type: Literal[HOSTED]  # type: ignore[valid-type]


_TAGS: Final = {"custom": "as text", "namespace": "as a namespace"} | dict.fromkeys(
    HOSTED, "as hosted"
)


def _tag(tool: object) -> str:
    kind = type_of(tool)
    return _TAGS.get(kind, "as a function") if isinstance(kind, str) else "as a function"


Tool = Annotated[
    Annotated[FunctionTool, _FUNCTION]
    | Annotated[CustomTool, _TEXT]
    | Annotated[NamespaceTool, Tag("as a namespace")]
    | Annotated[HostedTool, Tag("as hosted")],
    Discriminator(_tag),
]
Tools = Annotated[list[Tool], Field(max_length=MAX_TOOL_ENTRIES, fail_fast=True)]


class ChosenTool(NamedFunction):
    """`tool_choice`, when it names a tool that the client runs."""

    type: Literal["function", "custom"]
    namespace: FunctionName | None = None


class ChosenHosted(RequestModel):
    """`tool_choice`, when it names a tool that is not run here."""

    type: str
    name: str | None = None


Chosen = Annotated[
    Annotated[ChosenTool, Tag("of the client")] | Annotated[ChosenHosted, Tag("of the server")],
    Discriminator(lambda choice: "of the client" if type_of(choice) in _OWN else "of the server"),
]


class Origin(NamedTuple):
    """The tool that a function stands for."""

    name: str
    namespace: str | None
    is_custom: bool

    @property
    def named(self) -> dict[str, str]:
        """Names of the tool in an item of the answer."""
        own = {"name": self.name}
        return own if self.namespace is None else own | {"namespace": self.namespace}


def function_name(name: str, namespace: str | None) -> str:
    """The name of the function that the model sees."""
    if namespace is None:
        return name
    return f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"


def earlier_name(name: str, namespace: str | None) -> str:
    """Name of a function that was called earlier, changed to an allowed name if necessary: a
    refusal would end the conversation."""
    fit = re.sub("[^a-zA-Z0-9_.-]", "_", function_name(name, namespace))
    return fit[:MAX_NAME_CHARACTERS]


def unfit(tools: Sequence[Tool]) -> tuple[str, str] | None:
    """The first limit of functions that the tools exceed, as the field and what is allowed; None:
    they exceed no limit."""
    count = sum(1 for _ in functions(tools))
    if count > MAX_TOOLS:
        return "tools", f"{count} functions, those of namespaces too; allowed: at most {MAX_TOOLS}"
    for at, tool in enumerate(tools):
        if not isinstance(tool, NamespaceTool):
            continue
        for within, own in enumerate(tool.tools):
            size = len(function_name(own.name, tool.name))
            if size > MAX_NAME_CHARACTERS:
                return f"tools[{at}].tools[{within}].name", (
                    f"{size} characters with its namespace; allowed: at most {MAX_NAME_CHARACTERS}"
                )
    return None


def functions(tools: Sequence[Tool]) -> Iterator[tuple[dict[str, Any], Origin]]:
    """The functions that the model sees, each with the tool that it stands for."""
    for tool in tools:
        if isinstance(tool, NamespaceTool):
            for own in tool.tools:
                function = _function(own) | {"name": function_name(own.name, tool.name)}
                yield function, Origin(own.name, tool.name, isinstance(own, CustomTool))
        elif not isinstance(tool, HostedTool):
            yield _function(tool), Origin(tool.name, None, isinstance(tool, CustomTool))


def _function(tool: FunctionTool | CustomTool) -> dict[str, Any]:
    return tool.function if isinstance(tool, CustomTool) else tool.model_dump(exclude={"type"})


def arguments_of(text: str) -> str:
    """A custom tool's text as the arguments of its function, in JSON."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def input_of(arguments: str) -> str:
    """The text for a custom tool, from its function's arguments, which may be cut off."""
    try:
        value = pydantic_core.from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        return arguments
    text = value.get(_INPUT, "") if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments
