"""From a parsed request to what the engine is told: prompt ids, sampling, limits.

Tokenising is CPU work: call `plan_*` in a thread. Knows neither the engine's queue nor HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import (
    ContextLengthError,
    InvalidRequestError,
    UnsupportedFieldError,
)
from sluice_runtime.messages import Grammar, Sampling
from sluice_runtime.scheduler.limits import Limits, most_new_tokens, refusal
from sluice_runtime.server.prompt_length import surely_exceeds
from sluice_runtime.server.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    GenerationRequest,
)
from sluice_runtime.server.sampling_plan import (
    Defaults,
    for_choice,
    refuse_unknown_tokens,
    sampling_of,
)
from sluice_runtime.server.scored_values import refuse_many_scores
from sluice_runtime.server.structured import grammar_of
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.formats import ToolFormat
from sluice_runtime.server.tools.plan import CallReading, ToolPlan, plan_tools
from sluice_runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sluice_runtime.chat_template import ChatTemplate


@dataclass(frozen=True)
class ChoicePlan:
    """One answer to generate: all the engine is told, and where its text ends."""

    index: int
    """Number of the choice in the response."""
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: list[int]
    ignore_eos: bool
    stops: Sequence[str]
    min_tokens: int = 0
    """A stop string that ends before is text like any other."""
    keeps_stop: bool = False
    """Whether the stop string that was found is part of the answer."""
    priority: int = 0
    grammar: Grammar | None = None
    reading: CallReading | None = None
    """Set when the answer may hold tool calls."""
    cache_salt: str = ""
    logprobs: int = -1
    """Most probable tokens told beside each token; -1: none, nor the token's own."""
    prompt_logprobs: int = -1
    echo: str | None = None
    """The prompt's text, when the answer begins with it."""

    @property
    def shown_tokens(self) -> Mapping[int, str]:
        """Special tokens that are part of the answer's text."""
        return {} if self.reading is None else self.reading.shown_tokens

    @property
    def asked_prompt_logprobs(self) -> int:
        """An echoed prompt is scored like the answer."""
        echoed = self.logprobs if self.echo is not None else -1
        return max(self.prompt_logprobs, echoed)


@dataclass(frozen=True)
class Prompt:
    """One prompt of a request."""

    token_ids: list[int]
    echo: str | None = None
    """Its text, when the answer begins with it."""


