"""The body of `POST /v1/responses`, as types. Fields that need stored answers are refused by name.

`translation` turns it into a chat request.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Tag, ValidationInfo
from sluice_contract.log_lines import shown_json

from sluice_runtime.server.content import (
    UNSEEN,
    Content,
    SeenTurn,
    Unseen,
    UnseenAt,
    asked_unseen,
    by_known_type,
    skipped_paths,
    unseen_among,
)
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
    is_strict,
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
"""The only entry of `include` with an effect."""
MAX_METADATA: Final = 16

Metadata = Annotated[
    dict[str, Annotated[str, Field(max_length=512)]], Field(max_length=MAX_METADATA)
]


def _known_type(kind: object) -> object:
    """An item without a type is read as a message."""
    if kind not in (None, "message"):
        raise ValueError(" or ".join(map(shown_json, _ITEMS)))
    return kind


def _or_empty(content: object, info: ValidationInfo) -> object:
    """`content`, or an empty text for null, because some tools return nothing."""
    return "" if content is None and not is_strict(info) else content


ContentOrNull = Annotated[Content, BeforeValidator(_or_empty)]


class InputMessage(RequestModel):
    """One turn of a conversation."""

    type: Annotated[Literal["message"] | None, BeforeValidator(_known_type)] = None
    role: Literal["system", "developer", "user", "assistant"]
    content: ContentOrNull
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
    """Result of a tool that the model called."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: ContentOrNull
    id: str | None = None
    status: str | None = None


class EarlierReasoningPart(RequestModel):
    """One part of earlier reasoning."""

    type: Literal["reasoning_text"]
    text: str


class EarlierReasoning(RequestModel):
    """The model's reasoning earlier in the conversation; the model does not see its summary."""

    type: Literal["reasoning"]
    summary: Any = None
    content: (
        Annotated[
            list[
                Annotated[
                    Annotated[EarlierReasoningPart, Tag("of reasoning")]
                    | Annotated[Unseen, UNSEEN],
                    by_known_type({"reasoning_text": "of reasoning"}, "of reasoning"),
                ]
            ],
            Field(fail_fast=True),
        ]
        | None
    ) = None
    encrypted_content: Any = None
    id: str | None = None
    status: str | None = None

    @property
    def text(self) -> str:
        parts = self.content or ()
        return "".join(part.text for part in parts if isinstance(part, EarlierReasoningPart))


_ITEMS: Final = {
    "message": "as a message",
    "function_call": "as a call",
    "function_call_output": "as an output",
    "custom_tool_call": "as a call with text",
    "custom_tool_call_output": "as an output",
    "reasoning": "as reasoning",
}
"""Tags of known items by `type`. No refusal shows them: only single words inside a path are
shown."""
_ALLOWED_ITEMS: Final = ", ".join(map(shown_json, _ITEMS))

Item = Annotated[
    Annotated[InputMessage, Tag("as a message")]
    | Annotated[MadeFunctionCall, Tag("as a call")]
    | Annotated[MadeCustomCall, Tag("as a call with text")]
    | Annotated[FunctionOutput, Tag("as an output")]
    | Annotated[EarlierReasoning, Tag("as reasoning")]
    | Annotated[Unseen, UNSEEN],
    by_known_type(_ITEMS, "as a message"),
]
Input = Annotated[
    Annotated[str, STRING]
    | Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True), LIST],
    by_type("a string or a list of items"),
]


def unseen_role(item: Unseen) -> str:
    """Role of an unseen item's turn: `tool` if the item is a result for another server's tool, else
    `assistant`."""
    if item.role in ("user", "system", "developer"):
        return item.role
    return "tool" if item.type.endswith(("_output", "_response")) else "assistant"


def _seen(item: object) -> SeenTurn:
    """The item's turn, with the parts that the model does not see."""
    match item:
        case Unseen():
            return SeenTurn(unseen_role(item), [UnseenAt(item)])
        case InputMessage():
            return SeenTurn(item.role, list(unseen_among(item.content)))
        case FunctionOutput():
            return SeenTurn("tool", list(unseen_among(item.output, ".output", is_result=True)))
        case EarlierReasoning():
            return SeenTurn("assistant", list(unseen_among(item.content)))
        case _:
            return SeenTurn("tool")


MAX_TOOLS_CHARACTERS: Final = 1 << 20
"""Most characters of all tools as JSON: a stream repeats them in two events, which are passed on
together."""


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
    """Fields that are accepted with any value, because they do not change the answer."""

    max_tool_calls: Any = None
    """Limit of calls to tools that the server runs itself; this server runs none."""
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    store: Any = None
    """Ignored: nothing is stored, and the response says so."""
    stream_options: Any = None
    user: Any = None


class StatefulFields(RequestModel):
    """Fields that are accepted only with values that have no effect; others would need stored
    answers."""

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
    def offers_tools(self) -> bool:
        own = [tool for tool in self.tools or () if not isinstance(tool, HostedTool)]
        return bool(own) and self.tool_choice != "none"

    @property
    def wants_logprobs(self) -> bool:
        """Whether the request asks for logprobs of the answer's tokens."""
        return LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def skipped(self) -> list[str]:
        """Paths of skipped tools, and of items that the model does not see."""
        hosted = [tool.type for tool in self.tools or () if isinstance(tool, HostedTool)]
        return [*(f"tools[].{kind}" for kind in hosted), *skipped_paths("input", self._turns)]

    @property
    def _turns(self) -> list[SeenTurn]:
        return [] if isinstance(self.input, str) else [_seen(item) for item in self.input]

    def _unseen_input(self) -> tuple[str, str] | None:
        """Refusal if the user asks about content that the model does not see; None otherwise."""
        first = self.input[:1]
        if isinstance(first, list) and all(isinstance(item, Unseen) for item in self.input):
            return "input[0].type", (
                f"{shown_json(first[0].type)} is not allowed without other items; allowed: "
                f"{_ALLOWED_ITEMS}"
            )
        return asked_unseen("input", self._turns, '"input_text"')

    def contradiction(self) -> tuple[str, str] | None:
        if unseen := self._unseen_input():
            return unseen
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
