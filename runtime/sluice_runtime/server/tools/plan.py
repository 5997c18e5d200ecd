"""A request's tools: their effect on its prompt, its grammar and the parsing of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

from sluice_contract.log_lines import shown, shown_json

from sluice_runtime.errors import GrammarError, InvalidRequestError
from sluice_runtime.server.protocol import ChatRequest
from sluice_runtime.server.structured import (
    StructuredOutputSpec,
    check_spec,
    format_specs,
    refuse_infinite,
)
from sluice_runtime.server.tools.argument_schemas import ANY_OBJECT, Build, call_rules
from sluice_runtime.server.tools.call_grammars import either
from sluice_runtime.server.tools.calls import CallParser
from sluice_runtime.server.tools.formats import WRAPPING, ToolFormat
from sluice_runtime.server.tools.object_schema import NoObjectError, object_schema
from sluice_runtime.server.tools.readers import calls_alone
from sluice_runtime.server.tools.request import Function, NamedTool


@dataclass(frozen=True)
class CallReading:
    """How to parse the calls of an answer."""

    form: ToolFormat
    schemas: Mapping[str, Any]
    """Schemas of the arguments, by the names of the functions offered."""
    calls_only: bool = False
    """Whether a grammar allows only calls, so that the answer has no text."""
    calls_or_format: bool = False
    """Whether a grammar allows either calls or the requested format, so that an answer has either
    text or calls."""
    at_most_one: bool = False
    """Whether an answer has at most one call."""
    shown_tokens: Mapping[int, str] = field(default_factory=dict)
    """Special tokens to decode as text, with their text."""

    def parser(self, answer: str) -> CallParser:
        """A parser for one choice. `answer`: a name unique to the choice, from which calls' ids are
        made."""
        read = self.form.read
        if self.calls_or_format:
            read = calls_alone(read, self.form.grammar.begins(self.schemas))
        ids = (self.form.id_of(f"{answer}/{number}") for number in count())
        most = 1 if self.at_most_one else None
        return CallParser(
            read, self.schemas, partial(next, ids), calls_only=self.calls_only, max_calls=most
        )


@dataclass(frozen=True)
class ToolPlan:
    """What a request's tools mean for its prompt, its grammar and its answer."""

    shown: Sequence[dict[str, Any]]
    """The tools as the chat template gets them."""
    reading: CallReading
    spec: StructuredOutputSpec | None
    """The constraint on the answer; None: the model may call or not, and no function is strict."""
    left_out: Sequence[str] = ()
    """Tools whose parameters are not a usable schema, so that their arguments may be any object."""


def plan_tools(
    request: ChatRequest,
    known: ToolFormat | None,
    special_id: Callable[[str], int | None],
    *,
    strict: bool = False,
    one_call: bool = False,
) -> ToolPlan | None:
    """The plan for a request's tools; None if the model may call none. `known`: the model's format
    of calls; `special_id`: gives a special token's id by name; `strict`: every schema is enforced
    completely or refused; `one_call`: whether the chat template takes at most one call in a turn.

    Raises:
        InvalidRequestError: `tool_choice` does not fit the tools, or needs a format of calls that
            is not known; or the requested format of the answer cannot be combined with tools.
    """
    choice = request.tool_choice
    if not request.tools:
        _refuse_choice_without_tools(request)
        return None
    if choice == "none":
        return None
    functions = [tool.function for tool in request.tools]
    _check_names(functions)
    enforced = [function.name for function in functions if strict or function.strict]
    schemas, unread = _argument_schemas(functions, enforced)
    if choice in (None, "auto") and known is None:
        raise InvalidRequestError(
            'tool_choice: "auto", which is the default, is not allowed, since this model\'s format '
            'of tool calls is not known (toolCallFormat names one); allowed: "none", "required" '
            "or a function",
            "tool_choice",
        )
    form = known or WRAPPING
    tokens = {marker: token for marker in form.markers if (token := special_id(marker)) is not None}
    reading = CallReading(
        form,
        schemas,
        calls_only=choice not in (None, "auto"),
        at_most_one=one_call or request.parallel_tool_calls is False,
        shown_tokens={token: text for text, token in tokens.items()},
    )
    shown = [tool.model_dump(exclude_none=True) for tool in request.tools]
    try:
        free = not any(function.strict for function in functions)
        spec, read_by = _call_spec(request, enforced, reading, tokens, free=free)
    except GrammarError as error:
        raise InvalidRequestError(f"tools: {error}", "tools") from None
    calls_or_format = spec is not None and spec.settles_format and not reading.calls_only
    reading = replace(reading, schemas={**schemas, **read_by}, calls_or_format=calls_or_format)
    offered = [choice.function.name] if isinstance(choice, NamedTool) else schemas
    return ToolPlan(shown, reading, spec, [f"tools.{name}" for name in unread if name in offered])


