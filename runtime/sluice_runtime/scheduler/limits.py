"""Limits of a single request's size, with one formula for validation and admission.

The API process answers 400 with the text of `refusal`; the scheduler can admit every request that
passes, so none waits for ever. Knows sizes only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True)
class Limits:
    """Sizes that limit a single request; the API process takes them from `EngineReady`."""

    context_length_tokens: int
    kv_pool_tokens: int

    @property
    def request_tokens(self) -> int:
        """Most tokens of prompt and answer together, for a request alone in the engine."""
        return min(self.context_length_tokens, self.kv_pool_tokens)


class QueueLimits(Protocol):
    """`SchedulerSettings` in the engine, `EngineReady` in the API process."""

    @property
    def max_running_requests(self) -> int: ...
    @property
    def max_queued_requests(self) -> int: ...


def queue_full(limits: QueueLimits, held_requests: int, coming: int = 1) -> str | None:
    """Explains to a person why `coming` more requests are not accepted together; None if they are.

    `held_requests`: requests that run or wait, including for a grammar. Rows and queue count
    together, so that an engine with free rows accepts enough to fill both between two steps.
    """
    if held_requests + coming <= limits.max_running_requests + limits.max_queued_requests:
        return None
    return (
        f"the queue is full: {held_requests} requests run or wait, {coming} more come; allowed: "
        f"{limits.max_running_requests} (maxRunningRequests) and "
        f"{limits.max_queued_requests} (maxQueuedRequests)"
    )


def tenant_requests(limits: QueueLimits) -> int:
    """Most requests of one tenant that may run or wait; a quarter of the queue is kept for
    others."""
    return limits.max_running_requests + max(1, limits.max_queued_requests * 3 // 4)


def without(limits: Limits, retired_tokens: int) -> Limits:
    """Limits of an engine whose pool has lost `retired_tokens` tokens."""
    return replace(limits, kv_pool_tokens=limits.kv_pool_tokens - retired_tokens)


def least_answer(max_tokens: int) -> int:
    """Answer tokens that need room after the prompt: 0 if the prompt is only scored, else 1."""
    return min(1, max_tokens)


def shrunk_refusal(
    limits: Limits, left: Limits, known_tokens: int, answer_tokens: int = 1
) -> str | None:
    """Explains to a person, with numbers, why a request that fitted `limits` does not fit `left`;
    None if it fits."""
    if fits_empty_pool(left, known_tokens, answer_tokens):
        return None
    return (
        f"{known_tokens} tokens, and {answer_tokens} more, do not fit the "
        f"{left.kv_pool_tokens} tokens that are left of this engine's KV pool of "
        f"{limits.kv_pool_tokens}, until it starts anew"
    )


def fits_empty_pool(limits: Limits, prompt_tokens: int, answer_tokens: int = 1) -> bool:
    """Whether the prompt and `answer_tokens` fit an engine that runs nothing else."""
    return prompt_tokens + answer_tokens <= limits.request_tokens


def max_new_tokens(limits: Limits, prompt_tokens: int) -> int:
    """Longest answer, in tokens, after this prompt; used when max_tokens is omitted."""
    return max(0, limits.request_tokens - prompt_tokens)


def refusal(limits: Limits, prompt_tokens: int, answer_tokens: int = 1) -> str | None:
    """Explains to a person, with numbers, why the prompt can never be served; None if it can.
    `answer_tokens`: see `least_answer`."""
    if prompt_tokens < 1:
        return "the prompt has 0 tokens; allowed: at least 1"
    says = f"the prompt has {prompt_tokens} tokens, and with {answer_tokens} token of answer it"
    if prompt_tokens + answer_tokens > limits.context_length_tokens:
        return f"{says} exceeds the context length of {limits.context_length_tokens} tokens"
    if not fits_empty_pool(limits, prompt_tokens, answer_tokens):
        return f"{says} exceeds the KV pool of {limits.kv_pool_tokens} tokens (kvPoolTokens)"
    return None
