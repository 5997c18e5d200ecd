"""The body of `POST /generate`: one prompt, with fields of our own or with SGLang's.

SGLang puts all limits and constraints of an answer into `sampling_params`. They are read as our
fields, with SGLang's defaults. Unsupported fields that would change the answer are refused by name;
others are reported as ignored.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationInfo,
    model_validator,
)
from sluice_contract.log_lines import shown_json

from sluice_runtime.server.choice_plans import ChoicePlan, RequestContext, plan_prompts
from sluice_runtime.server.fields import INT64, Empty, SamplingFields, json_within
from sluice_runtime.server.prompts import Prompt, ServedModel, encoded
from sluice_runtime.server.protocol import (
    MAX_LOGPROBS,
    GenerationRequest,
    StopField,
    StopTokenIds,
    TokenIds,
)
from sluice_runtime.server.responses.translation import plan_under_other_names
from sluice_runtime.server.structured import GrammarText, SchemaOrText, TagOrText

_DEFAULTS: Final[dict[str, Any]] = {
    "max_tokens": 128, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
    "repetition_penalty": 1.0,
}  # fmt: skip
"""SGLang's defaults, which apply whatever the model's generation_config.json says."""
_OURS: Final = {
    "max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens",
    "no_stop_trim": "include_stop_str_in_output", "sampling_seed": "seed",
}  # fmt: skip
"""Our field names by SGLang's, where they differ."""
_THEIRS: Final = {
    "prompt_logprobs": "logprob_start_len", "logprobs": "top_logprobs_num",
} | {ours: f"sampling_params.{theirs}" for theirs, ours in _OURS.items()}  # fmt: skip
_WITHOUT_EFFECT: Final = "spaces_between_special_tokens"


class _Misnamed:
    """Validator that refuses a field given under our name in `sampling_params`, so that a limit is
    not silently ignored."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, value: object) -> object:
        if value is not None:
            raise ValueError(f"{self._name} instead, as in SGLang")
        return value


class SamplingParams(SamplingFields):
    """SGLang's `sampling_params`. Null means the default, except for `max_new_tokens`."""

    max_new_tokens: int | None = Field(default=None, ge=0, lt=INT64)
    """Most tokens of the answer. Left out: 128; null: as many as fit."""
    min_new_tokens: int | None = Field(default=None, ge=0)
    stop: StopField = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool | None = None
    no_stop_trim: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: Any = None
    sampling_seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    json_schema: SchemaOrText | None = None
    regex: GrammarText | None = None
    ebnf: GrammarText | None = None
    structural_tag: TagOrText | None = None
    n: Literal[1] | None = None
    stop_regex: Empty | None = None
    thinking_budget: None = None
    max_tokens: Annotated[None, BeforeValidator(_Misnamed("max_new_tokens"))] = None
    min_tokens: Annotated[None, BeforeValidator(_Misnamed("min_new_tokens"))] = None

    @model_validator(mode="wrap")
    @classmethod
    def _with_paths(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        """Validates, and reports ignored fields by their paths in the request."""
        ignored: list[str] = info.context["ignored"] if info.context else []
        before = len(ignored)
        params = handler(value)
        ignored[before:] = [f"sampling_params.{name}" for name in ignored[before:]]
        return params

    @property
    def ours(self) -> dict[str, Any]:
        """The given values, under our names."""
        values = {
            _OURS.get(name, name): value
            for name in type(self).model_fields
            if (value := getattr(self, name)) is not None and name != _WITHOUT_EFFECT
        }
        unlimited = self.max_new_tokens is None and "max_new_tokens" in self.model_fields_set
        return values | ({"max_tokens": None} if unlimited else {})


class GenerateRequest(GenerationRequest):
    """`POST /generate`; the answer has token ids, too."""

    model: str | None = None

    text: str | None = None
    input_ids: TokenIds | None = None
    max_tokens: int | None = Field(default=None, ge=0, lt=INT64)
    """0: computes the prompt only, for its logprobs."""
    n: Literal[1] | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Number of top logprobs for each token, in addition to its own."""

    sampling_params: SamplingParams | None = None
    """Field of SGLang's API, like those below."""
    return_logprob: bool | None = None
    """Whether to return logprobs of the answer's tokens."""
    top_logprobs_num: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    """Number of top logprobs in addition to each token's own, with `return_logprob`."""
    logprob_start_len: Literal[-1, 0] | None = None
    """0: logprobs of the whole prompt, too."""
    return_text_in_logprobs: Any = None
    """Ignored: logprobs always include the tokens' text."""

    @property
    def requested_model(self) -> str | None:
        return self.model

    @property
    def output_logprobs(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def _translated(self) -> dict[str, Any]:
        """Values of SGLang's fields, under our names."""
        fields = {} if self.sampling_params is None else self.sampling_params.ours
        if self.return_logprob:
            fields["logprobs"] = self.top_logprobs_num or 0
            if self.logprob_start_len == 0:
                fields["prompt_logprobs"] = fields["logprobs"]
        return fields

    @property
    def _added(self) -> dict[str, Any]:
        """Values of our fields that come from SGLang's fields or SGLang's defaults."""
        defaults = {} if self.sampling_params is None else _DEFAULTS
        left_out = {name: at for name, at in defaults.items() if getattr(self, name) is None}
        return left_out | self._translated

    @property
    def translated(self) -> GenerateRequest:
        """The request expressed only in our fields."""
        return self.model_copy(update={**self._added, "sampling_params": None})

    @property
    def names(self) -> list[tuple[re.Pattern[str], str]]:
        """Patterns of our field names in messages, each with the client's name for the field."""
        return [
            (
                re.compile(rf"(?:^|(?<=\()|(?<=beside )){name}\b"),
                _THEIRS.get(name, f"sampling_params.{name}"),
            )
            for name in self._added
        ]

    def contradiction(self) -> tuple[str, str] | None:
        if (self.text is None) == (self.input_ids is None):
            return "text", "allowed: either text or input_ids"
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            return "max_tokens", "0 is not allowed; allowed: 1 or more, or 0 with prompt_logprobs"
        for name, value in self._translated.items():
            own = getattr(self, name)
            if own is not None and _comparable(name, own) != _comparable(name, value):
                return name, (
                    f"{shown_json(own)} beside {_THEIRS.get(name, f'sampling_params.{name}')} "
                    f"{shown_json(value)} is not allowed; allowed: one of the two, or the same in "
                    "both"
                )
        return super().contradiction()


def _comparable(name: str, value: Any) -> Any:
    """A normal form of `value`, equal for values with the same meaning."""
    if name == "stop" and isinstance(value, str):
        return [value]
    if name in ("json_schema", "structural_tag") and isinstance(value, str):
        with suppress(ValueError):
            return json_within(value)
    return value


def plan_generate(
    model: ServedModel, context: RequestContext, request: GenerateRequest
) -> list[ChoicePlan]:
    """The one plan; raises like `plan_prompts`, with the client's names."""
    plans = partial(_plans, model, context, request.translated)
    return [plan_under_other_names(plans, request.names)]


def _plans(
    model: ServedModel, context: RequestContext, request: GenerateRequest
) -> list[ChoicePlan]:
    if request.input_ids is not None:
        return plan_prompts(model, context, request, [Prompt(request.input_ids)], "input_ids")
    assert request.text is not None, "parsing has refused it"
    prompt = Prompt(encoded(model, request, request.text, "text"))
    return plan_prompts(model, context, request, [prompt], "text")
