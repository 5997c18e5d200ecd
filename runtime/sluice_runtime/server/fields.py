"""Fields of request bodies, as pydantic types: fields that all routes share, and fields that no
route uses.

Types are strict: a number in quotes is not a number. Unknown fields are not an error here; `body`
lists them. The fields of each route are in `protocol`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, Literal

import pydantic_core
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
)
from sluice_contract.config.router import MAX_PRIORITY
from sluice_contract.error_text import ALTERNATIVES
from sluice_contract.log_lines import json_type

MAX_IGNORED_FIELDS: Final = 32
"""Most unknown fields that are reported for one request."""
MAX_SALT_CHARACTERS: Final = 256
MAX_BIASED_TOKENS: Final = 1024
MAX_BIAS: Final = 100
_TOKEN_ID: Final = re.compile("[0-9]{1,9}")
INT64: Final = 2**63


class RequestModel(BaseModel):
    """Base of request bodies and their parts."""

    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)


def is_strict(info: ValidationInfo) -> bool:
    """Whether incorrect requests are refused even if they could be understood
    (`strictRequests`)."""
    context: dict[str, Any] = info.context or {}
    return bool(context.get("strict"))


def note_ignored(info: ValidationInfo, place: str = "") -> None:
    """Records that the client's value of this field, or at `place` in it, was not used."""
    if info.context:
        info.context["ignored"].append(f"{info.field_name}{place}")


STRING: Final = Tag("a string")
LIST: Final = Tag("a list")
OBJECT: Final = Tag("an object")
"""Tags of a field's alternatives, chosen by `json_type`. Refusals show no tags of several words."""


def by_type(allowed: str, tag: Callable[[object], str | None] = json_type) -> Discriminator:
    """Chooses among a field's alternatives by the value's type. `allowed`: text that names the
    alternatives, for values without a tag."""
    return Discriminator(tag, ALTERNATIVES, allowed)


def json_within(text: str) -> Any:
    """The JSON value in `text`.

    Raises:
        ValueError: `text` is not valid JSON; NaN and half a surrogate pair are refused too.
    """
    return pydantic_core.from_json(text, allow_inf_nan=False)


def infinite_at(value: object) -> str | None:
    """The path of a number too large for a float, in a value parsed from JSON; None: there is
    none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = ((f".{key}", part) for key, part in value.items())
    elif isinstance(value, list):
        parts = ((f"[{number}]", part) for number, part in enumerate(value))
    places = (step + below for step, part in parts if (below := infinite_at(part)) is not None)
    return next(places, None)


SaltText = Annotated[str, Field(max_length=MAX_SALT_CHARACTERS)]
RequestName = Annotated[str, Field(min_length=1, max_length=128)]


def _by_token_id(biases: dict[str, float]) -> dict[str, float]:
    if not all(_TOKEN_ID.fullmatch(key) for key in biases):
        raise ValueError("an object whose keys are token ids")
    if len({int(key) for key in biases}) < len(biases):
        raise ValueError("an object that has each token id once, however it is spelled")
    return biases


def _few(biases: object) -> object:
    """Checks the number of biases before their values, since each value could produce an error."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASED_TOKENS:
        raise ValueError(f"an object of at most {MAX_BIASED_TOKENS} items")
    return biases


LogitBias = Annotated[
    dict[str, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]],
    Field(max_length=MAX_BIASED_TOKENS),
    AfterValidator(_by_token_id),
    BeforeValidator(_few),
]


def _finite(options: dict[str, Any]) -> dict[str, Any]:
    if infinite_at(options) is not None:
        raise ValueError("an object without numbers beyond 1.8e308")
    return options


TemplateOptions = Annotated[dict[str, Any], AfterValidator(_finite)]


class SamplingFields(RequestModel):
    """How tokens are drawn. None: the model's default, else the API's."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1, lt=2**31)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=2)
    logit_bias: LogitBias | None = None
    """Bias of the logits by token id, written as a string."""


class AnsweredRequest(RequestModel):
    """Fields of any request whose answer is generated."""

    stream: bool | None = None
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Larger is more urgent; 0 when left out."""
    cache_salt: SaltText | None = None
    """Cached prefixes are shared only among requests with the same salt."""
    request_id: RequestName | None = None
    """The client's name for the request; never used as our own id."""

    @property
    def requested_model(self) -> str | None:
        """Name of the requested model; None: whichever model is served."""
        return None

    @property
    def offers_tools(self) -> bool:
        """Whether the request offers tools to the model."""
        return False

    @property
    def choices(self) -> int:
        """Choices for each prompt."""
        return 1

    def contradiction(self) -> tuple[str, str] | None:
        """A field that contradicts others, and what is allowed; None if there is none."""
        return None


OTHER_NAMES: Final = {
    "extra_key": "cache_salt",
    "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output",
    "rid": "request_id",
    "sampling_seed": "seed",
}
"""Our names of fields, by SGLang's."""

# Fields of OpenAI's, vLLM's and SGLang's APIs that are not used. Those that would not change an
# answer are accepted with any value. The others are accepted only with a value that has no effect,
# and otherwise refused by name. A field leaves these classes when it is implemented.
Empty = Annotated[list[Any], Field(max_length=0)]


class UnusedFields(RequestModel):
    """Fields that are accepted with any value, because they do not change the answer."""

    early_stopping: Any = None
    """Parameter of beam search, which is not supported, like `length_penalty`."""
    length_penalty: Any = None
    metadata: Any = None
    prediction: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    service_tier: Any = None
    spaces_between_special_tokens: Any = None
    """Ignored: decoders of current tokenizers put no spaces between special tokens anyway."""
    store: Any = None
    user: Any = None
    verbosity: Any = None


class NotImplementedFields(RequestModel):
    """Fields that are accepted only with values that have no effect; other values would change the
    answer."""

    allowed_token_ids: Empty | None = None
    audio: None = None
    audio_data: Empty | None = None
    bad_words: Empty | None = None
    best_of: Literal[1] | None = None
    chat_template: None = None
    choice: None = None
    custom_logit_processor: None = None
    documents: Empty | None = None
    function_call: Literal["none", "auto"] | None = None
    functions: Empty | None = None
    guided_whitespace_pattern: None = None
    image_data: Empty | None = None
    include_reasoning: Literal[True] | None = None
    input_embeds: Empty | None = None
    json_: None = Field(default=None, alias="json")
    logits_processors: Empty | None = None
    lora_id: None = None
    lora_path: None = None
    max_thinking_tokens: None = None
    modalities: list[Literal["text"]] | None = None
    prompt_embeds: None = None
    return_hidden_states: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    separate_reasoning: Literal[True] | None = None
    session_params: None = None
    stop_regex: Empty | None = None
    stream_reasoning: Literal[True] | None = None
    suffix: Literal[""] | None = None
    thinking_token_budget: None = None
    token_ids_logprob: Empty | None = None
    truncation_side: Literal["left"] | None = None
    use_beam_search: Literal[False] | None = None
    video_data: Empty | None = None
    web_search_options: None = None


class ConstraintsElsewhere(RequestModel):
    """Fields of other routes that constrain an answer; never ignored. `/v1/responses` has
    `text.format`, `/v1/messages` has `output_config.format`."""

    choice: None = None
    ebnf: None = None
    grammar: None = None
    guided_choice: None = None
    guided_grammar: None = None
    guided_json: None = None
    guided_regex: None = None
    json_: None = Field(default=None, alias="json")
    json_schema: None = None
    regex: None = None
    response_format: None = None
    stop_regex: None = None
    structural_tag: None = None
    structured_outputs: None = None
