"""The prompts of a parsed request: rendered, tokenised, cut, and refused where none can be served.

Tokenising is CPU work: call it in a thread. Megabytes of text would take seconds and hundreds of
megabytes, so a text that is far too long is not tokenised as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

from sluice_contract.config.server import DEFAULT_MAX_CHOICES_PER_REQUEST
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import ContextLengthError, InvalidRequestError, UnsupportedFieldError
from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.scheduler.limits import Limits, refusal
from sluice_runtime.server.conversation import ConversationRenderer, RenderedChat
from sluice_runtime.server.fields import MAX_IGNORED_FIELDS, AnsweredRequest
from sluice_runtime.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from sluice_runtime.server.reasoning.formats import ReasoningForm
from sluice_runtime.server.sampling_plan import Defaults, refuse_unknown_tokens
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.formats import ToolFormat
from sluice_runtime.server.tools.plan import ToolPlan, plan_tools

if TYPE_CHECKING:
    from sluice_runtime.model.chat_template import ChatTemplate

_CHARACTERS_A_TOKEN: Final = 8
"""A text with at most this many characters for each allowed token is tokenised as a whole."""
_SLICE_CHARACTERS: Final = 16_384
_DOUBT: Final = 1.125
"""Margin for the count over slices: cutting a text may split tokens, so that the slices have more
tokens than the text."""


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request."""

    token_ids: list[int]
    echo: str | None = None
    """Text of the prompt, if the answer begins with it."""


@dataclass(frozen=True)
class ModelText:
    """Definitions about text in the model's files, loaded once."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: Defaults
    tool_format: ToolFormat | None = None
    """The model's format of tool calls, if known."""
    structured_output_unavailable: str | None = None
    """Why the model cannot have structured output; None: it can."""
    tokenizer_digest: str = ""
    """Equal for equal tokenizers."""
    reasoning_form: ReasoningForm | None = None
    """How the model writes its reasoning, if known."""

    @cached_property
    def token_texts(self) -> TokenTexts:
        """The text of single tokens, for logprobs."""
        return TokenTexts(self.tokenizer)

    @cached_property
    def special_texts(self) -> Mapping[int, str]:
        """The special tokens with their text."""
        return {token: self.tokenizer.token_name(token) for token in self.tokenizer.hidden_ids}


@dataclass(frozen=True)
class ServedModel:
    """The loaded model and the server's bounds, which all requests are planned against."""

    text: ModelText
    limits: Limits
    vocabulary_size: int
    max_choices: int = DEFAULT_MAX_CHOICES_PER_REQUEST
    """Most answers that one request may ask for."""
    strict: bool = False
    """Whether a limit of the answer beyond what is left is refused, rather than lowered."""


def completion_prompts(model: ServedModel, request: CompletionRequest) -> list[Prompt]:
    """The prompts of a completion, in order.

    Raises:
        InvalidRequestError: there are too many of them, or one is too long.
    """
    prompt = request.prompt
    entries = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    refuse_many_choices(model, len(entries), request.choices)
    return [_completion_prompt(model, request, entry) for entry in entries]


def token_ids(
    model: ServedModel, request: ChatRequest | CompletionRequest, unix_seconds: float
) -> tuple[list[int], Sequence[str]]:
    """Token ids of the whole prompt, which is a conversation or one text, and the template's
    changes of it. Raises the errors that its plan raises."""
    if isinstance(request, CompletionRequest):
        assert isinstance(request.prompt, str)
        return encoded(model, request, request.prompt, "prompt"), ()
    chat = rendered_chat(model, request, tool_plan(model, request), unix_seconds)
    return encoded(model, request, chat.prompt, "messages"), chat.changes


def tool_plan(model: ServedModel, request: ChatRequest) -> ToolPlan | None:
    """How the tools of a chat are offered and called; None: it has none."""
    if not request.tools and request.tool_choice is None:
        return None
    template = model.text.template
    return plan_tools(
        request,
        model.text.tool_format,
        model.text.tokenizer.special_id,
        strict=model.strict,
        one_call=template is not None and template.chosen(with_tools=True).takes_one_call_a_turn,
    )


def rendered_chat(
    model: ServedModel, request: ChatRequest, tools: ToolPlan | None, unix_seconds: float
) -> RenderedChat:
    """The conversation as the model's template writes it; `unix_seconds`: the date that the
    template may write.

    Raises:
        UnsupportedFieldError: the model has no chat template.
    """
    text = model.text
    if text.template is None:
        raise UnsupportedFieldError(
            "messages: this model has no chat template; allowed: /v1/completions", "messages"
        )
    renderer = ConversationRenderer(
        text.template.chosen(with_tools=tools is not None),
        text.reasoning_form.end if text.reasoning_form else "",
        unix_seconds,
        model.strict,
        partial(surely_exceeds, text.tokenizer, max_tokens=model.limits.request_tokens),
    )
    return renderer.render(request, tools.shown if tools else None)


