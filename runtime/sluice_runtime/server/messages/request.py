"""The body of `POST /v1/messages`, as types. `translation` turns it into a chat request.

Content is text; module `content` handles blocks of other types.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from sluice_contract.log_lines import shown_json

from sluice_runtime.server.content import (
    UNSEEN,
    SeenTurn,
    Unseen,
    asked_unseen,
    by_known_type,
    skipped_paths,
    type_of,
    unseen_among,
)
from sluice_runtime.server.fields import (
    INT64,
    LIST,
    STRING,
    AnsweredRequest,
    ConstraintsElsewhere,
    Empty,
    RequestModel,
    SamplingFields,
    TemplateOptions,
    by_type,
)
from sluice_runtime.server.protocol import MAX_MESSAGES, StopListField
from sluice_runtime.server.tools.request import (
    MAX_TOOL_ENTRIES,
    MAX_TOOLS,
    FiniteObject,
    FunctionName,
)


class CachedBlock(RequestModel):
    """A block that may end a cached prefix; `cache_control` is ignored, since prefixes are cached
    anyway."""

    cache_control: Any = None


def _text_type(kind: object) -> object:
    if kind != "text":
        raise ValueError(shown_json("text"))
    return kind


class TextBlock(CachedBlock):
    """Text. A block of a type that the list does not allow is refused as invalid text."""

    type: Annotated[Literal["text"], BeforeValidator(_text_type)]
    text: str
    citations: Any = None


def _known_type(kind: object) -> object:
    if kind != "text":
        raise ValueError(_ALLOWED_BLOCKS)
    return kind


class MessageText(TextBlock):
    """Text of a message."""

    type: Annotated[Literal["text"], BeforeValidator(_known_type)]


class ThinkingBlock(CachedBlock):
    """Earlier reasoning of the model; its chat template decides whether the model sees it."""

    type: Literal["thinking"]
    thinking: str
    signature: Any = None


class RedactedThinking(CachedBlock):
    """Reasoning of another server's model; not shown to this one."""

    type: Literal["redacted_thinking"]
    data: Any = None


class ToolUse(CachedBlock):
    """A call that the model made earlier in the conversation."""

    type: Literal["tool_use"]
    id: str
    name: FunctionName
    input: FiniteObject
    caller: Any = None


Texts = Annotated[
    Annotated[str, STRING] | Annotated[list[TextBlock], Field(fail_fast=True), LIST],
    by_type("a string or a list of text blocks"),
]


ResultBlock = Annotated[
    Annotated[TextBlock, Tag("of text")] | Annotated[Unseen, UNSEEN],
    by_known_type({"text": "of text"}, "of text"),
]


class ToolResult(CachedBlock):
    """Result of a tool that the model called."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: (
        Annotated[
            Annotated[str, STRING] | Annotated[list[ResultBlock], Field(fail_fast=True), LIST],
            by_type("a string or a list of text blocks"),
        ]
        | None
    ) = None
    is_error: bool | None = None
    """The model does not see this flag: the content says what went wrong."""


_BLOCKS: Final = {
    "text": "of text",
    "thinking": "of thinking",
    "redacted_thinking": "of redacted thinking",
    "tool_use": "of a call",
    "tool_result": "of a result",
}
"""Tags of known blocks by `type`. Refusals show no tags of several words."""
_ALLOWED_BLOCKS: Final = ", ".join(map(shown_json, _BLOCKS))

Block = Annotated[
    Annotated[MessageText, Tag("of text")]
    | Annotated[ThinkingBlock, Tag("of thinking")]
    | Annotated[RedactedThinking, Tag("of redacted thinking")]
    | Annotated[ToolUse, Tag("of a call")]
    | Annotated[ToolResult, Tag("of a result")]
    | Annotated[Unseen, UNSEEN],
    by_known_type(_BLOCKS, "of text"),
]
Content = Annotated[
    Annotated[str, STRING] | Annotated[list[Block], Field(fail_fast=True), LIST],
    by_type("a string or a list of content blocks"),
]
_OF_ROLE: Final = {
    "user": frozenset({"text", "tool_result"}),
    "assistant": frozenset({"text", "thinking", "redacted_thinking", "tool_use"}),
    "system": frozenset({"text"}),
}


class MessageTurn(RequestModel):
    """One turn of a conversation. Claude Code also sends turns with role system."""

    role: Literal["user", "assistant", "system"]
    content: Content

    @model_validator(mode="after")
    def _fits_its_role(self) -> MessageTurn:
        allowed = _OF_ROLE[self.role]
        blocks = () if isinstance(self.content, str) else self.content
        if any(not isinstance(block, Unseen) and block.type not in allowed for block in blocks):
            named = " and ".join(map(shown_json, sorted(allowed)))
            raise ValueError(f"blocks of type {named} with role {self.role}")
        return self

    @property
    def seen(self) -> SeenTurn:
        """The message's turn, with the parts that the model does not see."""
        unseen = list(unseen_among(self.content))
        for number, block in enumerate(self.content):
            if isinstance(block, ToolResult):
                place = f".content[{number}].content"
                unseen += unseen_among(block.content, place, is_result=True)
        return SeenTurn(self.role, unseen)


