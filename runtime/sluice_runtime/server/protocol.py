"""The bodies of the routes that generate, as types.

Fields that several routes share, or that are known but not used, are in `fields`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, Tag, ValidationInfo, model_validator
from sluice_contract.log_lines import shown_json

from sluice_runtime.scheduler.limits import least_answer
from sluice_runtime.server.content import (
    GAP,
    Content,
    SeenTurn,
    Unseen,
    UnseenAt,
    asked_unseen,
    skipped_paths,
    text_of_parts,
    unseen_among,
)
from sluice_runtime.server.fields import (
    INT64,
    LIST,
    STRING,
    AnsweredRequest,
    NotImplementedFields,
    RequestModel,
    RequestName,
    SamplingFields,
    TemplateOptions,
    UnusedFields,
    by_type,
    is_strict,
    note_ignored,
)
from sluice_runtime.server.structured import StructuredFields
from sluice_runtime.server.tools.request import CalledFunction, MadeCall, ToolFields

MAX_CHOICES: Final = 16
MAX_MESSAGES: Final = 4096
MAX_PROMPTS: Final = 256
MAX_PROMPT_TOKENS: Final = 2**20
MAX_STOPS: Final = 64
MAX_STOP_CHARACTERS: Final = 1024
MAX_STOP_TOKENS: Final = 64
DEFAULT_COMPLETION_TOKENS: Final = 16
"""Default `max_tokens` of completions, as in OpenAI's API; chats have none."""
MAX_LOGPROBS: Final = 20
MAX_COMPLETION_LOGPROBS: Final = 5


def _without_empty(stops: object, info: ValidationInfo) -> object:
    """Stops without empty strings: these end nothing, and some clients send one for each field left
    blank."""
    if is_strict(info):
        return stops
    if stops == "":
        note_ignored(info)
        return None
    if isinstance(stops, list) and "" in stops:
        note_ignored(info, "[]")
        return [stop for stop in stops if stop != ""]
    return stops


StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
StopTexts = Annotated[list[StopText], Field(max_length=MAX_STOPS, fail_fast=True)]
StopTextOrTexts = Annotated[
    Annotated[StopText, STRING] | Annotated[StopTexts, LIST],
    by_type(f"a string or a list of at most {MAX_STOPS} strings"),
]
StopField = Annotated[StopTextOrTexts | None, BeforeValidator(_without_empty)]
StopListField = Annotated[StopTexts | None, BeforeValidator(_without_empty)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[
    list[TokenId], Field(min_length=1, max_length=MAX_PROMPT_TOKENS, fail_fast=True)
]
StopTokenIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)]
_PROMPT_TAGS: Final = {str: "of texts", int: "of tokens", list: "of lists"}
"""Tag of a list of prompts, by the type of its first item."""


def _prompt_tag(prompt: object) -> str | None:
    if isinstance(prompt, list):
        return _PROMPT_TAGS.get(type(prompt[0])) if prompt else "of texts"
    return STRING.tag if isinstance(prompt, str) else None


_PROMPTS = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
Prompt = Annotated[
    Annotated[str, STRING]
    | Annotated[list[str], _PROMPTS, Tag("of texts")]
    | Annotated[TokenIds, Tag("of tokens")]
    | Annotated[list[TokenIds], _PROMPTS, Tag("of lists")],
    by_type(
        "a string, a list of strings, a list of token ids or a list of such lists", _prompt_tag
    ),
]


class StreamOptions(RequestModel):
    """`stream_options`."""

    include_usage: bool | None = None
    """Ends the stream with an event that has the usage and no choices."""
    continuous_usage_stats: bool | None = None
    """Adds the usage so far to every event."""
    include_obfuscation: Any = None
    """Accepted; no padding is sent."""


