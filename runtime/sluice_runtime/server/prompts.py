"""Plans for the engine from a parsed request: prompt ids, sampling, limits.

Tokenising is CPU work: call `plan_*` in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final

import msgspec
from sluice_contract.config.server import DEFAULT_MAX_CHOICES_PER_REQUEST
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import ContextLengthError, InvalidRequestError, UnsupportedFieldError
from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.scheduler.limits import Limits, max_new_tokens, refusal
from sluice_runtime.server.conversation import ConversationRenderer, RenderedChat
from sluice_runtime.server.fields import MAX_IGNORED_FIELDS, AnsweredRequest
from sluice_runtime.server.prompt_length import end_of, surely_exceeds
from sluice_runtime.server.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationRequest,
)
from sluice_runtime.server.reasoning.formats import AnswerReasoning, ReasoningForm
from sluice_runtime.server.sampling_plan import (
    Defaults,
    for_choice,
    refuse_many_scores,
    refuse_unknown_tokens,
    sampling_of,
    scored_answer_tokens,
)
from sluice_runtime.server.structured import AnswerGrammar, StructuredFields, grammar_of
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.formats import ToolFormat
from sluice_runtime.server.tools.plan import CallReading, ToolPlan, plan_tools
from sluice_runtime.wire.messages import Grammar, Sampling

if TYPE_CHECKING:
    from sluice_runtime.model.chat_template import ChatTemplate
    from sluice_runtime.server.generate_request import GenerateRequest


_STRUCTURED_FIELDS: Final = tuple(StructuredFields.model_fields)


@dataclass(frozen=True)
class ChoicePlan:
    """One choice to generate: what the engine needs, and how its text is made."""

    index: int
    """Number of the choice in the response."""
    prompt_ids: list[int]
    max_tokens: int
    sampling: Sampling
    stop_token_ids: list[int]
    ignore_eos: bool
    stops: Sequence[str]
    min_tokens: int = 0
    """Number of tokens before which stop strings have no effect."""
    keeps_stop: bool = False
    """Whether the stop string is included in the text."""
    priority: int = 0
    grammar: Grammar | None = None
    left_out: Sequence[str] = ()
    """Constraints of the request that the grammar does not enforce."""
    reading: CallReading | None = None
    """How tool calls are parsed; None: there are none."""
    reasoning: AnswerReasoning | None = None
    """How reasoning is separated from the answer; None: there is none."""
    cache_salt: str = ""
    adapter: str = ""
    """Key of the adapter that it is generated with, if any."""
    logprobs: int = -1
    """Number of top logprobs for each token; -1: no logprobs at all."""
    prompt_logprobs: int = -1
    echo: str | None = None
    """The prompt's text, if the answer begins with it."""
    special_texts: Mapping[int, str] = field(default_factory=dict)
    """Special tokens that the client asked for in the text, with their text."""
    returns_token_ids: bool = False
    template_changes: Sequence[str] = ()
    """Changes of the conversation by the chat template, as names of fields."""

    @property
    def shown_tokens(self) -> Mapping[int, str]:
        """Special tokens that are decoded as text, with their text."""
        if self.special_texts:
            return self.special_texts
        calls = {} if self.reading is None else self.reading.shown_tokens
        return {**calls, **({} if self.reasoning is None else self.reasoning.shown_tokens)}

    @property
    def engine_prompt_logprobs(self) -> int:
        """Number of prompt logprobs that the engine computes: an echoed prompt has as many as the
        answer."""
        echoed = self.logprobs if self.echo is not None else -1
        return max(self.prompt_logprobs, echoed)


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
class Planner:
    """Turns requests into plans for one engine."""

    text: ModelText
    limits: Limits
    vocabulary_size: int
    draw_seed: Callable[[], int]
    """Returns 63 random bits, for requests without a seed."""
    unix_seconds: float
    """When the answer began: a chat template may write the date."""
    adapter: str = ""
    """Key of the adapter that the answer is generated with, if any."""
    max_choices: int = DEFAULT_MAX_CHOICES_PER_REQUEST
    """Most answers that one request may ask for."""
    strict: bool = False
    """Whether a limit of the answer beyond what is left is refused, rather than lowered."""

    def plan_completion(self, request: CompletionRequest) -> list[ChoicePlan]:
        """`n` plans for each prompt, in order.

        Raises:
            InvalidRequestError: a prompt can never be served.
        """
        return self._plans(request, self._prompts(request), "prompt")

    def plan_generate(self, request: GenerateRequest) -> list[ChoicePlan]:
        """One plan; raises like `plan_completion`."""
        if request.input_ids is not None:
            return self._plans(request, [Prompt(request.input_ids)], "input_ids")
        assert request.text is not None, "parsing has refused it"
        ids = self._encoded(request, request.text, "text")
        return self._plans(request, [Prompt(ids)], "text")

    def plan_chat(self, request: ChatRequest) -> list[ChoicePlan]:
        """`n` plans for the conversation.

        Raises:
            UnsupportedFieldError: the model has no chat template.
            InvalidRequestError: as `plan_completion`.
        """
        self._refuse_many_choices(1, request.choices)
        tools = self._tools(request)
        chat = self._rendered(request, tools)
        ids = self._encoded(request, chat.prompt, "messages")
        plans = self._plans(request, [Prompt(ids)], "messages", tools)
        reasoning = self._reasoning(chat.prompt, plans[0].grammar, tools, request.continued_text)
        return [replace(plan, reasoning=reasoning, template_changes=chat.changes) for plan in plans]

    def token_ids(
        self, request: ChatRequest | CompletionRequest
    ) -> tuple[list[int], Sequence[str]]:
        """Token ids of the whole prompt, which is a conversation or one text, and the template's
        changes of it. Raises the errors that its plan raises."""
        if isinstance(request, CompletionRequest):
            assert isinstance(request.prompt, str)
            return self._encoded(request, request.prompt, "prompt"), ()
        chat = self._rendered(request, self._tools(request))
        return self._encoded(request, chat.prompt, "messages"), chat.changes

    def _tools(self, request: ChatRequest) -> ToolPlan | None:
        if not request.tools and request.tool_choice is None:
            return None
        template = self.text.template
        return plan_tools(
            request,
            self.text.tool_format,
            self.text.tokenizer.special_id,
            strict=self.strict,
            one_call=template is not None
            and template.chosen(with_tools=True).takes_one_call_a_turn,
        )

    def _rendered(self, request: ChatRequest, tools: ToolPlan | None) -> RenderedChat:
        """The conversation as the model's template writes it."""
        if self.text.template is None:
            raise UnsupportedFieldError(
                "messages: this model has no chat template; allowed: /v1/completions", "messages"
            )
        renderer = ConversationRenderer(
            self.text.template.chosen(with_tools=tools is not None),
            self.text.reasoning_form.end if self.text.reasoning_form else "",
            self.unix_seconds,
            self.strict,
            partial(surely_exceeds, self.text.tokenizer, max_tokens=self.limits.request_tokens),
        )
        return renderer.render(request, tools.shown if tools else None)

    def _reasoning(
        self, prompt: str, grammar: Grammar | None, tools: ToolPlan | None, continued: str | None
    ) -> AnswerReasoning | None:
        """None if a grammar constrains the answer from its first token."""
        form, calls = self.text.reasoning_form, tools.reading if tools else None
        free = calls is not None and not (calls.calls_only or calls.calls_or_format)
        if form is None or not (grammar is None or free):
            return None
        return form.for_prompt(prompt, self.text.tokenizer.special_id, continued)

    def unread_options(self, request: AnsweredRequest, *, strict: bool) -> list[str]:
        """Names in `chat_template_kwargs` that the model's chat template does not read.

        Raises:
            InvalidRequestError: there are some, and `strict` is set.
        """
        options = getattr(request, "chat_template_kwargs", None)
        if not options or self.text.template is None:
            return []
        template = self.text.template.chosen(with_tools=request.offers_tools)
        unread = template.unread(options)
        if strict and unread:
            allowed = ", ".join(sorted(template.options)) or "leaving it out"
            raise InvalidRequestError(
                f"chat_template_kwargs: {shown_json(unread[0])} is not read by the model's chat "
                f"template; allowed: {allowed} (strictRequests)",
                "chat_template_kwargs",
            )
        return [f"chat_template_kwargs.{name}" for name in unread[:MAX_IGNORED_FIELDS]]

    def _prompts(self, request: CompletionRequest) -> list[Prompt]:
        prompt = request.prompt
        entries = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        self._refuse_many_choices(len(entries), request.choices)
        return [self._prompt(request, entry) for entry in entries]

    def _refuse_many_choices(self, prompts: int, choices: int) -> None:
        """`choices`: for each prompt. Before anything is rendered or tokenised."""
        if prompts * choices > self.max_choices:
            raise InvalidRequestError(
                f"n: {choices} for each of {prompts} prompts, {prompts * choices} answers, is not "
                f"allowed; allowed: at most {self.max_choices} answers "
                "(server.maxChoicesPerRequest)",
                "n" if choices > 1 else "prompt",
            )

    def _prompt(self, request: CompletionRequest, entry: object) -> Prompt:
        if isinstance(entry, str):
            ids = self._encoded(request, entry, "prompt")
            return Prompt(ids, entry if request.echoes else None)
        assert isinstance(entry, list)
        return Prompt(entry, self.text.tokenizer.decode(entry) if request.echoes else None)

    def _encoded(self, request: GenerationRequest, text: str, param: str) -> list[int]:
        tokenizer, max_tokens = self.text.tokenizer, self.limits.request_tokens
        if (kept := self._kept_tokens(request)) is not None:
            text = end_of(tokenizer, text, kept)
        elif surely_exceeds(tokenizer, text, max_tokens):
            raise self._too_long(request, f"more than {max_tokens}", param)
        special = request.add_special_tokens
        if special is None:
            special = not isinstance(request, ChatRequest)
        return tokenizer.encode(text, add_special_tokens=special)

    def _truncated(self, request: GenerationRequest, prompt: Prompt) -> Prompt:
        """The prompt, cut to its last tokens if `truncate_prompt_tokens` says so."""
        kept = self._kept_tokens(request)
        if kept is None or len(prompt.token_ids) <= kept:
            return prompt
        ids = prompt.token_ids[-kept:]
        return Prompt(ids, None if prompt.echo is None else self.text.tokenizer.decode(ids))

    def _kept_tokens(self, request: GenerationRequest) -> int | None:
        """How many tokens of a prompt to keep; None: all."""
        if request.truncate_prompt_tokens != -1:
            tokens = request.truncate_prompt_tokens
            return None if tokens is None else min(tokens, self.limits.request_tokens)
        limit = request.token_limit[1]
        answer = (request.default_max_tokens or 1) if limit is None else limit
        if answer >= self.limits.request_tokens:
            field, most = request.token_limit[0], self.limits.request_tokens - 1
            raise InvalidRequestError(
                f"{field}: {answer} leaves no room for a prompt with truncate_prompt_tokens -1; "
                f"allowed: at most {most}",
                field,
            )
        return self.limits.request_tokens - answer

    def _too_long(self, request: GenerationRequest, tokens: str, param: str) -> ContextLengthError:
        most, answer = self.limits.request_tokens - request.least_answer, request.least_answer
        return ContextLengthError(
            f"{param}: {tokens} tokens are not allowed; allowed: 1 to {most} in a prompt, "
            f"with {answer} token of answer (context length of {self.limits.context_length_tokens} "
            f"tokens, KV pool of {self.limits.kv_pool_tokens})",
            param,
        )

    def _plans(
        self,
        request: GenerationRequest,
        prompts: Sequence[Prompt],
        param: str,
        tools: ToolPlan | None = None,
    ) -> list[ChoicePlan]:
        prompts = [self._truncated(request, prompt) for prompt in prompts]
        for prompt in prompts:
            self._refuse_unservable(request, prompt, param)
        refuse_many_scores(request, [len(prompt.token_ids) for prompt in prompts])
        answers, most = len(prompts) * request.choices, self.limits.request_tokens
        scored = scored_answer_tokens(request, answers, most)
        base = self._base_plan(request, tools)
        return [
            replace(
                base,
                index=number * request.choices + choice,
                prompt_ids=prompt.token_ids,
                max_tokens=self._max_tokens(request, len(prompt.token_ids), scored),
                sampling=for_choice(base.sampling, choice),
                echo=prompt.echo,
            )
            for number, prompt in enumerate(prompts)
            for choice in range(request.choices)
        ]

    def _base_plan(self, request: GenerationRequest, tools: ToolPlan | None) -> ChoicePlan:
        """Plan that all choices of the request share."""
        ignore_eos, eos = bool(request.ignore_eos), self._eos_token_ids()
        answer = self._grammar(request, tools, eos)
        grammar = None if answer is None else answer.grammar
        sampling = sampling_of(request, self.text.defaults, self.vocabulary_size, self.draw_seed())
        if grammar is not None:  # the grammar itself applies `min_tokens`
            sampling = msgspec.structs.replace(sampling, min_tokens=0)
        ends = () if ignore_eos and grammar is None else eos
        return ChoicePlan(
            index=0,
            prompt_ids=[],
            max_tokens=0,
            sampling=sampling,
            stop_token_ids=sorted({*ends, *self._own_stop_token_ids(request)}),
            ignore_eos=ignore_eos,
            stops=request.stops,
            min_tokens=request.min_tokens or 0,
            keeps_stop=bool(request.include_stop_str_in_output),
            priority=request.priority or 0,
            grammar=grammar,
            left_out=[
                *(tools.left_out if tools else ()),
                *(answer.left_out if answer else ()),
            ],
            reading=tools.reading if tools else None,
            cache_salt=request.cache_salt or "",
            adapter=self.adapter,
            logprobs=request.output_logprobs,
            prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
            special_texts={}
            if request.skip_special_tokens is not False
            else self.text.special_texts,
            returns_token_ids=bool(request.return_token_ids),
        )

    def _refuse_unservable(self, request: GenerationRequest, prompt: Prompt, param: str) -> None:
        if reason := refusal(self.limits, len(prompt.token_ids), request.least_answer):
            if prompt.token_ids:
                raise self._too_long(request, str(len(prompt.token_ids)), param)
            raise InvalidRequestError(f"{param}: {reason}", param)
        refuse_unknown_tokens(param, prompt.token_ids, self.vocabulary_size)

    def _grammar(
        self, request: GenerationRequest, tools: ToolPlan | None, eos: Sequence[int]
    ) -> AnswerGrammar | None:
        """The grammar for the answer; None: any text."""
        if tools is None and all(getattr(request, name) is None for name in _STRUCTURED_FIELDS):
            return None
        spec, min_tokens = tools.spec if tools else None, request.min_tokens or 0
        late = bool(request.ignore_eos)
        answer = grammar_of(request, eos, spec, min_tokens, ends_late=late, strict=self.strict)
        if answer is not None and self.text.structured_output_unavailable is not None:
            field = answer.grammar.field
            raise UnsupportedFieldError(
                f"{field}: {self.text.structured_output_unavailable}", field
            )
        return answer

    def _eos_token_ids(self) -> tuple[int, ...]:
        """The model's EOS tokens that have a logit."""
        eos = self.text.defaults.eos_token_ids
        return tuple([token for token in eos if 0 <= token < self.vocabulary_size])

    def _own_stop_token_ids(self, request: GenerationRequest) -> Sequence[int]:
        token_ids = request.stop_token_ids or ()
        refuse_unknown_tokens("stop_token_ids", token_ids, self.vocabulary_size)
        return token_ids

    def _max_tokens(
        self, request: GenerationRequest, prompt_tokens: int, scored: int | None
    ) -> int:
        """`scored`: most tokens for the answer's logprobs."""
        available = max_new_tokens(self.limits, prompt_tokens)
        field, requested = request.token_limit
        if requested is not None and requested > available and self.strict:
            raise InvalidRequestError(
                f"{field}: {shown_json(requested)} is not allowed; allowed: at most {available} "
                f"after a prompt of {prompt_tokens} tokens (context "
                f"{self.limits.context_length_tokens}, KV pool "
                f"{self.limits.kv_pool_tokens} tokens, strictRequests)",
                field,
            )
        default: tuple[int | None, ...] = ()
        if requested is None:
            default = (request.default_max_tokens, scored)
        bounds = (available, requested, *default)
        limit = min([bound for bound in bounds if bound is not None])
        min_tokens = request.min_tokens or 0
        if min_tokens > limit:
            raise InvalidRequestError(
                f"min_tokens: {shown_json(min_tokens)} is not allowed; allowed: at most {limit} "
                f"({field})",
                "min_tokens",
            )
        return limit
