"""The bodies of the OpenAI routes, as they are accepted: strict types, unknown fields refused.

Fields that are known but not implemented are in `not_implemented`. Knows nothing of tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from sluice_contract.http_errors import shown_json

from sluice_runtime.server.json_within import is_plain
from sluice_runtime.server.not_implemented import MESSAGE_ROWS, without_neutral_parts
from sluice_runtime.server.request_model import RequestModel, Text, without_nul
from sluice_runtime.server.structured import StructuredFields
from sluice_runtime.server.tools.request import MadeCall, ToolFields

MAX_CHOICES: Final = 16
MAX_MESSAGES: Final = 4096
MAX_PROMPTS: Final = 256
MAX_PROMPT_TOKENS: Final = 2**20
MAX_STOPS: Final = 4
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKENS: Final = 64
MAX_SALT_CHARACTERS: Final = 256
USUAL_COMPLETION_TOKENS: Final = 16
"""As OpenAI's completions have it, and other engines; chats go on to their end."""
MOST_LOGPROBS: Final = 20
MOST_COMPLETION_LOGPROBS: Final = 5
MAX_BIASED_TOKENS: Final = 1024
MOST_BIAS: Final = 100
_TOKEN_ID: Final = re.compile("[0-9]{1,9}")
MOST_PRIORITY: Final = 1_000_000
_INT64: Final = 2**63


StopText = Annotated[
    str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS), AfterValidator(without_nul)
]
# Lengths stand before what looks at the text: after it they are those of a list.
SaltText = Annotated[str, Field(max_length=MAX_SALT_CHARACTERS), AfterValidator(without_nul)]
RequestName = Annotated[str, Field(min_length=1, max_length=128), AfterValidator(without_nul)]
StopTexts = Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[
    list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)
]
StopTokenIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]


def _by_token_id(biases: dict[str, float]) -> dict[str, float]:
    if not all(_TOKEN_ID.fullmatch(key) for key in biases):
        raise ValueError("an object whose keys are token ids")
    if len({int(key) for key in biases}) < len(biases):
        raise ValueError("an object that has each token id once, however it is spelled")
    return biases


def _few(biases: object) -> object:
    """Looked at before the values: of those there would be a finding each."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASED_TOKENS:
        raise ValueError(f"an object of at most {MAX_BIASED_TOKENS} items")
    return biases


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-MOST_BIAS, le=MOST_BIAS)]],
    Field(max_length=MAX_BIASED_TOKENS),
    AfterValidator(_by_token_id),
    BeforeValidator(_few),
]


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    if not is_plain(options):
        raise ValueError("an object without NUL and without numbers beyond 1.8e308")
    return options


TemplateOptions = Annotated[dict[str, Any], AfterValidator(_plain)]


class StreamOptions(RequestModel):
    """What a stream carries besides its deltas."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False


