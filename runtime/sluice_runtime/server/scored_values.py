"""How many values a request's scored prompts have, and how many are too many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.protocol import GenerationRequest

MOST_SCORED_VALUES: Final = 1_000_000
"""Of all choices: 60 to 100 bytes each in the answer, which is held in memory before it is sent."""


def refuse_many_scores(request: GenerationRequest, prompt_lengths: Sequence[int]) -> None:
    """`prompt_lengths`: tokens of each prompt.

    Raises:
        InvalidRequestError: more values of prompts would be told; `param` is the field that asks.
    """
    asked = {
        "prompt_logprobs": request.prompt_logprobs,
        "logprobs": request.told_logprobs if request.echoes else None,
    }
    tops = {field: top for field, top in asked.items() if top is not None and top >= 0}
    tokens = sum(prompt_lengths) * request.choices
    values = tokens * sum(top + 1 for top in tops.values())
    if values <= MOST_SCORED_VALUES:
        return
    field, top = next(iter(tops.items()))
    raise InvalidRequestError(
        f"{field}: {top} is not allowed for {tokens} prompt tokens in all choices, which makes "
        f"{values} values; allowed: at most {MOST_SCORED_VALUES}, of each token its own and those "
        "beside it",
        field,
    )
