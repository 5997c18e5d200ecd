"""Structured output: the fields of a request that constrain its answer, as one grammar for the
engine. Pure.

The fields are OpenAI's `response_format`, vLLM's `structured_outputs`, and vLLM's older `guided_*`.
The engine compiles it, and this process checks it before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from pydantic import AfterValidator, Field
from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import (
    GrammarError,
    GrammarUnavailableError,
    InvalidRequestError,
    UnsupportedFieldError,
)
from sluice_runtime.grammar.constraint import one_of, refuse_unusable
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.server.fields import (
    OBJECT,
    STRING,
    RequestModel,
    by_type,
    infinite_at,
    json_within,
)
from sluice_runtime.wire.messages import Grammar, GrammarKind

MAX_CHARACTERS: Final = 65_536
"""Length of a schema as it is compiled, of all choices together, or of another grammar."""
MAX_CHOICE_TEXTS: Final = 1_000


def _without_nul(text: str) -> str:
    """`text`; no grammar of the library spells NUL."""
    if "\0" in text:
        raise ValueError("text without the character NUL")
    return text


JsonObject = dict[str, Any]
SchemaOrText = Annotated[
    Annotated[JsonObject, OBJECT] | Annotated[str, STRING],
    by_type("a JSON schema, as an object or as text"),
]
GrammarText = Annotated[str, AfterValidator(_without_nul)]
Choices = Annotated[
    list[GrammarText], Field(min_length=1, max_length=MAX_CHOICE_TEXTS, fail_fast=True)
]
_ANY_OBJECT: Final[JsonObject] = {"type": "object"}


class JsonSchema(RequestModel):
    """`response_format.json_schema`."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None
    """False: objects may have properties that the schema does not list."""


class ResponseFormat(RequestModel):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(RequestModel):
    """`structured_outputs`; exactly one field."""

    json_: SchemaOrText | None = Field(default=None, alias="json")
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None