class GenerationRequest(StructuredFields):
    """What all routes that generate take. None: the model's default, else the API's."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-_INT64, lt=_INT64)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=2)
    logit_bias: LogitBias | None = None
    """By token id as text, as JSON has no other keys."""
    max_tokens: int | None = Field(default=None, ge=1)
    min_tokens: int | None = Field(default=None, ge=0)
    """Neither a stop token nor a stop string ends the answer before."""
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stop: StopText | StopTexts | None = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    """Whether the stop string that was found is part of the answer."""
    ignore_eos: bool | None = None
    priority: int | None = Field(default=None, ge=-MOST_PRIORITY, le=MOST_PRIORITY)
    """Larger is more urgent; 0 when left out."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    """Most probable tokens to tell beside each token of the prompt."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: SaltText | None = None
    """Cached prefixes are shared only with requests that give the same."""
    user: Text | None = None
    """Accepted for OpenAI's SDKs; Sluice keeps no account of users."""

    @property
    def asked_model(self) -> str | None:
        """None: whichever is served."""
        return None

    @property
    def stops(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def answer_tokens(self) -> tuple[str, int | None]:
        """The field that bounds the answer, and its value; None: as much as there is room for."""
        return "max_tokens", self.max_tokens

    @property
    def usual_answer_tokens(self) -> int | None:
        """Bounds the answer of a request that does not; None: as much as there is room for."""
        return None

    @property
    def told_logprobs(self) -> int:
        """Most probable tokens to tell beside each token of the answer; -1: tell nothing."""
        return -1

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    def misfit(self) -> tuple[str, str] | None:
        """A field that does not go with the others, and with what it would."""
        if self.stream_options is not None and not self.stream:
            return "stream_options", "given without stream; allowed: only with stream true"
        return None


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    model: Text
    max_tokens: int | None = Field(default=None, ge=0)
    """0: only the prompt is read, and scored or echoed."""
    logprobs: int | None = Field(default=None, ge=0, le=MOST_COMPLETION_LOGPROBS)
    """Most probable tokens to tell beside each token, and its own."""
    echo: bool | None = None
    """Whether the answer begins with the prompt."""

    prompt: (
        Text
        | Annotated[list[Text], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
        | TokenIds
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]
    )

    @property
    def asked_model(self) -> str:
        return self.model

    @property
    def usual_answer_tokens(self) -> int:
        return USUAL_COMPLETION_TOKENS

    @property
    def told_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    def misfit(self) -> tuple[str, str] | None:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            return "max_tokens", "0 is not allowed; allowed: 1 or more, or 0 with echo"
        return super().misfit()


class TextPart(RequestModel):
    """One part of a message's content; only text is understood."""

    type: Literal["text"]
    text: Text


class ChatMessage(RequestModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(min_length=1, fail_fast=True)] | None = None
    name: Text | None = None
    tool_calls: Annotated[list[MadeCall], Field(min_length=1, fail_fast=True)] | None = None
    tool_call_id: Text | None = None
    refusal: Text | None = None
    """Of an assistant, as it was answered; not shown to the model."""

    @model_validator(mode="before")
    @classmethod
    def _without_neutral_parts(cls, value: Any) -> Any:
        has_them = isinstance(value, dict) and value.keys() & MESSAGE_ROWS.keys()
        return without_neutral_parts(value) if has_them else value

    @model_validator(mode="after")
    def _fits_its_role(self) -> ChatMessage:
        if self.tool_calls is not None and self.role != "assistant":
            raise ValueError("tool_calls with role assistant only")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id with role tool, and with no other")
        if self.content is None and self.tool_calls is None:
            raise ValueError("a message with content, or with tool_calls")
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates know it: the content as one string, arguments as objects."""
        given = self.content or ""
        text = given if isinstance(given, str) else "".join(part.text for part in given)
        message: dict[str, Any] = {"role": self.role, "content": text}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.tool_calls is not None:
            message["tool_calls"] = [call.for_template() for call in self.tool_calls]
        return message


class ChatRequest(GenerationRequest, ToolFields):
    """`POST /v1/chat/completions`."""

    model: Text
    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool | None = None
    """Whether the logprob of each token is told."""
    top_logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    """Most probable tokens to tell beside it."""
    chat_template_kwargs: TemplateOptions | None = None
    """Values for what the model's chat template reads besides messages and tools."""

    @property
    def asked_model(self) -> str:
        return self.model

    @property
    def answer_tokens(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().answer_tokens

    @property
    def told_logprobs(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    def misfit(self) -> tuple[str, str] | None:
        if self.top_logprobs is not None and not self.logprobs:
            return "top_logprobs", "given without logprobs; allowed: only with logprobs true"
        own, usual = self.max_completion_tokens, self.max_tokens
        if own is not None and usual is not None and own != usual:
            return "max_completion_tokens", (
                f"{shown_json(own)} beside max_tokens {shown_json(usual)} is not allowed; allowed: "
                "one of the two, or the same in both"
            )
        return super().misfit()


class GenerateRequest(GenerationRequest):
    """`POST /generate`: one prompt, as text or as token ids; the answer has token ids, too."""

    model: Text | None = None

    text: Text | None = None
    input_ids: TokenIds | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    """0: only the prompt is read, and scored."""
    n: Literal[1] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MOST_LOGPROBS)
    """Most probable tokens to tell beside each token, and its own."""

    @property
    def asked_model(self) -> str | None:
        return self.model

    @property
    def told_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    def misfit(self) -> tuple[str, str] | None:
        if (self.text is None) == (self.input_ids is None):
            return "text", "allowed: either text or input_ids"
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            return "max_tokens", "0 is not allowed; allowed: 1 or more, or 0 with prompt_logprobs"
        return super().misfit()


class AbortRequest(RequestModel):
    """`POST /abort_request`."""

    request_id: RequestName
    """The x-request-id of a request, or the id of its response."""
