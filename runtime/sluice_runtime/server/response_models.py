"""The responses as types, for the OpenAPI document and the tests that compare responses with it.

The server does not use these types to answer: `response_writers` and `app` make plain dicts.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Byte = Annotated[int, Field(ge=0, le=255)]


class ResponseModel(BaseModel):
    """Base of answers and their parts."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ErrorDetails(ResponseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(ResponseModel):
    """Every error response."""

    error: ErrorDetails


class CachedTokens(ResponseModel):
    """How many of the prompt's tokens were cached."""

    cached_tokens: int


class ReasoningTokens(ResponseModel):
    """How many of the answer's tokens are reasoning, its markers included."""

    reasoning_tokens: int


class UsageAnswer(ResponseModel):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens = ReasoningTokens(reasoning_tokens=0)
    """Absent if the answer has no reasoning."""


class PromptLogprob(ResponseModel):
    """One candidate for a position of the prompt."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionLogprobs(ResponseModel):
    """Four parallel lists."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(ResponseModel):
    """One token and its logprob."""

    token: str
    logprob: float
    bytes: list[Byte] | None


class TokenLogprobAnswer(TopLogprob):
    """One token of an answer, and the most probable ones at its position."""

    top_logprobs: list[TopLogprob]


class TokenLogprobs(ResponseModel):
    """The tokens of an answer, or of a part of it."""

    content: list[TokenLogprobAnswer]
    refusal: None


class AnswerBase(ResponseModel):
    """Fields that all answers with choices share."""

    id: str
    created: int
    model: str
    usage: UsageAnswer | None = None


class CompletionChoice(ResponseModel):
    """One choice of a completion, complete or what one event adds."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] = []
    token_ids: list[int] = []


class Completion(AnswerBase):
    """Answer of `/v1/completions`, or one event of its stream."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class FunctionCall(ResponseModel):
    """A function's name and its arguments as JSON text."""

    name: str
    arguments: str


class CallAnswer(ResponseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class FunctionDelta(ResponseModel):
    """What one event adds to a function's name and arguments."""

    name: str = ""
    arguments: str


class CallDelta(ResponseModel):
    """What one event adds to a call: the call's first event has all fields, later ones only
    arguments."""

    index: int
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionDelta


class ChatMessageModel(ResponseModel):
    """Message of the assistant."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str = ""
    """The model's reasoning before its answer; absent if it has none."""
    reasoning: str = ""
    """Another name of `reasoning_content`, with an equal value."""
    refusal: None
    tool_calls: list[CallAnswer] = []


ChatReason = Literal["stop", "length", "tool_calls"] | None


class ChatChoice(ResponseModel):
    """One choice of a chat completion."""

    index: int
    message: ChatMessageModel
    logprobs: TokenLogprobs | None
    finish_reason: ChatReason
    prompt_logprobs: PromptLogprobs = []
    token_ids: list[int] = []


class ChatCompletion(AnswerBase):
    """Answer of `/v1/chat/completions`, not streamed."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None
    """Prompt logprobs of the first choice."""
    prompt_token_ids: list[int] = []


class Delta(ResponseModel):
    """What one event adds to a message."""

    role: Literal["assistant"] = "assistant"
    """Only in the first event of a choice, which has no token."""
    content: str | None = ""
    """Null in the event with the role if the choice begins with a call."""
    reasoning_content: str = ""
    reasoning: str = ""
    """Another name of `reasoning_content`, with an equal value."""
    tool_calls: list[CallDelta] = []


class ChatChunkChoice(ResponseModel):
    """What one event adds to a choice."""

    index: int
    delta: Delta
    logprobs: TokenLogprobs | None
    finish_reason: ChatReason
    prompt_logprobs: PromptLogprobs = []
    token_ids: list[int] = []


class ChatCompletionChunk(AnswerBase):
    """One event of a streamed chat completion."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] = []


class GenerationChoice(ResponseModel):
    """One choice of `/generate`, complete or what one event adds."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: TokenLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    prompt_logprobs: PromptLogprobs = []
    prompt_token_ids: list[int] = []


class Generation(AnswerBase):
    """Answer of `/generate`, or one event of its stream."""

    object: Literal["generation", "generation.chunk"]
    choices: list[GenerationChoice]


class ModelAnswer(ResponseModel):
    """A model that is served, or an adapter of it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["sluice"]
    max_model_len: int | None
    root: str
    """The base model, by the first of its served names."""
    parent: str | None
    """Id of the model that an adapter belongs to; null for the model itself."""
    permission: Annotated[list[None], Field(max_length=0)]
    """Always empty; some clients read it."""


class ModelList(ResponseModel):
    """`/v1/models`."""

    object: Literal["list"]
    data: list[ModelAnswer]


class TokenizeAnswer(ResponseModel):
    """`/tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """None unless requested."""


class DetokenizeAnswer(ResponseModel):
    """`/detokenize`."""

    prompt: str
    """Text of the prompt, with special tokens as text."""


class StatusAnswer(ResponseModel):
    """A response that is only a status."""

    status: Literal["ok", "ready"]


class VersionAnswer(ResponseModel):
    """`GET /version`."""

    version: str


class RoleAnswer(ResponseModel):
    """`POST /role`."""

    role: Literal["prefill", "decode"]
    seconds: float
    """Seconds from the call until the engine had the role; 0 if it already had it."""


class HandBackAnswer(ResponseModel):
    """`POST /hand-back`."""

    requests: int
    """Number of requests that leave this engine."""


class AbortAnswer(ResponseModel):
    """`/abort_request`."""

    aborted: int
    """How many choices were running or queued."""
