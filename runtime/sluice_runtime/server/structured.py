"""Structured output: the fields of a request that constrain its answer, as one grammar for the
engine. Pure.

The fields are OpenAI's `response_format`, vLLM's `structured_outputs` and its older `guided_*`, and
those of SGLang and llama.cpp. This process checks the grammar; the engine compiles it again for the
answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from pydantic import AfterValidator, Field, ValidationError
from sluice_contract.error_text import findings_of, path_of, text_of
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import (
    GrammarError,
    GrammarUnavailableError,
    InvalidRequestError,
    UnsupportedFieldError,
)
from sluice_runtime.grammar.best_effort import fitted
from sluice_runtime.grammar.constraint import CheckBudget, json_rule, one_of, refuse_unusable
from sluice_runtime.grammar.json_schema import Usable, best_effort_schema, usable_schema
from sluice_runtime.grammar.schema_keywords import Steps
from sluice_runtime.server.fields import (
    OBJECT,
    STRING,
    RequestModel,
    by_type,
    infinite_at,
    json_within,
)
from sluice_runtime.server.tools.call_grammars import Rules, alternatives, quoted, triggered
from sluice_runtime.wire.messages import Grammar, GrammarKind

MAX_CHARACTERS: Final = 65_536
"""Longest constraint: of a schema in the form that is compiled, of choices all together, of another
grammar as it was sent."""
MAX_CHOICE_TEXTS: Final = 1_000


def _without_nul(text: str) -> str:
    """Refuses a text with a NUL character, which the library's grammars cannot express."""
    if "\0" in text:
        raise ValueError("text without the character NUL")
    return text


JsonObject = dict[str, Any]
SchemaOrText = Annotated[
    Annotated[JsonObject, OBJECT] | Annotated[str, STRING],
    by_type("a JSON schema, as an object or as text"),
]
GrammarText = Annotated[str, AfterValidator(_without_nul)]
TagOrText = Annotated[
    Annotated[JsonObject, OBJECT] | Annotated[str, STRING],
    by_type("a structural tag, as an object or as text"),
]
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
    """False allows objects to have properties that the schema does not list."""


MAX_STRUCTURES: Final = 128


class TagStructure(RequestModel):
    """One entry of `structures`: JSON between a begin text and an end text."""

    begin: Annotated[str, Field(min_length=1)]
    schema_: JsonObject = Field(alias="schema")
    end: str


class StructuralTag(RequestModel):
    """SGLang's `structural_tag`: free text in which the trigger, once written, begins one of the
    structures."""

    type: Literal["structural_tag"] | None = None
    structures: Annotated[list[TagStructure], Field(min_length=1, max_length=MAX_STRUCTURES)]
    triggers: Annotated[
        list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1)
    ]
    """Exactly one: with several it could be unclear which of them a text begins."""
    format: None = None
    """Refused unless null: belongs to xgrammar's newer form of a tag."""


class ResponseFormat(RequestModel):
    """`response_format`."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    """The schema in llama.cpp's API, with type "json_object" or "json_schema"."""
    structures: Any = None
    """Used with type "structural_tag", like the next two fields; see `StructuralTag`."""
    triggers: Any = None
    format: Any = None


class StructuredOutputs(RequestModel):
    """`structured_outputs`; exactly one field."""

    json_: SchemaOrText | None = Field(default=None, alias="json")
    regex: GrammarText | None = None
    choice: Choices | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
    structural_tag: TagOrText | None = None


class StructuredFields(RequestModel):
    """The fields that constrain an answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: SchemaOrText | None = None
    guided_regex: GrammarText | None = None
    guided_choice: Choices | None = None
    guided_grammar: GrammarText | None = None
    regex: GrammarText | None = None
    """SGLang's names, down to `structural_tag`."""
    ebnf: GrammarText | None = None
    json_schema: SchemaOrText | None = None
    structural_tag: TagOrText | None = None
    grammar: GrammarText | None = None
    """llama.cpp's name."""