def unread_options(text: ModelText, request: AnsweredRequest, *, strict: bool) -> list[str]:
    """Names in `chat_template_kwargs` that the model's chat template does not read.

    Raises:
        InvalidRequestError: there are some, and `strict` is set.
    """
    options = getattr(request, "chat_template_kwargs", None)
    if not options or text.template is None:
        return []
    template = text.template.chosen(with_tools=request.offers_tools)
    unread = template.unread(options)
    if strict and unread:
        allowed = ", ".join(sorted(template.options)) or "leaving it out"
        raise InvalidRequestError(
            f"chat_template_kwargs: {shown_json(unread[0])} is not read by the model's chat "
            f"template; allowed: {allowed} (strictRequests)",
            "chat_template_kwargs",
        )
    return [f"chat_template_kwargs.{name}" for name in unread[:MAX_IGNORED_FIELDS]]


def refuse_many_choices(model: ServedModel, prompts: int, choices: int) -> None:
    """Refuses more answers than the server allows, before anything is rendered or tokenised;
    `choices`: for each prompt."""
    if prompts * choices > model.max_choices:
        raise InvalidRequestError(
            f"n: {choices} for each of {prompts} prompts, {prompts * choices} answers, is not "
            f"allowed; allowed: at most {model.max_choices} answers "
            "(server.maxChoicesPerRequest)",
            "n" if choices > 1 else "prompt",
        )


def encoded(model: ServedModel, request: GenerationRequest, text: str, param: str) -> list[int]:
    """Token ids of a text; only its end is tokenised where the request truncates its prompt.

    Raises:
        ContextLengthError: the text is far too long.
    """
    tokenizer, max_tokens = model.text.tokenizer, model.limits.request_tokens
    if (kept := _kept_tokens(request, max_tokens)) is not None:
        text = end_of(tokenizer, text, kept)
    elif surely_exceeds(tokenizer, text, max_tokens):
        raise _too_long(model.limits, request, f"more than {max_tokens}", param)
    special = request.add_special_tokens
    if special is None:
        special = not isinstance(request, ChatRequest)
    return tokenizer.encode(text, add_special_tokens=special)


def servable(model: ServedModel, request: GenerationRequest, prompt: Prompt, param: str) -> Prompt:
    """The prompt, cut to its last tokens if `truncate_prompt_tokens` says so.

    Raises:
        InvalidRequestError: it can never be served.
    """
    prompt = _truncated(model, request, prompt)
    if reason := refusal(model.limits, len(prompt.token_ids), request.least_answer):
        if prompt.token_ids:
            raise _too_long(model.limits, request, str(len(prompt.token_ids)), param)
        raise InvalidRequestError(f"{param}: {reason}", param)
    refuse_unknown_tokens(param, prompt.token_ids, model.vocabulary_size)
    return prompt


def _completion_prompt(model: ServedModel, request: CompletionRequest, entry: object) -> Prompt:
    if isinstance(entry, str):
        ids = encoded(model, request, entry, "prompt")
        return Prompt(ids, entry if request.echoes else None)
    assert isinstance(entry, list)
    return Prompt(entry, model.text.tokenizer.decode(entry) if request.echoes else None)


def _truncated(model: ServedModel, request: GenerationRequest, prompt: Prompt) -> Prompt:
    kept = _kept_tokens(request, model.limits.request_tokens)
    if kept is None or len(prompt.token_ids) <= kept:
        return prompt
    ids = prompt.token_ids[-kept:]
    return Prompt(ids, None if prompt.echo is None else model.text.tokenizer.decode(ids))


def _kept_tokens(request: GenerationRequest, request_tokens: int) -> int | None:
    """How many tokens of a prompt to keep; None: all. `request_tokens`: most tokens of a prompt
    and its answer."""
    if request.truncate_prompt_tokens != -1:
        tokens = request.truncate_prompt_tokens
        return None if tokens is None else min(tokens, request_tokens)
    field, limit = request.token_limit
    answer = (request.default_max_tokens or 1) if limit is None else limit
    if answer >= request_tokens:
        raise InvalidRequestError(
            f"{field}: {answer} leaves no room for a prompt with truncate_prompt_tokens -1; "
            f"allowed: at most {request_tokens - 1}",
            field,
        )
    return request_tokens - answer


def _too_long(
    limits: Limits, request: GenerationRequest, tokens: str, param: str
) -> ContextLengthError:
    most, answer = limits.request_tokens - request.least_answer, request.least_answer
    return ContextLengthError(
        f"{param}: {tokens} tokens are not allowed; allowed: 1 to {most} in a prompt, "
        f"with {answer} token of answer (context length of {limits.context_length_tokens} "
        f"tokens, KV pool of {limits.kv_pool_tokens})",
        param,
    )


def surely_exceeds(tokenizer: Tokenizer, text: str, max_tokens: int) -> bool:
    """True only if `text` has more than `max_tokens`. False: it may have more or fewer."""
    if len(text) <= max_tokens * _CHARACTERS_A_TOKEN:
        return False
    counted = 0
    for begin in range(0, len(text), _SLICE_CHARACTERS):
        part = text[begin : begin + _SLICE_CHARACTERS]
        counted += len(tokenizer.encode(part, add_special_tokens=False))
        if counted > max_tokens * _DOUBT:
            return True
    return False


def end_of(tokenizer: Tokenizer, text: str, tokens: int) -> str:
    """A suffix of `text` with more than `tokens` tokens; the whole text if it has no more."""
    characters = _SLICE_CHARACTERS + tokens * _CHARACTERS_A_TOKEN
    while characters < len(text):
        end = text[-characters:]
        if len(tokenizer.encode(end, add_special_tokens=False)) > tokens * _DOUBT + 1:
            return end
        characters *= 2
    return text
