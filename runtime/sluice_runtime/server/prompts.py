"""From a parsed request to what the engine is told: prompt ids, sampling, limits.

Tokenising is CPU work: call `plan_*` in a thread. Knows neither the engine's queue nor HTTP.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sluice_runtime.errors import InvalidRequestError, ModelLoadError
from sluice_runtime.messages import Grammar, Sampling
from sluice_runtime.scheduler.limits import Limits, most_new_tokens, refusal
from sluice_runtime.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from sluice_runtime.server.structured import grammar_of
from sluice_runtime.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sluice_runtime.chat_template import ChatTemplate

_SEED_BITS: Final = 63


@dataclass(frozen=True)
class Defaults:
    """What generation_config.json says for a client that says nothing."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1


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
    priority: int = 0
    grammar: Grammar | None = None
    cache_salt: str = ""


@dataclass(frozen=True)
class ModelText:
    """What the model's files say about text, loaded once."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: Defaults


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

    def plan_chat(self, request: ChatRequest) -> list[ChoicePlan]:
        """`n` plans for the conversation; raises InvalidRequestError like `plan_completion`."""
        if self.text.template is None:
            raise InvalidRequestError(
                "messages: the model has no chat template; use /v1/completions", "messages"
            )
        prompt = self.text.template.render([m.for_template() for m in request.messages])
        ids = self.text.tokenizer.encode(prompt, add_special_tokens=False)
        return self._plans(request, [ids], "messages")

    def _prompts(self, request: CompletionRequest) -> list[list[int]]:
        given = request.prompt
        entries = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        return [self._prompt_ids(entry) for entry in entries]

    def _prompt_ids(self, entry: object) -> list[int]:
        if isinstance(entry, str):
            return self.text.tokenizer.encode(entry, add_special_tokens=True)
        assert isinstance(entry, list)
        return entry

    def _plans(
        self, request: GenerationRequest, prompts: Sequence[list[int]], param: str
    ) -> list[ChoicePlan]:
        for ids in prompts:
            if reason := refusal(self.limits, len(ids)) or self._unknown_token(ids):
                raise InvalidRequestError(f"{param}: {reason}", param)
        base = self._sampling(request)
        eos = () if request.ignore_eos else self.text.defaults.eos_token_ids
        stop_ids = sorted({*eos, *(request.stop_token_ids or ())})
        grammar = grammar_of(request, eos)
        return [
            ChoicePlan(
                index=number * request.choices + choice,
                prompt_ids=ids,
                max_tokens=self._max_tokens(request, len(ids)),
                sampling=_for_choice(base, choice),
                stop_token_ids=stop_ids,
                ignore_eos=bool(request.ignore_eos),
                stops=request.stops,
                priority=request.priority or 0,
                grammar=grammar,
                cache_salt=request.cache_salt or "",
            )
            for number, ids in enumerate(prompts)
            for choice in range(request.choices)
        ]

    def _unknown_token(self, ids: Sequence[int]) -> str | None:
        """Why the model has no embedding for one of `ids`; tokenizers may know more tokens."""
        largest = max(ids)
        if largest < self.vocabulary_size:
            return None
        return f"token id {largest} is not allowed; allowed: 0 to {self.vocabulary_size - 1}"

    def _sampling(self, request: GenerationRequest) -> Sampling:
        defaults = self.text.defaults
        top_k = defaults.top_k if request.top_k is None else request.top_k
        seed = self.draw_seed() if request.seed is None else request.seed % 2**_SEED_BITS
        return Sampling(
            temperature=_given(request.temperature, defaults.temperature),
            top_p=_given(request.top_p, defaults.top_p),
            top_k=top_k or -1,
            seed=seed,
        )

    def _max_tokens(self, request: GenerationRequest, prompt_tokens: int) -> int:
        room = most_new_tokens(self.limits, prompt_tokens)
        field, wanted = request.answer_tokens
        if wanted is None:
            return room
        if wanted > room:
            raise InvalidRequestError(
                f"{field}: {wanted} is not allowed; allowed: at most {room} after a prompt of "
                f"{prompt_tokens} tokens (context {self.limits.context_length_tokens}, KV pool "
                f"{self.limits.kv_pool_tokens} tokens)",
                field,
            )
        return wanted


def defaults_from(
    generation: Mapping[str, Any], eos_token_ids: tuple[int, ...]
) -> tuple[Defaults, list[str]]:
    """The defaults in generation_config.json, and the keys that are left out for now.

    Raises:
        ModelLoadError: a value is no number; names the key.
    """
    defaults = Defaults(
        eos_token_ids=eos_token_ids,
        temperature=_number(generation, "temperature", 1.0),
        top_p=_number(generation, "top_p", 1.0),
        top_k=int(_number(generation, "top_k", -1)) or -1,
    )
    left_out = [key for key, off in _NOT_HONOURED.items() if generation.get(key) not in (None, off)]
    return defaults, left_out


_NOT_HONOURED: Final = {"repetition_penalty": 1.0, "min_p": 0.0, "no_repeat_ngram_size": 0}
"""Keys of generation_config.json that change tokens, with the value that does not."""


def _number(generation: Mapping[str, Any], key: str, default: float) -> float:
    value = generation.get(key)
    if value is None:
        return default
    if not isinstance(value, int | float):
        raise ModelLoadError(f"generation_config.json: {key}: {value!r}; allowed: a number")
    return value


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


def _for_choice(base: Sampling, choice: int) -> Sampling:
    """Choice 0 has the request's seed, so it is what a request with n = 1 gets."""
    if choice == 0:
        return base
    digest = hashlib.blake2b(f"{base.seed}/{choice}".encode(), digest_size=8).digest()
    return Sampling(base.temperature, base.top_p, base.top_k, int.from_bytes(digest, "little") >> 1)
