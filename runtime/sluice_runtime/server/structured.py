"""What a request says its answer must look like, as one grammar for the engine; pure.

The fields are OpenAI's `response_format`, vLLM's `structured_outputs`, and vLLM's older `guided_*`.
Knows how each is spelled and what may not stand beside it; compiling is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from pydantic import Field
from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import GrammarError, InvalidRequestError, UnsupportedFieldError
from sluice_runtime.grammar.schema.json_schema import usable_schema
from sluice_runtime.messages import Grammar, GrammarKind
from sluice_runtime.server.json_within import infinite_at, json_within
from sluice_runtime.server.request_model import RequestModel, Text

MOST_CHARACTERS: Final = 65_536
"""Of a schema as it is compiled, of all choices, or of any other grammar."""
MOST_CHOICES: Final = 1_000

JsonObject = dict[str, Any]
Choices = Annotated[list[Text], Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)]
_ANY_OBJECT: Final[JsonObject] = {"type": "object"}


class JsonSchema(RequestModel):
    """`response_format.json_schema`."""

    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")]
    description: Text | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None
    """False: objects may have properties that the schema does not mention."""


class ResponseFormat(RequestModel):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(RequestModel):
    """`structured_outputs`; one field of it."""

    json_: JsonObject | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class StructuredFields(RequestModel):
    """The fields of both completion routes that this module reads."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: JsonObject | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None


class Wish(NamedTuple):
    """One thing that was asked for, and the field that did."""

    field: str
    kind: GrammarKind
    text: str
    characters: int | None = None
    """Of what the client gave, where `text` is longer only by how we write it."""
    holds_form: bool = False
    """Of tools: what the request's other fields ask for is a part of it."""


def grammar_of(
    request: StructuredFields,
    end_token_ids: Sequence[int],
    tools: Wish | None = None,
    min_tokens: int = 0,
    *,
    ends_late: bool = False,
) -> Grammar | None:
    """The grammar for the engine; None when any text will do. `tools`: what its tools demand.

    Raises:
        InvalidRequestError: two fields ask for one, it is too large or not implemented.
        UnsupportedFieldError: no token ends answers.
    """
    forms = [] if tools is not None and tools.holds_form else asked_forms(request)
    wishes = [*forms, *([] if tools is None else [tools])]
    if not wishes:
        return None
    if len(wishes) > 1:
        first, second = wishes[0].field, wishes[1].field
        raise InvalidRequestError(f"{second}: given beside {first}; allowed: one of them", second)
    _refuse_long(wishes[0])
    field, kind, text = wishes[0][:3]
    if not end_token_ids:
        raise UnsupportedFieldError(
            f"{field}: needs a token that ends the answer; allowed: for a model that names one",
            field,
        )
    return Grammar(kind, text, list(end_token_ids), field, min_tokens, ends_late)


def asked_forms(request: StructuredFields) -> list[Wish]:
    """What the answer must look like, tools aside; more than one is too many.

    Raises:
        InvalidRequestError: it is not implemented.
    """
    return list(_wishes(request))


def _refuse_long(wish: Wish) -> None:
    characters = len(wish.text) if wish.characters is None else wish.characters
    if characters > MOST_CHARACTERS:
        written = wish.kind in ("json_schema", "open_json_schema", "tags")
        counted = ", as it is compiled," if written else ""
        raise InvalidRequestError(
            f"{wish.field}: {characters} characters{counted} are not allowed; allowed: at most "
            f"{MOST_CHARACTERS}",
            wish.field,
        )


def checked_schema(field: str, schema: object) -> Any:
    """A JSON schema, as the library gets it.

    Raises:
        InvalidRequestError: it is not implemented; names the field and the place in the schema.
    """
    refuse_infinite(field, schema)
    try:
        return usable_schema(schema)
    except GrammarError as error:
        raise InvalidRequestError(f"{field}: {error}", field) from None


def refuse_infinite(field: str, schema: object) -> None:
    """Raises InvalidRequestError for a number that JSON may write and no float holds."""
    if (place := infinite_at(schema)) is not None:
        raise InvalidRequestError(
            f"{field}: {place.lstrip('.') or 'the schema'}: so large a number is not allowed; "
            "allowed: -1.8e308 to 1.8e308",
            field,
        )


def _schema_wish(field: str, schema: object, *, closed: bool = True) -> Wish:
    kind: GrammarKind = "json_schema" if closed else "open_json_schema"
    return Wish(field, kind, msgspec.json.encode(checked_schema(field, schema)).decode())


def _wishes(request: StructuredFields) -> Iterator[Wish]:
    if request.response_format is not None:
        yield from _response_format(request.response_format)
    given = request.structured_outputs or StructuredOutputs()
    if request.structured_outputs is not None:
        _refuse_nothing_asked(request.structured_outputs)
    for prefix, json_, regex, choice, ebnf in (
        ("structured_outputs.", given.json_, given.regex, given.choice, given.grammar),
        (
            "guided_",
            request.guided_json,
            request.guided_regex,
            request.guided_choice,
            request.guided_grammar,
        ),
    ):
        if json_ is not None:
            yield _schema_wish(f"{prefix}json", _as_schema(f"{prefix}json", json_))
        if regex is not None:
            yield Wish(f"{prefix}regex", "regex", regex)
        if choice is not None:
            characters = sum(len(text) for text in choice)
            yield Wish(f"{prefix}choice", "ebnf", _one_of(choice), characters)
        if ebnf is not None:
            yield Wish(f"{prefix}grammar", "ebnf", ebnf)
    if given.json_object:
        yield _schema_wish("structured_outputs.json_object", _ANY_OBJECT)


def _refuse_nothing_asked(given: StructuredOutputs) -> None:
    fields = given.model_dump(by_alias=True, exclude_none=True)
    if not fields:
        names = ", ".join(field.alias or name for name, field in type(given).model_fields.items())
        raise InvalidRequestError(
            f"structured_outputs: asks for nothing; allowed: exactly one of {names}",
            "structured_outputs",
        )
    if given.json_object is False:
        field = "structured_outputs.json_object"
        raise InvalidRequestError(f"{field}: false is not allowed; allowed: true", field)


def _response_format(wanted: ResponseFormat) -> Iterator[Wish]:
    field = "response_format.json_schema"
    if wanted.json_schema is None and wanted.type == "json_schema":
        raise InvalidRequestError(f'{field}: required with type "json_schema"', field)
    if wanted.json_schema is not None and wanted.type != "json_schema":
        given = wanted.json_schema.model_dump(by_alias=True, exclude_none=True)
        raise InvalidRequestError(
            f'{field}: {shown_json(given)} is not allowed with type "{wanted.type}"; allowed: '
            'with type "json_schema"',
            field,
        )
    if wanted.type == "json_object":
        yield _schema_wish("response_format", _ANY_OBJECT)
    if wanted.json_schema is not None:
        schema = _ANY_OBJECT if wanted.json_schema.schema_ is None else wanted.json_schema.schema_
        closed = wanted.json_schema.strict is not False
        yield _schema_wish(f"{field}.schema", schema, closed=closed)


def _as_schema(field: str, given: JsonObject | str) -> object:
    """A schema may be given as text."""
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


_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    | {chr(code): f"\\x{code:02x}" for code in range(1, 32) if chr(code) not in "\n\r\t"}
)


def _one_of(texts: Sequence[str]) -> str:
    """A grammar of exactly these texts."""
    quoted = (f'"{text.translate(_ESCAPES)}"' for text in texts)
    return f"root ::= {' | '.join(quoted)}"
