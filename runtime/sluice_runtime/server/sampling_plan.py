"""How a request's tokens are sampled, by the client's fields, else the model's defaults, else the
API's; and how many logprobs a request may ask for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pydantic import ValidationError
from sluice_contract.error_text import findings_of, text_of

from sluice_runtime.errors import InvalidRequestError, ModelLoadError
from sluice_runtime.server.protocol import GenerationRequest
from sluice_runtime.wire.messages import Sampling

_SEED_BITS: Final = 63


@dataclass(frozen=True)
class Defaults:
    """Defaults from generation_config.json."""

    eos_token_ids: tuple[int, ...] = ()
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def defaults_from(
    generation: Mapping[str, Any], eos_token_ids: tuple[int, ...]
) -> tuple[Defaults, list[str]]:
    """The defaults in generation_config.json, and the keys of it that this server ignores.

    Raises:
        ModelLoadError: a value is one that requests may not have; the message names the key.
    """
    defaults = Defaults(
        eos_token_ids=eos_token_ids,
        temperature=_number(generation, "temperature", 1.0),
        top_p=_number(generation, "top_p", 1.0),
        top_k=int(_number(generation, "top_k", -1)) or -1,
        min_p=_number(generation, "min_p", 0.0),
        repetition_penalty=_number(generation, "repetition_penalty", 1.0),
    )
    left_out = [key for key, off in _NOT_HONOURED.items() if generation.get(key) not in (None, off)]
    return defaults, left_out


_NOT_HONOURED: Final = {"no_repeat_ngram_size": 0, "do_sample": True}
"""Keys of generation_config.json that are ignored although they would change tokens, each with the
value that would not. Like vLLM and SGLang, this server samples despite `do_sample: false`: a
request gets greedy decoding by temperature 0."""


def sampling_of(
    request: GenerationRequest, defaults: Defaults, vocabulary_size: int, drawn_seed: int
) -> Sampling:
    """Sampling of the request's first choice; `drawn_seed` is used if the request has no seed.

    Raises:
        InvalidRequestError: `logit_bias` names a token that the model does not have.
    """
    biases = [(int(token), float(bias)) for token, bias in (request.logit_bias or {}).items()]
    refuse_unknown_tokens("logit_bias", (token for token, _ in biases), vocabulary_size)
    top_k = defaults.top_k if request.top_k is None else request.top_k
    return Sampling(
        temperature=_given(request.temperature, defaults.temperature),
        top_p=_given(request.top_p, defaults.top_p),
        top_k=top_k or -1,
        seed=drawn_seed if request.seed is None else request.seed % 2**_SEED_BITS,
        min_p=_given(request.min_p, defaults.min_p),
        presence_penalty=_given(request.presence_penalty, 0),
        frequency_penalty=_given(request.frequency_penalty, 0),
        repetition_penalty=_given(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=biases,
        min_tokens=request.min_tokens or 0,
    )


def for_choice(base: Sampling, choice: int) -> Sampling:
    """Sampling of choice number `choice`. Choice 0 has the request's own seed, so that its answer
    equals that of a request with n = 1."""
    if choice == 0:
        return base
    digest = hashlib.blake2b(f"{base.seed}/{choice}".encode(), digest_size=8).digest()
    return msgspec.structs.replace(base, seed=int.from_bytes(digest, "little") >> 1)


def refuse_unknown_tokens(field: str, token_ids: Iterable[int], vocabulary_size: int) -> None:
    """Raises InvalidRequestError for a token id beyond the model's vocabulary; a tokenizer may have
    more tokens than the model."""
    largest = max(token_ids, default=0)
    if largest >= vocabulary_size:
        raise InvalidRequestError(
            f"{field}: token id {largest} is not allowed; allowed: 0 to {vocabulary_size - 1}",
            field,
        )


def _number(generation: Mapping[str, Any], key: str, default: float) -> float:
    """A value of generation_config.json. Raises ModelLoadError if the request's field of that name
    would not allow it."""
    value: float | None = generation.get(key)
    if value is None:
        return default
    try:
        GenerationRequest.model_validate({key: value})
    except ValidationError as error:
        says = text_of(GenerationRequest, findings_of(error)[0])
        raise ModelLoadError(f"generation_config.json: {key}: {says}") from None
    return value


def _given(value: float | None, default: float) -> float:
    return default if value is None else float(value)


MAX_SCORED_VALUES: Final = 1_000_000
"""Most prompt logprobs over all choices of a request; each takes 60 to 100 bytes of the response,
which is built in memory."""

MAX_ANSWER_SCORES: Final = 3_000_000
"""Most logprobs over all answers of a request: enough for one answer of 131,072 tokens with 20 in
addition to each token's own. The limit is above that for prompts because an answer's values come
over a longer time."""


def refuse_many_scores(request: GenerationRequest, prompt_lengths: Sequence[int]) -> None:
    """`prompt_lengths`: tokens of each prompt.

    Raises:
        InvalidRequestError: the prompts would have more than `MAX_SCORED_VALUES`; the error's
            `param` is the field that asks for them.
    """
    requested = {
        "prompt_logprobs": request.prompt_logprobs,
        "logprobs": request.output_logprobs if request.echoes else None,
    }
    tops = {field: top for field, top in requested.items() if top is not None and top >= 0}
    tokens = sum(prompt_lengths) * request.choices
    values = tokens * sum(top + 1 for top in tops.values())
    if values <= MAX_SCORED_VALUES:
        return
    field, top = next(iter(tops.items()))
    raise InvalidRequestError(
        f"{field}: {top} is not allowed for {tokens} prompt tokens in all choices, which makes "
        f"{values} values; allowed: at most {MAX_SCORED_VALUES}, of each token its own and those "
        "beside it",
        field,
    )


def scored_answer_tokens(request: GenerationRequest, answers: int, most_tokens: int) -> int | None:
    """Most tokens that each of `answers` answers may have within the limit of logprobs; None: the
    request asks for none. `most_tokens`: the limit of an answer's tokens without that.

    Raises:
        InvalidRequestError: the request asks for more; the error's `param` is its field for the
            limit of tokens.
    """
    top = request.output_logprobs
    if top < 0:
        return None
    most = MAX_ANSWER_SCORES // (answers * (top + 1))
    field, tokens = request.token_limit
    if tokens is None or min(tokens, most_tokens) <= most:
        return most
    tops = "top_logprobs" if "top_logprobs" in type(request).model_fields else "logprobs"
    raise InvalidRequestError(
        f"{field}: {tokens} is not allowed for {answers} answers (n for each prompt) with {tops} "
        f"{top}, which makes {answers * tokens * (top + 1)} values; allowed: at most {most}, for "
        f"{MAX_ANSWER_SCORES} values in all answers, of each token its own and those beside it",
        field,
    )