_FORMS: Final = {
    "structured_outputs.json": "json", "structured_outputs.regex": "regex",
    "structured_outputs.choice": "choice", "structured_outputs.grammar": "ebnf",
    "structured_outputs.structural_tag": "tag",
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice",
    "guided_grammar": "ebnf",
    "regex": "regex", "ebnf": "ebnf", "json_schema": "json", "structural_tag": "tag",
    "grammar": "ebnf",
}  # fmt: skip
"""Which kind of grammar the value of each field is."""


class StructuredOutputSpec(NamedTuple):
    """One constraint on the answer, and the field that asked for it."""

    field: str
    kind: GrammarKind
    text: str
    characters: int | None = None
    """Length of the client's text, if `text` is longer only because of our encoding."""
    settles_format: bool = False
    """Whether this constraint of the tools also covers the one by the answer's format: includes it,
    or leaves no text for it to apply to."""
    open: bool = False
    """Whether objects may have properties that the schema does not name."""
    left_out: tuple[str, ...] = ()
    """Constraints of a best-effort schema that are not enforced."""


class AnswerGrammar(NamedTuple):
    """The grammar of an answer, with what it does not enforce."""

    grammar: Grammar
    left_out: tuple[str, ...]
    """Constraints of the request that the grammar does not enforce; a response header names
    them."""


def grammar_of(
    request: StructuredFields,
    end_token_ids: Sequence[int],
    tools: StructuredOutputSpec | None = None,
    min_tokens: int = 0,
    *,
    ends_late: bool = False,
    strict: bool = False,
) -> AnswerGrammar | None:
    """The grammar for the engine; None: the answer may be any text. `tools`: the constraint by the
    request's tools. `strict`: every schema is enforced completely or refused.

    Raises:
        InvalidRequestError: two fields constrain the answer, or a constraint is too large or cannot
            be used.
        UnsupportedFieldError: the model names no token that ends answers.
        GrammarUnavailableError: the grammar library failed with it.
    """
    forms = [] if tools and tools.settles_format else format_specs(request, strict=strict)
    specs = [*forms, *([] if tools is None else [tools])]
    if not specs:
        return None
    if len(specs) > 1:
        first, second = specs[0].field, specs[1].field
        raise InvalidRequestError(f"{second}: given beside {first}; allowed: one of them", second)
    field, kind, text = specs[0][:3]
    if not end_token_ids:
        raise UnsupportedFieldError(
            f"{field}: needs a token that ends the answer; allowed: for a model that names one",
            field,
        )
    check_spec(specs[0])
    grammar = Grammar(kind, text, list(end_token_ids), field, min_tokens, ends_late)
    return AnswerGrammar(grammar, specs[0].left_out)


def format_specs(request: StructuredFields, *, strict: bool = False) -> list[StructuredOutputSpec]:
    """The constraints of the request's fields, not counting its tools; `grammar_of` refuses more
    than one.

    Raises:
        InvalidRequestError: it is not implemented.
    """
    return list(_specs(request, strict=strict))


def check_spec(spec: StructuredOutputSpec) -> None:
    """Refuses a constraint that is too large or cannot be used.

    Raises:
        InvalidRequestError: names its field, and the place in a schema.
        GrammarUnavailableError: the grammar library failed with it.
    """
    _refuse_long(spec)
    try:
        refuse_unusable(spec.kind, spec.text)
    except GrammarError as error:
        raise InvalidRequestError(f"{spec.field}: {error}", spec.field) from None
    except GrammarUnavailableError as error:
        raise GrammarUnavailableError(f"{spec.field}: {error}") from None


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


def checked_schema(
    field: str, schema: object, *, closed: bool = True, steps: Steps | None = None
) -> Any:
    """A JSON schema in the form for the grammar library. `steps`: those left to the request.

    Raises:
        InvalidRequestError: it is not implemented; names the field and the place in the schema.
    """
    refuse_infinite(field, schema)
    try:
        return usable_schema(schema, closed=closed, steps=steps)
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


