"""The share of max_tokens that admission reserves for what runs.

Most answers end before max_tokens, so reserving all of it would leave the pool empty. The ratio
starts at 0.7, moves with every decode step towards what the last completions really used, and
jumps up after a retraction. Knows of a request how long its answer is and may become.

Constants as published by SGLang (schedule policy and retraction, 0.5.x).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from typing import Final, Protocol

INITIAL: Final = 0.7
FLOOR_SHARE: Final = 0.14
DECAY_STEPS: Final = 600
RETRACTION_LOOKAHEAD_TOKENS: Final = 20
COMPLETIONS_REMEMBERED: Final = 100
INITIAL_BETA: Final = 0.5
RESERVED_TOKENS_CLIP: Final = 4096
"""Most tokens of an answer that admission reserves."""


class HasOutput(Protocol):
    """What the ratio reads of a running request."""

    @property
    def output_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class HasRemainingTokens(Protocol):
    """What the reserve reads of a request with tokens to come."""

    @property
    def remaining_tokens(self) -> int: ...
    @property
    def ignore_eos(self) -> bool: ...


def expected_tokens(request: HasRemainingTokens) -> int:
    """Tokens that admission expects of a request still, if no stop token comes."""
    return min(request.remaining_tokens, RESERVED_TOKENS_CLIP)


def reserved_tokens(requests: Iterable[HasRemainingTokens], ratio: float) -> float:
    """Tokens that requests are expected to generate still; `ratio` is the new-token ratio."""
    return sum(expected_tokens(r) * (1.0 if r.ignore_eos else ratio) for r in requests)


class NewTokenRatio:
    """`value` is in (0, 1]."""

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(1.0, INITIAL * conservativeness)
        self.floor = self.initial * FLOOR_SHARE
        self.value = self.initial
        self._used: deque[float] = deque(maxlen=COMPLETIONS_REMEMBERED)
        self._used_sum = 0.0

    @property
    def beta(self) -> float:
        """Mean share of max_tokens that the last completions used; 0.5 before there were any."""
        return self._used_sum / len(self._used) if self._used else INITIAL_BETA

    @property
    def target(self) -> float:
        """Where the decay ends: the learnt share, never under the floor."""
        return max(self.floor, self.initial * self.beta)

    def decay(self) -> None:
        """After a decode step that needed no retraction: one step towards the target."""
        step = (self.initial - self.floor) / DECAY_STEPS
        self.value += max(-step, min(step, self.target - self.value))

    def raise_after_retraction(self, running: Collection[HasOutput]) -> None:
        """To what the requests that still run have used, and a little more."""
        tokens = sum([r.output_tokens for r in running])
        tokens += RETRACTION_LOOKAHEAD_TOKENS * len(running)
        self.value = min(1.0, tokens / (sum([r.max_tokens for r in running]) + 1))

    def reset(self) -> None:
        """When nothing runs and nothing waits."""
        self.value = self.initial

    def learn(self, output_tokens: int, max_tokens: int) -> None:
        """A completion that was free to end before max_tokens."""
        if len(self._used) == COMPLETIONS_REMEMBERED:
            self._used_sum -= self._used[0]
        self._used.append(output_tokens / max(1, max_tokens))
        self._used_sum += self._used[-1]
