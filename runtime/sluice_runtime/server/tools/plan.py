"""What a request's tools mean for its prompt, its grammar and the reading of its answer; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.structured import Wish, checked_schema
from sluice_runtime.server.tools.formats import WRAPPING, ToolFormat, format_of
from sluice_runtime.server.tools.request import Function, NamedTool, ToolFields


@dataclass(frozen=True)
class ToolPlan:
    """Tools that the model may, or must, call."""

    shown: Sequence[dict[str, Any]]
    """For the chat template."""
    form: ToolFormat
    wish: Wish | None
    """What the answer is held to; None where the model chooses and nothing is strict."""


def plan_tools(request: ToolFields, template: str) -> ToolPlan | None:
    """None when no tool may be called.

    Raises:
        InvalidRequestError: the choice does not fit the tools, or needs a format not known.
    """
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("tool_choice: given without tools", "tool_choice")
        return None
    if choice == "none":
        return None
    functions = [tool.function for tool in request.tools]
    _check_names(functions)
    form = format_of(template)
    if choice in (None, "auto") and form is None:
        raise InvalidRequestError(
            'tool_choice: "auto", which is the default, is not allowed, since this model\'s format '
            'of tool calls is not known; allowed: "none", "required" or a function',
            "tool_choice",
        )
    form = form or WRAPPING
    shown = [tool.model_dump(exclude_none=True) for tool in request.tools]
    return ToolPlan(shown, form, _wish(request, functions, form))


def _check_names(functions: Sequence[Function]) -> None:
    names = [function.name for function in functions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequestError(f"tools: two functions are called {twice!r}", "tools")


def _wish(request: ToolFields, functions: Sequence[Function], form: ToolFormat) -> Wish | None:
    """A grammar of calls: of one function, of any, or of text with calls in it."""
    choice, one = request.tool_choice, request.parallel_tool_calls is False
    if isinstance(choice, NamedTool):
        wanted = [function for function in functions if function.name == choice.function.name]
        if not wanted:
            raise InvalidRequestError(
                f"tool_choice.function.name: {choice.function.name!r} is not among the tools",
                "tool_choice.function.name",
            )
        return _calls(wanted, form, one=True)
    if choice == "required":
        return _calls(functions, form, one=one)
    if one or any(function.strict for function in functions):
        return _text_with_calls(functions, form, one=one)
    return None


def _calls(functions: Sequence[Function], form: ToolFormat, *, one: bool) -> Wish:
    return _structural_tag(
        {
            "type": "tags_with_separator",
            "tags": _tags(functions, form),
            "separator": "\n",
            "at_least_one": True,
            "stop_after_first": one,
        }
    )


def _text_with_calls(functions: Sequence[Function], form: ToolFormat, *, one: bool) -> Wish:
    return _structural_tag(
        {
            "type": "triggered_tags",
            "triggers": [form.opening],
            "tags": _tags(functions, form),
            "at_least_one": False,
            "stop_after_first": one,
        }
    )


def _tags(functions: Sequence[Function], form: ToolFormat) -> list[dict[str, Any]]:
    return [
        form.tag(function.name, checked_schema(f"tools.{function.name}", function.arguments))
        for function in functions
    ]


def _structural_tag(form: dict[str, Any]) -> Wish:
    return Wish("tools", "tags", json.dumps({"type": "structural_tag", "format": form}))