class MessagesTool(CachedBlock):
    """A function that the model may call, and the client runs."""

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    """A JSON schema of an object."""
    strict: bool | None = None
    """Whether the input is constrained by the schema, even if the model chooses whether to call."""
    allowed_callers: Any = None
    defer_loading: Any = None
    eager_input_streaming: Any = None
    input_examples: Any = None


class MessagesHostedTool(CachedBlock):
    """A tool that Anthropic runs, or whose schema only its models know: skipped."""

    type: str
    name: str | None = None


Tool = Annotated[
    Annotated[MessagesTool, Tag("of the client")]
    | Annotated[MessagesHostedTool, Tag("of the server")],
    Discriminator(
        lambda tool: "of the client" if type_of(tool) in (None, "custom") else "of the server"
    ),
]


class ToolChoice(RequestModel):
    """`tool_choice`."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_a_tool(self) -> ToolChoice:
        if (self.name is not None) != (self.type == "tool"):
            raise ValueError('name with type "tool", and with no other')
        return self


class Thinking(RequestModel):
    """`thinking`: given to chat templates that can turn reasoning on and off."""

    type: Literal["enabled", "disabled", "adaptive"]
    display: Any = None


class OutputFormat(RequestModel):
    """`output_config.format`."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(RequestModel):
    """`output_config`."""

    effort: str | None = None
    """Given to chat templates that read `reasoning_effort`."""
    format: OutputFormat | None = None


class UnusedMessagesFields(RequestModel):
    """Fields that are accepted with any value, because they do not change the answer."""

    betas: Any = None
    cache_control: Any = None
    """Prefixes are cached anyway."""
    context_management: Any = None
    """Ignored: the client's history is used unchanged."""
    diagnostics: Any = None
    inference_geo: Any = None
    metadata: Any = None
    service_tier: Any = None
    speed: Any = None


class PromptFields(AnsweredRequest, SamplingFields, UnusedMessagesFields, ConstraintsElsewhere):
    """Fields that both of Anthropic's routes have."""

    model: str | None = None
    """None: whichever model is served."""
    messages: Annotated[
        list[MessageTurn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    system: Texts | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOL_ENTRIES, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    mcp_servers: Empty | None = None
    """Must be empty: this server calls no other servers."""
    chat_template_kwargs: TemplateOptions | None = None
    """Variables for the model's chat template."""

    @property
    def requested_model(self) -> str | None:
        return self.model

    @property
    def offers_tools(self) -> bool:
        chosen = self.tool_choice is None or self.tool_choice.type != "none"
        return chosen and len(self.tools or ()) > len(self.hosted_tools)

    @property
    def hosted_tools(self) -> list[MessagesHostedTool]:
        """Hosted tools in the request; they are skipped."""
        return [tool for tool in self.tools or () if isinstance(tool, MessagesHostedTool)]

    @property
    def skipped(self) -> list[str]:
        """Paths of skipped tools, and of blocks that the model does not see."""
        tools = [f"tools[].{tool.type}" for tool in self.hosted_tools]
        turns = [message.seen for message in self.messages]
        return [*dict.fromkeys(tools), *skipped_paths("messages", turns)]

    def contradiction(self) -> tuple[str, str] | None:
        turns = [message.seen for message in self.messages]
        if asked := asked_unseen("messages", turns, _ALLOWED_BLOCKS):
            return asked
        count = len(self.tools or ()) - len(self.hosted_tools)
        if count > MAX_TOOLS:
            return "tools", f"{count} functions; allowed: at most {MAX_TOOLS}"
        chosen = self.tool_choice.name if self.tool_choice else None
        if chosen is not None and chosen in [tool.name for tool in self.hosted_tools]:
            return "tool_choice.name", (
                f"{shown_json(chosen)} is a tool that this server does not run; allowed: a tool "
                "with an input_schema"
            )
        return None


class MessagesRequest(PromptFields):
    """`POST /v1/messages`."""

    max_tokens: int = Field(ge=1, lt=INT64)
    stop_sequences: StopListField = None


class CountTokensRequest(PromptFields):
    """`POST /v1/messages/count_tokens`."""
