"""The body of `POST /v1/responses`, as types. What needs a store of answers is refused by name.

`translation` makes a chat request of it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from sluice_contract.http_errors import shown_json

from sluice_runtime.server.fields import (
    INT64,
    LIST,
    OBJECT,
    STRING,
    AnsweredRequest,
    ConstraintsElsewhere,
    RequestModel,
    SamplingFields,
    TemplateOptions,
    by_type,
)
from sluice_runtime.server.protocol import MAX_LOGPROBS, MAX_MESSAGES
from sluice_runtime.server.responses.tools import Chosen, ChosenHosted, HostedTool, Tools, unfit
from sluice_runtime.server.structured import JsonObject
from sluice_runtime.server.tools.request import (
    TOOL_CHOICE,
    JsonText,
    NamedFunction,
    ToolMode,
)

LOGPROBS: Final = "message.output_text.logprobs"
"""Of `include`: the only entry with an effect."""
MAX_METADATA: Final = 16

Metadata = Annotated[
    dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=MAX_METADATA)
]


class ContentPart(RequestModel):
    """One part of a message's content, or of a function's output; only text is understood."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Any = None
    logprobs: Any = None


class RefusalPart(RequestModel):
    """An assistant's refusal; not shown to the model."""

    type: Literal["refusal"]
    refusal: str


Parts = Annotated[
    list[
        Annotated[
            Annotated[ContentPart, Tag("of text")] | Annotated[RefusalPart, Tag("of a refusal")],
            Discriminator(lambda part: "of a refusal" if _type(part) == "refusal" else "of text"),
        ]
    ],
    Field(min_length=1, fail_fast=True),
]
Content = Annotated[
    Annotated[str, STRING] | Annotated[Parts, LIST], by_type("a string or a list of text parts")
]


def _known_type(kind: object) -> object:
    """An item of a type that is none of `_ITEMS` is read as a message."""
    if kind not in (None, "message"):
        raise ValueError(" or ".join(map(shown_json, ("message", *_ITEMS))))
    return kind


class InputMessage(RequestModel):
    """One turn of a conversation."""

    type: Annotated[Literal["message"] | None, BeforeValidator(_known_type)] = None
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: str | None = None
    status: str | None = None
    phase: Any = None


class MadeFunctionCall(NamedFunction):
    """A call that the model made earlier in the conversation."""

    type: Literal["function_call"]
    call_id: str
    arguments: JsonText
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class MadeCustomCall(NamedFunction):
    """A call of a custom tool that the model made earlier in the conversation."""

    type: Literal["custom_tool_call"]
    call_id: str
    input: str
    namespace: str | None = None
    id: str | None = None
    status: str | None = None


class FunctionOutput(RequestModel):
    """What a tool that the model called has returned."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: Content
    id: str | None = None
    status: str | None = None


class EarlierReasoningPart(RequestModel):
    """One part of earlier reasoning."""

    type: Literal["reasoning_text"]
    text: str


class EarlierReasoning(RequestModel):
    """The model's reasoning earlier in the conversation; its summary is not shown to the model."""

    type: Literal["reasoning"]
    summary: Any = None
    content: Annotated[list[EarlierReasoningPart], Field(fail_fast=True)] | None = None
    encrypted_content: Any = None
    id: str | None = None
    status: str | None = None


def _type(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else getattr(value, "type", None)


_ITEMS: Final = {
    "function_call": "a call",
    "function_call_output": "an output",
    "custom_tool_call": "a call with text",
    "custom_tool_call_output": "an output",
    "reasoning": "reasoning",
}
"""By `type`: tags that no refusal shows, since they are no identifiers or end a path."""


def _item_tag(item: object) -> str:
    kind = _type(item)
    return f"as {_ITEMS.get(kind, 'a message') if isinstance(kind, str) else 'a message'}"


Item = Annotated[
    Annotated[InputMessage, Tag("as a message")]
    | Annotated[MadeFunctionCall, Tag("as a call")]
    | Annotated[MadeCustomCall, Tag("as a call with text")]
    | Annotated[FunctionOutput, Tag("as an output")]
    | Annotated[EarlierReasoning, Tag("as reasoning")],
    Discriminator(_item_tag),
]
Input = Annotated[
    Annotated[str, STRING]
    | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), LIST],
    by_type("a string or a list of items"),
]


MAX_TOOLS_CHARACTERS: Final = 1 << 20
"""Of all tools, as JSON. A stream repeats them in two events, which are passed on together."""


class TextFormat(RequestModel):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(pattern="^[a-zA-Z0-9_-]{1,64}$")] | None = None
    description: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(RequestModel):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Any = None


class Reasoning(RequestModel):
    """`reasoning`."""

    effort: str | None = None
    """Given to chat templates that read it."""
    summary: Any = None
    generate_summary: Any = None


class UnusedResponseFields(RequestModel):
    """Accepted with any value: they do not change the answer."""

    max_tool_calls: Any = None
    """Of tools that the server runs itself; it has none."""
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    """Nothing is stored; the response says so."""
    stream_options: Any = None
    user: Any = None


class StatefulFields(RequestModel):
    """Accepted only with a value that has no effect: others need what is not stored here."""

    background: Literal[False] | None = None
    conversation: None = None
    previous_response_id: None = None
    prompt: None = None
    truncation: Literal["disabled"] | None = None


class ResponsesRequest(
    AnsweredRequest, SamplingFields, UnusedResponseFields, StatefulFields, ConstraintsElsewhere
):
    """`POST /v1/responses`."""

    model: str | None = None
    input: Input
    instructions: str | None = None
    """A system message before the input."""
    max_output_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    tools: Tools | None = None
    tool_choice: Annotated[ToolMode | Annotated[Chosen, OBJECT], TOOL_CHOICE] | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    include: Annotated[list[str], Field(max_length=16, fail_fast=True)] | None = None
    """Only `message.output_text.logprobs` has an effect."""
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Number of top logprobs for each token."""
    metadata: Metadata | None = None
    """Returned with the response."""
    chat_template_kwargs: TemplateOptions | None = None
    """Variables for the model's chat template."""

    @property
    def requested_model(self) -> str | None:
        return self.model

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's tokens have logprobs."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def skipped(self) -> list[str]:
        """Tools that are not served, and without which the request is answered."""
        hosted = [tool.type for tool in self.tools or () if isinstance(tool, HostedTool)]
        return [f"tools[].{kind}" for kind in hosted]

    def contradiction(self) -> tuple[str, str] | None:
        if isinstance(self.tool_choice, ChosenHosted):
            return "tool_choice.type", (
                f"{shown_json(self.tool_choice.type)} is not allowed; allowed: "
                '"function" or "custom", since nobody runs other tools here'
            )
        if problem := unfit(self.tools or ()):
            return problem
        size = sum(len(tool.model_dump_json()) for tool in self.tools or ())
        if size > MAX_TOOLS_CHARACTERS:
            return "tools", (
                f"{size} characters of JSON; allowed: at most {MAX_TOOLS_CHARACTERS}, since a "
                "response repeats them"
            )
        text_format = None if self.text is None else self.text.format
        if text_format is None:
            return None
        has_schema = text_format.schema_ is not None
        if has_schema != (text_format.type == "json_schema"):
            given = "given" if has_schema else "required"
            return "text.format.schema", (
                f"{given} with type {shown_json(text_format.type)}; "
                'allowed: with type "json_schema" only'
            )
        if text_format.type == "json_schema" and text_format.name is None:
            return "text.format.name", 'is required with type "json_schema"'
        return None