class GenerationRequest(
    AnsweredRequest, SamplingFields, StructuredFields, UnusedFields, NotImplementedFields
):
    """Fields of all routes that generate. None: the model's default, else the API's."""

    max_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    min_tokens: int | None = Field(default=None, ge=0)
    """Tokens that the answer must have before stop tokens and stop strings take effect."""
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stop: StopField = None
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool | None = None
    """Whether the stop string is included in the text."""
    ignore_eos: bool | None = None
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Number of top logprobs for each token of the prompt."""
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool | None = None
    """False: special tokens appear in the text, except the one that ended the answer."""
    add_special_tokens: bool | None = None
    """Whether the tokenizer adds its special tokens, such as BOS. Default: yes for prompts, no for
    chats, whose template writes them."""
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, lt=INT64)
    """Number of tokens to keep at the end of the prompt; -1: as many as leave room for the
    answer."""
    return_token_ids: bool | None = None
    """Whether to return the token ids of prompt and answer."""

    @property
    def stops(self) -> Sequence[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def token_limit(self) -> tuple[str, int | None]:
        """The field that limits the answer, and its value; None: not given."""
        return "max_tokens", self.max_tokens

    @property
    def least_answer(self) -> int:
        """Answer tokens that must fit after the prompt: 0 if the prompt is only scored, else 1."""
        limit = self.token_limit[1]
        return 1 if limit is None else least_answer(limit)

    @property
    def default_max_tokens(self) -> int | None:
        """Limit of the answer when none is given; None: as much as fits."""
        return None

    @property
    def output_logprobs(self) -> int:
        """Number of top logprobs for each token of the answer; -1: no logprobs."""
        return -1

    @property
    def echoes(self) -> bool:
        """Whether the answer begins with the prompt."""
        return False

    def contradiction(self) -> tuple[str, str] | None:
        if self.truncate_prompt_tokens == 0:
            return "truncate_prompt_tokens", "0 is not allowed; allowed: 1 or more, or -1"
        if self.stream_options is not None and not self.stream:
            return "stream_options", "given without stream; allowed: only with stream true"
        return None


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`."""

    model: str | None = None
    max_tokens: int | None = Field(default=None, ge=0, lt=INT64)
    """0: computes the prompt only, for its logprobs or `echo`."""
    logprobs: int | None = Field(default=None, ge=0, le=MAX_COMPLETION_LOGPROBS)
    """Number of top logprobs for each token, in addition to its own."""
    echo: bool | None = None
    """Whether the answer begins with the prompt."""

    prompt: Prompt

    @property
    def requested_model(self) -> str | None:
        return self.model

    @property
    def default_max_tokens(self) -> int:
        return DEFAULT_COMPLETION_TOKENS

    @property
    def output_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def echoes(self) -> bool:
        return bool(self.echo)

    def contradiction(self) -> tuple[str, str] | None:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            return "max_tokens", "0 is not allowed; allowed: 1 or more, or 0 with echo"
        return super().contradiction()


def _calls_or_none(calls: object, info: ValidationInfo) -> object:
    """`calls`, or None for an empty list, which some servers send for no calls."""
    return None if calls == [] and not is_strict(info) else calls


LEGACY_CALL_ID: Final = "function0"
"""Id given to a call in `function_call`, whose result follows in a message of role `function`. It
has nine letters and digits, as Mistral's templates require."""


class ChatMessage(RequestModel):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[
        Annotated[list[MadeCall], Field(min_length=1, fail_fast=True)] | None,
        BeforeValidator(_calls_or_none),
    ] = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    """A call in the form that OpenAI's API had before `tool_calls`."""
    refusal: str | None = None
    """An assistant's refusal; part of its text."""
    audio: dict[str, Any] | None = None
    """Speech of an assistant; the model sees its `transcript`, if it has one."""
    annotations: Any = None
    """Annotations of the text; the model does not see them."""
    reasoning_content: str | None = None
    """Earlier reasoning of an assistant; the chat template decides whether the model sees it."""
    reasoning: str | None = None
    """Another name of `reasoning_content`, read if that is missing."""

    @model_validator(mode="after")
    def _fits_its_role(self, info: ValidationInfo) -> ChatMessage:
        for name in ("tool_calls", "function_call", "audio"):
            if getattr(self, name) is not None and self.role != "assistant":
                raise ValueError(f"{name} with role assistant only")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id with role tool, and with no other")
        says = self.content is not None or self.refusal or self.audio or self.calls
        # An answer cut off inside its reasoning has no content, and some tools return no content.
        if not says and (self.role in ("system", "developer", "user") or is_strict(info)):
            raise ValueError("a message with content, or with tool_calls")
        return self

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls of tools, as chat templates expect them."""
        calls = [call.for_template() for call in self.tool_calls or ()]
        if self.function_call is not None:
            legacy = MadeCall(id=LEGACY_CALL_ID, type="function", function=self.function_call)
            calls.append(legacy.for_template())
        return calls

    @property
    def has_parts(self) -> bool:
        """Whether the content is a list, with parts that the model may not see."""
        return isinstance(self.content, list)

    @property
    def text(self) -> str:
        """The whole text of the message."""
        spoken = ""
        if self.audio is not None:
            transcript = self.audio.get("transcript")
            spoken = transcript if isinstance(transcript, str) else _AUDIO.text
        content = self.content or ""
        own = content if isinstance(content, str) else text_of_parts(content)
        return GAP.join(filter(None, (own, self.refusal, spoken)))

    @property
    def seen(self) -> SeenTurn:
        """The message's turn, with the parts that the model does not see."""
        unseen = list(unseen_among(self.content))
        if self.audio is not None:
            unseen.append(UnseenAt(_AUDIO))
        returns = self.role in ("tool", "function") or self.tool_calls or self.function_call
        return SeenTurn("tool" if returns else self.role, unseen)

    def for_template(self) -> dict[str, Any]:
        """Message as chat templates expect it: content as one string, arguments as objects."""
        message: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.role == "function":
            message |= {"role": "tool", "tool_call_id": LEGACY_CALL_ID}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if (reasoning := self.reasoning_content or self.reasoning) is not None:
            message["reasoning_content"] = reasoning
        if calls := self.calls:
            message["tool_calls"] = calls
        return message


