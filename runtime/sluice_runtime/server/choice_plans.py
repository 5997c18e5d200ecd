"""Plans of a request's choices for the engine: sampling, grammar, limits and ends of the answer.

Planning tokenises, which is CPU work: call `plan_*` in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
from sluice_contract.log_lines import shown_json

from sluice_runtime.errors import InvalidRequestError, UnsupportedFieldError
from sluice_runtime.scheduler.limits import max_new_tokens
from sluice_runtime.server.prompts import (
    ModelText,
    Prompt,
    ServedModel,
    completion_prompts,
    encoded,
    refuse_many_choices,
    rendered_chat,
    servable,
    tool_plan,
)
from sluice_runtime.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from sluice_runtime.server.reasoning.formats import AnswerReasoning
from sluice_runtime.server.sampling_plan import (
    for_choice,
    refuse_many_scores,
    refuse_unknown_tokens,
    sampling_of,
    scored_answer_tokens,
)
from sluice_runtime.server.structured import AnswerGrammar, StructuredFields, grammar_of
from sluice_runtime.server.tools.plan import CallReading, ToolPlan
from sluice_runtime.wire.messages import Grammar, Sampling

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
class RequestContext:
    """Facts of one request that its body does not give."""

    seed: int
    """Seed of the answer, 63 random bits, where the body gives none."""
    unix_seconds: float
    """When the answer began: a chat template may write the date."""
    adapter: str = ""
    """Key of the adapter that the answer is generated with, if any."""


def plan_completion(
    model: ServedModel, context: RequestContext, request: CompletionRequest
) -> list[ChoicePlan]:
    """`n` plans for each prompt, in order.

    Raises:
        InvalidRequestError: a prompt can never be served.
    """
    return plan_prompts(model, context, request, completion_prompts(model, request), "prompt")


def plan_chat(
    model: ServedModel, context: RequestContext, request: ChatRequest
) -> list[ChoicePlan]:
    """`n` plans for the conversation.

    Raises:
        UnsupportedFieldError: the model has no chat template.
        InvalidRequestError: the conversation can never be served.
    """
    refuse_many_choices(model, 1, request.choices)
    tools = tool_plan(model, request)
    chat = rendered_chat(model, request, tools, context.unix_seconds)
    prompt = Prompt(encoded(model, request, chat.prompt, "messages"))
    plans = plan_prompts(model, context, request, [prompt], "messages", tools)
    reasoning = None
    if plans[0].grammar is None or _begins_with_text(tools):
        reasoning = _reasoning(model.text, chat.prompt, request.continued_text)
    return [replace(plan, reasoning=reasoning, template_changes=chat.changes) for plan in plans]


def plan_prompts(
    model: ServedModel,
    context: RequestContext,
    request: GenerationRequest,
    prompts: Sequence[Prompt],
    param: str,
    tools: ToolPlan | None = None,
) -> list[ChoicePlan]:
    """`n` plans for each prompt, in order; `param`: the field that they come from.

    Raises:
        InvalidRequestError: a prompt can never be served, or a field contradicts the model.
    """
    prompts = [servable(model, request, prompt, param) for prompt in prompts]
    refuse_many_scores(request, [len(prompt.token_ids) for prompt in prompts])
    answers, most = len(prompts) * request.choices, model.limits.request_tokens
    scored = scored_answer_tokens(request, answers, most)
    base = _base_plan(model, context, request, tools)
    return [
        replace(
            base,
            index=number * request.choices + choice,
            prompt_ids=prompt.token_ids,
            max_tokens=_max_tokens(model, request, len(prompt.token_ids), scored),
            sampling=for_choice(base.sampling, choice),
            echo=prompt.echo,
        )
        for number, prompt in enumerate(prompts)
        for choice in range(request.choices)
    ]


def _base_plan(
    model: ServedModel, context: RequestContext, request: GenerationRequest, tools: ToolPlan | None
) -> ChoicePlan:
    """Plan that all choices of the request share."""
    ignore_eos, eos = bool(request.ignore_eos), _eos_token_ids(model)
    answer = _grammar(model, request, tools, eos)
    grammar = None if answer is None else answer.grammar
    sampling = sampling_of(request, model.text.defaults, model.vocabulary_size, context.seed)
    if grammar is not None:  # the grammar itself applies `min_tokens`
        sampling = msgspec.structs.replace(sampling, min_tokens=0)
    ends = () if ignore_eos and grammar is None else eos
    return ChoicePlan(
        index=0,
        prompt_ids=[],
        max_tokens=0,
        sampling=sampling,
        stop_token_ids=sorted({*ends, *_own_stop_token_ids(model, request)}),
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
        adapter=context.adapter,
        logprobs=request.output_logprobs,
        prompt_logprobs=-1 if request.prompt_logprobs is None else request.prompt_logprobs,
        special_texts={} if request.skip_special_tokens is not False else model.text.special_texts,
        returns_token_ids=bool(request.return_token_ids),
    )


def _begins_with_text(tools: ToolPlan | None) -> bool:
    """Whether the grammar of these tools lets an answer begin with any text."""
    reading = tools.reading if tools else None
    return reading is not None and not (reading.calls_only or reading.calls_or_format)


def _reasoning(text: ModelText, prompt: str, continued: str | None) -> AnswerReasoning | None:
    """How reasoning is separated from the answer; None: the model writes no reasoning."""
    form = text.reasoning_form
    return None if form is None else form.for_prompt(prompt, text.tokenizer.special_id, continued)


def _grammar(
    model: ServedModel, request: GenerationRequest, tools: ToolPlan | None, eos: Sequence[int]
) -> AnswerGrammar | None:
    """The grammar for the answer; None: any text."""
    if tools is None and all(getattr(request, name) is None for name in _STRUCTURED_FIELDS):
        return None
    spec, min_tokens = tools.spec if tools else None, request.min_tokens or 0
    late = bool(request.ignore_eos)
    answer = grammar_of(request, eos, spec, min_tokens, ends_late=late, strict=model.strict)
    unavailable = model.text.structured_output_unavailable
    if answer is not None and unavailable is not None:
        raise UnsupportedFieldError(f"{answer.grammar.field}: {unavailable}", answer.grammar.field)
    return answer


def _eos_token_ids(model: ServedModel) -> tuple[int, ...]:
    """The model's EOS tokens that have a logit."""
    eos = model.text.defaults.eos_token_ids
    return tuple([token for token in eos if 0 <= token < model.vocabulary_size])


def _own_stop_token_ids(model: ServedModel, request: GenerationRequest) -> Sequence[int]:
    token_ids = request.stop_token_ids or ()
    refuse_unknown_tokens("stop_token_ids", token_ids, model.vocabulary_size)
    return token_ids


def _max_tokens(
    model: ServedModel, request: GenerationRequest, prompt_tokens: int, scored: int | None
) -> int:
    """Most tokens of an answer; `scored`: most tokens for the answer's logprobs."""
    limits = model.limits
    available = max_new_tokens(limits, prompt_tokens)
    field, requested = request.token_limit
    if requested is not None and requested > available and model.strict:
        raise InvalidRequestError(
            f"{field}: {shown_json(requested)} is not allowed; allowed: at most {available} "
            f"after a prompt of {prompt_tokens} tokens (context "
            f"{limits.context_length_tokens}, KV pool "
            f"{limits.kv_pool_tokens} tokens, strictRequests)",
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
