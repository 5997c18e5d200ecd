"""What a request's tools mean for its prompt, its grammar and the reading of its answer; pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sluice_contract.http_errors import shown, shown_json

from sluice_runtime.errors import GrammarError, InvalidRequestError
from sluice_runtime.grammar.schema.object_schema import object_schema
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.structured import Wish, asked_forms, checked_schema, refuse_infinite
from sluice_runtime.server.tools.calls import CallParser
from sluice_runtime.server.tools.formats import WRAPPING, ToolFormat
from sluice_runtime.server.tools.imposed import either
from sluice_runtime.server.tools.readers import calls_alone
from sluice_runtime.server.tools.request import Function, NamedTool


@dataclass(frozen=True)
class CallReading:
    """How the calls of an answer are read."""

    form: ToolFormat
    schemas: Mapping[str, Any]
    """Of the arguments of each function that was offered."""
    imposed: bool = False
    """Whether the answer is held to calls, and so has no text."""
    beside_form: bool = False
    """Whether the answer is held to calls or to a form, and so is text that holds no call, or calls
    without text."""
    shown_tokens: Mapping[int, str] = field(default_factory=dict)
    """Special tokens that are text to it."""

    def parser(self) -> CallParser:
        """For one choice."""
        read = self.form.read
        if self.beside_form:
            read = calls_alone(read, self.form.imposed.begins(self.schemas))
        return CallParser(read, self.schemas, self.form.draw_id, imposed=self.imposed)


@dataclass(frozen=True)
class ToolPlan:
    """Tools that the model may, or must, call."""

    shown: Sequence[dict[str, Any]]
    """For the chat template."""
    reading: CallReading
    wish: Wish | None
    """What the answer is held to; None where the model chooses and nothing is strict."""


def plan_tools(
    request: ChatRequest, known: ToolFormat | None, special_id: Callable[[str], int | None]
) -> ToolPlan | None:
    """None when no tool may be called. `known`: the model's format; `special_id`: the special
    token that is called so.

    Raises:
        InvalidRequestError: the choice does not fit the tools, or needs a format not known; or
            a form is asked for that does not go with them.
    """
    choice = request.tool_choice
    if not request.tools:
        if choice not in (None, "none", "auto"):
            given = choice if isinstance(choice, str) else choice.model_dump()
            raise InvalidRequestError(
                f'tool_choice: {shown_json(given)} is not allowed without tools; allowed: "none" '
                'or "auto"',
                "tool_choice",
            )
        return None
    if choice == "none":
        return None
    functions = [tool.function for tool in request.tools]
    _check_names(functions)
    schemas = {function.name: _arguments(function) for function in functions}
    if choice in (None, "auto") and known is None:
        raise InvalidRequestError(
            'tool_choice: "auto", which is the default, is not allowed, since this model\'s format '
            'of tool calls is not known (toolCallFormat names one); allowed: "none", "required" '
            "or a function",
            "tool_choice",
        )
    form = known or WRAPPING
    tokens = {one: token for one in form.markers if (token := special_id(one)) is not None}
    reading = CallReading(
        form,
        schemas,
        imposed=choice not in (None, "auto"),
        shown_tokens={token: text for text, token in tokens.items()},
    )
    shown = [tool.model_dump(exclude_none=True) for tool in request.tools]
    wish = _wish(request, functions, reading, tokens)
    beside_form = wish is not None and wish.holds_form
    return ToolPlan(shown, replace(reading, beside_form=beside_form), wish)


def _check_names(functions: Sequence[Function]) -> None:
    names = [function.name for function in functions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequestError(
            f"tools: two functions are called {shown_json(twice)}; allowed: a name once", "tools"
        )


def _arguments(function: Function) -> dict[str, Any]:
    """The schema of a call's arguments, which are an object."""
    field = f"tools.{function.name}"
    refuse_infinite(field, {"parameters": function.arguments})
    try:
        return object_schema(function.arguments, "parameters")
    except GrammarError as error:
        raise InvalidRequestError(f"{field}: {error}", field) from None


def _wish(
    request: ChatRequest,
    functions: Sequence[Function],
    reading: CallReading,
    tokens: Mapping[str, int],
) -> Wish | None:
    """A grammar of calls: of one function, of any, of any or a form, or of text with calls."""
    choice, one = request.tool_choice, request.parallel_tool_calls is False
    form, schemas = reading.form, reading.schemas
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in schemas:
            raise InvalidRequestError(
                f"tool_choice.function.name: {shown_json(name)} is not allowed; allowed: "
                f"{shown(', '.join(schemas))}, the tools' names",
                "tool_choice.function.name",
            )
        return _structural_tag(
            form.imposed.calls(_checked({name: schemas[name]}), tokens, one=True)
        )
    if choice == "required":
        return _structural_tag(form.imposed.calls(_checked(schemas), tokens, one=one))
    if len(forms := asked_forms(request)) == 1:  # several are refused where grammars are made
        asked = _schema_beside_calls(forms[0])
        calls = form.imposed.calls(_checked(schemas), tokens, one=one)
        wish = _structural_tag(either(asked, calls))
        return wish._replace(field=f"tools, {forms[0].field}", holds_form=True)
    if one or any(function.strict for function in functions):
        return _structural_tag(form.imposed.text_with_calls(_checked(schemas), tokens, one=one))
    return None


def _schema_beside_calls(asked: Wish) -> Any:
    """The schema that an answer without calls is held to."""
    if asked.kind != "json_schema":
        how = " whose strict is false" if asked.kind == "open_json_schema" else ""
        raise InvalidRequestError(
            f"tools: given beside {asked.field}{how}; allowed: beside a JSON schema whose strict "
            'is not false, or with tool_choice "none"',
            "tools",
        )
    return json.loads(asked.text)


def _checked(schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas by function, as the library gets them."""
    return {name: checked_schema(f"tools.{name}", schema) for name, schema in schemas.items()}


def _structural_tag(form: dict[str, Any]) -> Wish:
    return Wish("tools", "tags", json.dumps({"type": "structural_tag", "format": form}))