def _best_effort_spec(field: str, schema: object) -> StructuredOutputSpec:
    """The constraint by a schema that leaves objects open, as far as it can be enforced."""
    refuse_infinite(field, schema)
    try:
        usable = best_effort_schema(schema, closed=False)
    except GrammarError:
        usable = Usable({}, [""], {})
    places = fitted(usable, CheckBudget())
    text = msgspec.json.encode({} if places is None else usable.schema).decode()
    notes = [""] if places is None else [*usable.left_out, *places]
    if len(text) > MAX_CHARACTERS:
        text, notes = "{}", [""]
    left_out = tuple(f"{field}.{place}".rstrip(".") for place in notes)
    return StructuredOutputSpec(field, "json_schema", text, open=True, left_out=left_out)


def _specs(request: StructuredFields, *, strict: bool) -> Iterator[StructuredOutputSpec]:
    if request.response_format is not None:
        yield from _response_format(request.response_format, strict=strict)
    outputs = request.structured_outputs
    if outputs is not None:
        _refuse_nothing_asked(outputs)
    for field, form in _FORMS.items():
        group, _, name = field.rpartition(".")
        value = getattr(outputs if group else request, "json_" if name == "json" else name, None)
        if value is not None:
            yield _spec(field, form, value)
    if outputs is not None and outputs.json_object:
        yield _schema_spec("structured_outputs.json_object", _ANY_OBJECT)


def _spec(field: str, form: str, value: Any) -> StructuredOutputSpec:
    if form == "json":
        schema = _parsed(field, value, "a JSON schema")
        return _schema_spec(field, schema)
    if form == "tag":
        return _tag_spec(field, _parsed(field, value, "a structural tag"))
    if form == "choice":
        return StructuredOutputSpec(field, "lark", one_of(value), sum(map(len, value)))
    return StructuredOutputSpec(field, "regex" if form == "regex" else "ebnf", value)


def _tag_spec(field: str, value: object) -> StructuredOutputSpec:
    try:
        tag = StructuralTag.model_validate(value)
    except ValidationError as error:
        finding = findings_of(error)[0]
        param = ".".join([field, *([path_of(finding["loc"])] if finding["loc"] else [])])
        raise InvalidRequestError(f"{param}: {text_of(StructuralTag, finding)}", param) from None
    (trigger,), bodies = tag.triggers, []
    for number, structure in enumerate(tag.structures):
        place = f"{field}.structures[{number}]"
        if not structure.begin.startswith(trigger):
            raise InvalidRequestError(
                f"{place}.begin: {shown_json(structure.begin)} is not allowed; allowed: what "
                f"begins with the trigger {shown_json(trigger)}",
                f"{place}.begin",
            )
        rule = json_rule(checked_schema(f"{place}.schema", structure.schema_))
        begin = quoted(structure.begin.removeprefix(trigger))
        bodies.append(f"{begin} {rule} {quoted(structure.end)}")
    form = triggered(trigger, Rules(alternatives(bodies)), at_most_one=False)
    return StructuredOutputSpec(field, "lark", form.text)


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


def _response_format(
    response_format: ResponseFormat, *, strict: bool
) -> Iterator[StructuredOutputSpec]:
    field, kind = "response_format.json_schema", response_format.type
    wrapper, schema = response_format.json_schema, response_format.schema_
    if kind == "structural_tag":
        value = response_format.model_dump(include={"structures", "triggers", "format"})
        yield _tag_spec("response_format", value)
        return
    if schema is not None and (kind == "text" or wrapper is not None):
        beside = 'type "text"' if kind == "text" else "json_schema"
        raise InvalidRequestError(
            f"response_format.schema: given beside {beside}; allowed: one of them",
            "response_format.schema",
        )
    if schema is not None:
        yield _schema_spec("response_format.schema", schema)
        return
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
    if wrapper.strict is False and not strict:
        yield _best_effort_spec(f"{field}.schema", schema)
    else:
        yield _schema_spec(f"{field}.schema", schema, closed=wrapper.strict is not False)


def _parsed(field: str, given: JsonObject | str, what: str) -> object:
    """The value, which may be given as text."""
    if not isinstance(given, str):
        return given
    try:
        return json_within(given)
    except ValueError as error:
        raise InvalidRequestError(
            f"{field}: {shown_json(given)} is no JSON ({error}); allowed: {what}, as an object or "
            "as text",
            field,
        ) from None
