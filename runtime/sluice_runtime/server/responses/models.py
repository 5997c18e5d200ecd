"""The answers of `POST /v1/responses` as types, for the OpenAPI document and its tests."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from sluice_runtime.server.response_models import (
    CachedTokens,
    ReasoningTokens,
    ResponseModel,
    TokenLogprobAnswer,
)

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputText(ResponseModel):
    """Text of the assistant."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprobAnswer]


class OutputMessage(ResponseModel):
    """Message of the assistant."""

    id: str
    type: Literal["message"]
    status: ItemStatus
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(ResponseModel):
    """Reasoning of the model before its answer."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(ResponseModel):
    """Reasoning; it has no summary."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class OutputCall(ResponseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: str = ""
    """Namespace of the function; absent if it has none."""
    arguments: str


class OutputCustomCall(ResponseModel):
    """A call of a custom tool that the model makes."""

    id: str
    type: Literal["custom_tool_call"]
    status: ItemStatus
    call_id: str
    name: str
    namespace: str = ""
    input: str


class ResponseUsage(ResponseModel):
    """Token counts of a request."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseFailure(ResponseModel):
    """Why a response failed."""

    code: Literal["server_error"]
    message: str


class IncompleteDetails(ResponseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(ResponseModel):
    """Whole answer of `/v1/responses`, which repeats the request's settings."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    background: Literal[False]
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputReasoning | OutputMessage | OutputCall | OutputCustomCall]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, Any] | None
    store: Literal[False]
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]
    usage: ResponseUsage | None


class ResponseEvent(ResponseModel):
    """One event of a streamed response; its `type` determines which of these fields it has."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    sequence_number: int
    response: ResponseAnswer | None = None
    item: OutputReasoning | OutputMessage | OutputCall | OutputCustomCall | None = None
    part: ReasoningText | OutputText | None = None
    item_id: str = ""
    output_index: int = 0
    content_index: int = 0
    delta: str = ""
    text: str = ""
    name: str = ""
    arguments: str = ""
    input: str = ""
    logprobs: list[TokenLogprobAnswer] = Field(default=[])