_AUDIO: Final = Unseen(type="audio")


class ChatRequest(GenerationRequest, ToolFields):
    """`POST /v1/chat/completions`."""

    model: str | None = None
    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    max_completion_tokens: int | None = Field(default=None, ge=1, lt=INT64)
    logprobs: bool | None = None
    """Whether to return logprobs."""
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Number of top logprobs for each token."""
    chat_template_kwargs: TemplateOptions | None = None
    """Variables for the model's chat template."""
    reasoning_effort: str | None = None
    """Given to chat templates that read it."""
    add_generation_prompt: bool | None = None
    """False: the prompt ends with the last message, without the start of an answer."""
    continue_final_message: bool | None = None
    """Whether the answer continues the last message, which must be the assistant's."""

    @property
    def offers_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def continued_text(self) -> str | None:
        """Text that the answer continues; None: it starts a message."""
        if not self.continue_final_message:
            return None
        return str(self.messages[-1].for_template()["content"])

    @property
    def requested_model(self) -> str | None:
        return self.model

    @property
    def skipped(self) -> list[str]:
        """Paths of history content that the model does not see."""
        turns = self._turns
        return skipped_paths("messages", turns) if turns else []

    @property
    def _turns(self) -> list[SeenTurn]:
        """Turns of the messages, with their unseen parts; empty in the usual case that all are
        plain texts."""
        if all(message.audio is None and not message.has_parts for message in self.messages):
            return []
        return [message.seen for message in self.messages]

    @property
    def token_limit(self) -> tuple[str, int | None]:
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return super().token_limit

    @property
    def output_logprobs(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    def contradiction(self) -> tuple[str, str] | None:
        turns = self._turns
        if turns and (asked := asked_unseen("messages", turns, '"text"')):
            return asked
        if self.top_logprobs is not None and not self.logprobs:
            return "top_logprobs", "given without logprobs; allowed: only with logprobs true"
        if self.continue_final_message and (says := self._refuses_to_continue()):
            return "continue_final_message", says
        own, usual = self.max_completion_tokens, self.max_tokens
        if own is not None and usual is not None and own != usual:
            return "max_completion_tokens", (
                f"{shown_json(own)} beside max_tokens {shown_json(usual)} is not allowed; allowed: "
                "one of the two, or the same in both"
            )
        return super().contradiction()

    def _refuses_to_continue(self) -> str | None:
        if self.add_generation_prompt:
            return "given with add_generation_prompt true; allowed: with false, or without it"
        last = self.messages[-1]
        if last.role != "assistant" or last.content is None or last.tool_calls:
            return "allowed: where the last message is the assistant's, with content and no calls"
        return None


class TokenizeRequest(RequestModel):
    """`POST /tokenize`: a prompt, or a conversation with those chat fields that the template
    reads."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    """Whether the answer also has each token as the vocabulary spells it."""


class DetokenizeRequest(RequestModel):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(max_length=MAX_PROMPT_TOKENS, fail_fast=True)]


class AbortRequest(RequestModel):
    """`POST /abort_request`."""

    request_id: RequestName
    """An `x-request-id`, a `request_id`, or the id of a response."""