@dataclass(frozen=True)
class ModelText:
    """What the model's files say about text, loaded once."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: Defaults
    tool_format: ToolFormat | None = None
    """How the model writes tool calls, if that is known."""
    formless: str | None = None
    """Why its answers can be held to no form; None when they can."""

    @cached_property
    def token_texts(self) -> TokenTexts:
        """What single tokens are called."""
        return TokenTexts(self.tokenizer)


@dataclass(frozen=True)
class Planner:
    """Turns requests into plans for one engine."""

    text: ModelText
    limits: Limits
    vocabulary_size: int
    draw_seed: Callable[[], int]
    """63 random bits, for a request that gives no seed."""

    def plan_completion(self, request: CompletionRequest) -> list[ChoicePlan]:
        """`n` plans a prompt, prompts in order.

        Raises:
            InvalidRequestError: a prompt can never be served.
        """
        return self._plans(request, self._prompts(request), "prompt")

    def plan_generate(self, request: GenerateRequest) -> list[ChoicePlan]:
        """One plan; raises InvalidRequestError like `plan_completion`."""
        if request.input_ids is not None:
            return self._plans(request, [Prompt(request.input_ids)], "input_ids")
        assert request.text is not None, "parsing has refused it"
        ids = self._encoded(request.text, "text", special=True)
        return self._plans(request, [Prompt(ids)], "text")

    def plan_chat(self, request: ChatRequest) -> list[ChoicePlan]:
        """`n` plans for the conversation.

        Raises:
            UnsupportedFieldError: the model has no chat template.
            InvalidRequestError: as `plan_completion`.
        """
        if self.text.template is None:
            raise UnsupportedFieldError(
                "messages: this model has no chat template; allowed: /v1/completions", "messages"
            )
        tools = plan_tools(request, self.text.tool_format, self.text.tokenizer.special_id)
        messages = [message.for_template() for message in request.messages]
        shown = tools.shown if tools else None
        prompt = self.text.template.render(messages, shown, request.chat_template_kwargs)
        ids = self._encoded(prompt, "messages", special=False)
        return self._plans(request, [Prompt(ids)], "messages", tools)

    def _prompts(self, request: CompletionRequest) -> list[Prompt]:
        given = request.prompt
        entries = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        return [self._prompt(entry, echoes=request.echoes) for entry in entries]

    def _prompt(self, entry: object, *, echoes: bool) -> Prompt:
        if isinstance(entry, str):
            ids = self._encoded(entry, "prompt", special=True)
            return Prompt(ids, entry if echoes else None)
        assert isinstance(entry, list)
        return Prompt(entry, self.text.tokenizer.decode(entry) if echoes else None)

    def _encoded(self, text: str, param: str, *, special: bool) -> list[int]:
        most = self.limits.request_tokens
        if surely_exceeds(self.text.tokenizer, text, most):
            raise self._too_long(f"more than {most}", param)
        return self.text.tokenizer.encode(text, add_special_tokens=special)

    def _too_long(self, tokens: str, param: str) -> ContextLengthError:
        most = self.limits.request_tokens - 1
        return ContextLengthError(
            f"{param}: {tokens} tokens are not allowed; allowed: 1 to {most} in a prompt, with 1 "
            f"token of answer (context length of {self.limits.context_length_tokens} tokens, KV "
            f"pool of {self.limits.kv_pool_tokens})",
            param,
        )

    def _plans(
        self,
        request: GenerationRequest,
        prompts: Sequence[Prompt],
        param: str,
        tools: ToolPlan | None = None,
    ) -> list[ChoicePlan]:
        for prompt in prompts:
            self._refuse_unservable(prompt, param)
        refuse_many_scores(request, [len(prompt.token_ids) for prompt in prompts])
        min_tokens, ignore_eos = request.min_tokens or 0, bool(request.ignore_eos)
        eos = self._eos_token_ids()
        grammar = self._grammar(request, tools, eos)
        base = sampling_of(request, self.text.defaults, self.vocabulary_size, self.draw_seed())
        if grammar is not None:  # which knows where an answer may go on
            base = msgspec.structs.replace(base, min_tokens=0)
        ends = () if ignore_eos and grammar is None else eos
        stop_ids = sorted({*ends, *self._own_stop_token_ids(request)})
        return [
            ChoicePlan(
                index=number * request.choices + choice,
                prompt_ids=prompt.token_ids,
                max_tokens=self._max_tokens(request, len(prompt.token_ids)),
                sampling=for_choice(base, choice),
                stop_token_ids=stop_ids,
                ignore_eos=ignore_eos,
                stops=request.stops,
                min_tokens=min_tokens,
                keeps_stop=bool(request.include_stop_str_in_output),
                priority=request.priority or 0,
                grammar=grammar,
                reading=tools.reading if tools else None,
                cache_salt=request.cache_salt or "",
                logprobs=request.told_logprobs,
                prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
                echo=prompt.echo,
            )
            for number, prompt in enumerate(prompts)
            for choice in range(request.choices)
        ]

    def _refuse_unservable(self, prompt: Prompt, param: str) -> None:
        if reason := refusal(self.limits, len(prompt.token_ids)):
            if prompt.token_ids:
                raise self._too_long(str(len(prompt.token_ids)), param)
            raise InvalidRequestError(f"{param}: {reason}", param)
        refuse_unknown_tokens(param, prompt.token_ids, self.vocabulary_size)

    def _grammar(
        self, request: GenerationRequest, tools: ToolPlan | None, eos: Sequence[int]
    ) -> Grammar | None:
        """What the answer must be, if anything."""
        wish, min_tokens = tools.wish if tools else None, request.min_tokens or 0
        ends_late = bool(request.ignore_eos)
        grammar = grammar_of(request, eos, wish, min_tokens, ends_late=ends_late)
        if grammar is not None and self.text.formless is not None:
            raise UnsupportedFieldError(f"{grammar.field}: {self.text.formless}", grammar.field)
        return grammar

    def _eos_token_ids(self) -> tuple[int, ...]:
        """Those that end answers and that the model can draw."""
        eos = self.text.defaults.eos_token_ids
        return tuple([token for token in eos if token < self.vocabulary_size])

    def _own_stop_token_ids(self, request: GenerationRequest) -> Sequence[int]:
        given = request.stop_token_ids or ()
        refuse_unknown_tokens("stop_token_ids", given, self.vocabulary_size)
        return given

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        room = most_new_tokens(self.limits, prompt_tokens)
        field, wanted = request.answer_tokens
        if wanted is not None and wanted > room:
            raise InvalidRequestError(
                f"{field}: {shown_json(wanted)} is not allowed; allowed: at most {room} after a "
                f"prompt of {prompt_tokens} tokens (context {self.limits.context_length_tokens}, "
                f"KV pool {self.limits.kv_pool_tokens} tokens)",
                field,
            )
        usual = request.usual_answer_tokens
        most = wanted if wanted is not None else min(room, room if usual is None else usual)
        least = request.min_tokens or 0
        if least > most:
            raise InvalidRequestError(
                f"min_tokens: {shown_json(least)} is not allowed; allowed: at most {most} "
                f"({field})",
                "min_tokens",
            )
        return most
