"""The answers of Anthropic's routes as types, for the OpenAPI document and its tests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sluice_runtime.server.response_models import ResponseModel


class AnthropicErrorDetails(ResponseModel):
    """Anthropic's error object; `param` and `code` are those of the other routes."""

    type: str
    message: str
    param: str | None
    code: str | None


class AnthropicErrorAnswer(ResponseModel):
    """Every error response of Anthropic's routes."""

    type: Literal["error"]
    error: AnthropicErrorDetails


class ContentBlock(ResponseModel):
    """One block of content; its `type` determines which of these fields it has."""

    type: Literal["text", "thinking", "tool_use"]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = Field(default={})


class MessageUsage(ResponseModel):
    """Token counts of a request; cached tokens are not among `input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: Literal[0]
    cache_read_input_tokens: int
    output_tokens: int


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageAnswer(ResponseModel):
    """Whole answer of `/v1/messages`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageDelta(ResponseModel):
    """What an event adds to a block or to the message, by `type`."""

    type: Literal["text_delta", "thinking_delta", "signature_delta", "input_json_delta"] | None = (
        None
    )
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessageEvent(ResponseModel):
    """One event of a streamed message; its `type` determines which of these fields it has."""

    type: Literal[
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    index: int = 0
    message: MessageAnswer | None = None
    content_block: ContentBlock | None = None
    delta: MessageDelta | None = None
    usage: MessageUsage | None = None


class TokenCount(ResponseModel):
    """`/v1/messages/count_tokens`."""

    input_tokens: int