class StructuredFields(RequestModel):
    """The fields that constrain an answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None


class StructuredOutputSpec(NamedTuple):
    """One constraint on the answer, and the field that asked for it."""

    field: str
    kind: GrammarKind
    text: str
    characters: int | None = None
    """Length of what the client sent, if `text` is only longer through our encoding."""
    settles_format: bool = False
    """For tools: whether the request's other constraint is part of the grammar, or about text
    that there will not be."""
    open: bool = False
    """For a schema: objects may have properties that it does not name."""


def grammar_of(
    request: StructuredFields,
    end_token_ids: Sequence[int],
    tools: StructuredOutputSpec | None = None,
    min_tokens: int = 0,
    *,
    ends_late: bool = False,
) -> Grammar | None:
    """The grammar for the engine; None when any text will do. `tools`: the constraint of its tools.

    Raises:
        InvalidRequestError: two fields ask for one, it is too large or cannot be used.
        UnsupportedFieldError: no token ends answers.
        GrammarUnavailableError: the grammar library failed with it.
    """
    forms = [] if tools is not None and tools.settles_format else format_specs(request)
    specs = [*forms, *([] if tools is None else [tools])]
    if not specs:
        return None
    if len(specs) > 1:
        first, second = specs[0].field, specs[1].field
        raise InvalidRequestError(f"{second}: given beside {first}; allowed: one of them", second)
    _refuse_long(specs[0])
    field, kind, text = specs[0][:3]
    if not end_token_ids:
        raise UnsupportedFieldError(
            f"{field}: needs a token that ends the answer; allowed: for a model that names one",
            field,
        )
    try:
        refuse_unusable(kind, text)
    except GrammarError as error:
        raise InvalidRequestError(f"{field}: {error}", field) from None
    except GrammarUnavailableError as error:
        raise GrammarUnavailableError(f"{field}: {error}") from None
    return Grammar(kind, text, list(end_token_ids), field, min_tokens, ends_late)


def format_specs(request: StructuredFields) -> list[StructuredOutputSpec]:
    """The constraints of the request, without tools; more than one is refused later.

    Raises:
        InvalidRequestError: it is not implemented.
    """
    return list(_specs(request))


def _refuse_long(spec: StructuredOutputSpec) -> None:
    characters = len(spec.text) if spec.characters is None else spec.characters
    if characters > MAX_CHARACTERS:
        written = spec.kind in ("json_schema", "lark") and spec.characters is None
        counted = ", as it is compiled," if written else ""
        raise InvalidRequestError(
            f"{spec.field}: {characters} characters{counted} are not allowed; allowed: at most "
            f"{MAX_CHARACTERS}",
            spec.field,
        )


def checked_schema(field: str, schema: object, *, closed: bool = True) -> Any:
    """A JSON schema in the form for the grammar library.

    Raises:
        InvalidRequestError: it is not implemented; names the field and the place in the schema.
    """
    refuse_infinite(field, schema)
    try:
        return usable_schema(schema, closed=closed)
    except GrammarError as error:
        raise InvalidRequestError(f"{field}: {error}", field) from None


def refuse_infinite(field: str, schema: object) -> None:
    """Raises InvalidRequestError for a number that does not fit a float."""
    if (place := infinite_at(schema)) is not None:
        raise InvalidRequestError(
            f"{field}: {place.lstrip('.') or 'the schema'}: so large a number is not allowed; "
            "allowed: -1.8e308 to 1.8e308",
            field,
        )


def _schema_spec(field: str, schema: object, *, closed: bool = True) -> StructuredOutputSpec:
    text = msgspec.json.encode(checked_schema(field, schema, closed=closed)).decode()
    return StructuredOutputSpec(field, "json_schema", text, open=not closed)


def _specs(request: StructuredFields) -> Iterator[StructuredOutputSpec]:
    if request.response_format is not None:
        yield from _response_format(request.response_format)
    fields = request.structured_outputs or StructuredOutputs()
    if request.structured_outputs is not None:
        _refuse_nothing_asked(request.structured_outputs)
    for prefix, json_, regex, choice, ebnf in (
        ("structured_outputs.", fields.json_, fields.regex, fields.choice, fields.grammar),
        (
            "guided_",
            request.guided_json,
            request.guided_regex,
            request.guided_choice,
            request.guided_grammar,
        ),
    ):
        if json_ is not None:
            yield _schema_spec(f"{prefix}json", _as_schema(f"{prefix}json", json_))
        if regex is not None:
            yield StructuredOutputSpec(f"{prefix}regex", "regex", regex)
        if choice is not None:
            characters = sum(len(text) for text in choice)
            yield StructuredOutputSpec(f"{prefix}choice", "lark", one_of(choice), characters)
        if ebnf is not None:
            yield StructuredOutputSpec(f"{prefix}grammar", "ebnf", ebnf)
    if fields.json_object:
        yield _schema_spec("structured_outputs.json_object", _ANY_OBJECT)


def _refuse_nothing_asked(outputs: StructuredOutputs) -> None:
    fields = outputs.model_dump(by_alias=True, exclude_none=True)
    if not fields:
        names = ", ".join(field.alias or name for name, field in type(outputs).model_fields.items())
        raise InvalidRequestError(
            f"structured_outputs: asks for nothing; allowed: exactly one of {names}",
            "structured_outputs",
        )
    if outputs.json_object is False:
        field = "structured_outputs.json_object"
        raise InvalidRequestError(f"{field}: false is not allowed; allowed: true", field)


def _response_format(response_format: ResponseFormat) -> Iterator[StructuredOutputSpec]:
    field, kind = "response_format.json_schema", response_format.type
    wrapper = response_format.json_schema
    if wrapper is None:
        if kind == "json_schema":
            raise InvalidRequestError(f'{field}: required with type "json_schema"', field)
        if kind == "json_object":
            yield _schema_spec("response_format", _ANY_OBJECT)
        return
    if kind != "json_schema":
        shown_value = shown_json(wrapper.model_dump(by_alias=True, exclude_none=True))
        raise InvalidRequestError(
            f'{field}: {shown_value} is not allowed with type "{kind}"; allowed: with type '
            '"json_schema"',
            field,
        )
    schema = _ANY_OBJECT if wrapper.schema_ is None else wrapper.schema_
    yield _schema_spec(f"{field}.schema", schema, closed=wrapper.strict is not False)


def _as_schema(field: str, given: JsonObject | str) -> object:
    """The schema, which may be given as text."""
    if not isinstance(given, str):
        return given
    try:
        return json_within(given)
    except ValueError as error:
        raise InvalidRequestError(
            f"{field}: {shown_json(given)} is no JSON ({error}); allowed: a JSON schema, as an "
            "object or as text",
            field,
        ) from None