def _refuse_choice_without_tools(request: ChatRequest) -> None:
    choice = request.tool_choice
    if choice not in (None, "none", "auto"):
        value = choice if isinstance(choice, str) else choice.model_dump()
        raise InvalidRequestError(
            f'tool_choice: {shown_json(value)} is not allowed without tools; allowed: "none" or '
            '"auto"',
            "tool_choice",
        )


def _check_names(functions: Sequence[Function]) -> None:
    names = [function.name for function in functions]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InvalidRequestError(
            f"tools: two functions are called {shown_json(twice)}; allowed: a name once", "tools"
        )


def _argument_schemas(
    functions: Sequence[Function], strict: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """The schemas of calls' arguments, by function; and the functions whose parameters are not a
    usable schema, so that they take any object."""
    schemas, unread = dict[str, Any](), list[str]()
    for function in functions:
        field = f"tools.{function.name}"
        refuse_infinite(field, {"parameters": function.arguments})
        try:
            schemas[function.name] = object_schema(function.arguments, "parameters")
        except GrammarError as error:
            if function.name in strict or isinstance(error, NoObjectError):
                raise InvalidRequestError(f"{field}: {error}", field) from None
            schemas[function.name] = dict(ANY_OBJECT)
            unread.append(function.name)
    return schemas, unread


def _call_spec(
    request: ChatRequest,
    strict: Sequence[str],
    reading: CallReading,
    tokens: Mapping[str, int],
    *,
    free: bool,
) -> tuple[StructuredOutputSpec | None, Mapping[str, Any]]:
    """The grammar that a request's tools need, and the schemas by which to read calls that follow
    it. The grammar allows calls of the chosen function, of any function, of any function or else
    the requested format, or free text with calls. `free`: no function asks for a grammar."""
    choice, at_most_one = request.tool_choice, reading.at_most_one
    grammar, schemas = reading.form.grammar, reading.schemas

    def lark(
        build: Build, names: Sequence[str] = tuple(schemas)
    ) -> tuple[StructuredOutputSpec, Mapping[str, Any]]:
        offered = {name: schemas[name] for name in names}
        calls = call_rules(offered, strict, reading.form, build)
        spec = StructuredOutputSpec(
            "tools", "lark", calls.rules.text, calls.characters, left_out=calls.left_out
        )
        return spec, calls.read_by

    if isinstance(choice, NamedTool):
        name = _chosen(choice, schemas)
        spec, read_by = lark(lambda held: grammar.calls(held, tokens, at_most_one=True), [name])
        return _calls_only(request, spec), read_by
    if choice == "required":
        spec, read_by = lark(lambda held: grammar.calls(held, tokens, at_most_one=at_most_one))
        return _calls_only(request, spec), read_by
    if len(forms := format_specs(request)) == 1:  # `grammar_of` refuses several
        schema = _schema_beside_calls(forms[0])
        check_spec(forms[0])
        spec, read_by = lark(
            lambda held: either(schema, grammar.calls(held, tokens, at_most_one=at_most_one))
        )
        field = f"tools, {forms[0].field}"
        return spec._replace(field=field, settles_format=True), read_by
    if request.parallel_tool_calls is False or not free:
        return lark(lambda held: grammar.text_with_calls(held, tokens, at_most_one=at_most_one))
    return None, {}


def _chosen(choice: NamedTool, schemas: Mapping[str, Any]) -> str:
    name = choice.function.name
    if name not in schemas:
        raise InvalidRequestError(
            f"tool_choice.function.name: {shown_json(name)} is not allowed; allowed: "
            f"{shown(', '.join(schemas))}, the tools' names",
            "tool_choice.function.name",
        )
    return name


def _calls_only(request: ChatRequest, spec: StructuredOutputSpec) -> StructuredOutputSpec:
    """The spec, for an answer that is only calls. `response_format`, which is about text, then has
    no effect; clients send it together with a function that has the same schema."""
    fields = [form.field.partition(".")[0] for form in format_specs(request)]
    return spec._replace(settles_format=fields == ["response_format"])


def _schema_beside_calls(spec: StructuredOutputSpec) -> Any:
    """The schema for an answer that is not a call. Raises InvalidRequestError if the requested
    format cannot be combined with tools."""
    if spec.kind != "json_schema" or spec.open:
        how = " whose strict is false" if spec.open else ""
        raise InvalidRequestError(
            f"tools: given beside {spec.field}{how}; allowed: beside a JSON schema whose strict "
            'is not false, or with tool_choice "none"',
            "tools",
        )
    return json.loads(spec.text)
