"""Fields that the bodies of all routes that generate share, as types.

Knows no route, and nothing of tokens.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field
from sluice_contract.config.router import MAX_PRIORITY

from sluice_runtime.server.json_within import infinite_at
from sluice_runtime.server.request_model import RequestModel

MAX_SALT_CHARACTERS: Final = 256
MAX_BIASED_TOKENS: Final = 1024
MAX_BIAS: Final = 100
_TOKEN_ID: Final = re.compile("[0-9]{1,9}")
_INT64: Final = 2**63

SaltText = Annotated[str, Field(max_length=MAX_SALT_CHARACTERS)]
RequestName = Annotated[str, Field(min_length=1, max_length=128)]


def _by_token_id(biases: dict[str, float]) -> dict[str, float]:
    if not all(_TOKEN_ID.fullmatch(key) for key in biases):
        raise ValueError("an object whose keys are token ids")
    if len({int(key) for key in biases}) < len(biases):
        raise ValueError("an object that has each token id once, however it is spelled")
    return biases


def _few(biases: object) -> object:
    """Checked before the values, which would each produce a finding."""
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
    seed: int | None = Field(default=None, ge=-_INT64, lt=_INT64)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, ge=0.01, le=2)
    logit_bias: LogitBias | None = None
    """By token id, written as a string."""


class AnsweredRequest(RequestModel):
    """What is asked of any request whose answer is generated."""

    stream: bool | None = None
    priority: int | None = Field(default=None, ge=-MAX_PRIORITY, le=MAX_PRIORITY)
    """Larger is more urgent; 0 when left out."""
    cache_salt: SaltText | None = None
    """Cached prefixes are shared only among requests with the same salt."""
    request_id: RequestName | None = None
    """The client's name for the request; never used as our own id."""

    @property
    def requested_model(self) -> str | None:
        """None: whichever model is served."""
        return None

    @property
    def choices(self) -> int:
        """Choices for each prompt."""
        return 1

    def contradiction(self) -> tuple[str, str] | None:
        """A field that contradicts others, and what is allowed."""
        return None
