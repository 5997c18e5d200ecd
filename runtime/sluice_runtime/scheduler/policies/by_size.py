"""Orders by how much work a request is: its prompt, its answer, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from sluice_runtime.scheduler.policies.context import PolicyContext
from sluice_runtime.scheduler.request import Request

ANSWER_TOKENS_CLIP: Final = 4096
"""Longest answer that is reckoned with: clients that give no max_tokens rarely use all of it."""
SECONDS_PER_TOKEN: Final = 0.001
"""Turns work into time where waiting is weighed against it; only its order of magnitude matters."""


def longest_output_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for offline batches: the longest answers start first, so that none runs on alone."""
    del context
    return sorted(waiting, key=lambda request: -request.remaining_tokens)


def shortest_prefill_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for the mean time to first token: many short prompts pass one long one."""
    return sorted(waiting, key=context.prefill_tokens(waiting))


def shortest_remaining_first(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good for the mean time to the whole answer, if clients give honest max_tokens."""
    return sorted(waiting, key=remaining_work(waiting, context))


def highest_response_ratio_next(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good for unlike requests together: short ones go first, long ones gain rank by waiting."""

    work = remaining_work(waiting, context)

    def response_ratio(request: Request) -> float:
        waited = context.now - request.waiting_since_seconds
        return waited / (work(request) * SECONDS_PER_TOKEN)

    return sorted(waiting, key=response_ratio, reverse=True)


def remaining_work(waiting: Sequence[Request], context: PolicyContext) -> Callable[[Request], int]:
    """Tells of each of `waiting` the tokens still to compute, of the prompt and of the answer at
    most; at least 1."""
    prefill = context.prefill_tokens(waiting)

    def work(request: Request) -> int:
        return max(1, prefill(request) + min(request.remaining_tokens, ANSWER_TOKENS_CLIP))

    return work
