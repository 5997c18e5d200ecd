"""Durations of one engine's steps: a formula, exact for runs of equal decode steps.

    seconds = step + (weights + context) read + max(0, prompts computed - weights read)

The prompt's part hides behind reading the weights.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import Final

from sluice_simulator.autoscale.constants import Constants

MAX_PROMPT_TOKENS: Final = 1 << 22
"""Bound on prompts, above any context."""


class StepTimes:
    """Durations for an engine with that share of a device."""

    def __init__(self, constants: Constants) -> None:
        device, share = constants.device, constants.share
        self._chunk_tokens = constants.chunk_tokens
        self._weights = device.weight_bytes / device.bytes_per_second / share
        self._token = device.token_flops / device.flops / share
        self._pair = device.pair_flops / device.flops / share
        self.base_seconds = device.step_seconds / share + self._weights
        """Seconds of a step, however little is in it."""
        self.context_seconds = device.kv_token_bytes / device.bytes_per_second / share
        """Seconds for a token that a row attends to."""
        self.token_seconds = self._token
        """Seconds for a token of a prompt, without attention."""

    def prompt_seconds(self, tokens: int, before: int) -> float:
        """Seconds to compute `tokens` of a prompt after its first `before`."""
        return self._token * tokens + self._pair * (tokens * before + tokens * tokens / 2)

    def tokens_within(self, seconds: float, before: int) -> int:
        """Number of a prompt's tokens, after its first `before`, that are computed in `seconds`."""
        if seconds == math.inf:
            return self._chunk_tokens
        linear = self._token + self._pair * before
        root = math.sqrt(linear * linear + 2 * self._pair * max(0.0, seconds))
        return int((root - linear) / self._pair)

    def prompts_within(self, step_seconds: float, context_tokens: int) -> float:
        """Seconds of prompts that a step has time for, with rows that have that context in all."""
        rows = self.base_seconds + context_tokens * self.context_seconds
        return max(0.0, step_seconds - rows + self._weights)

    def step_seconds(self, prompts_seconds: float, context_tokens: int) -> float:
        """Seconds of a step with so much of prompts, and rows with that context in all."""
        hidden = max(0.0, prompts_seconds - self._weights)
        return self.base_seconds + context_tokens * self.context_seconds + hidden

    def run_seconds(self, steps: int, rows: int, context_tokens: int) -> float:
        """Seconds of consecutive decode steps; each adds a token to every row."""
        read = steps * context_tokens + rows * steps * (steps - 1) / 2
        return steps * self.base_seconds + self.context_seconds * read

    def steps_by(self, seconds: float, rows: int, context_tokens: int) -> int:
        """Number of decode steps that have begun so long after the first one did; at least 1."""
        growth = self.context_seconds * rows / 2
        first = self.base_seconds + self.context_seconds * context_tokens - growth
        if growth:
            steps = (math.sqrt(first * first + 4 * growth * seconds) - first) / (2 * growth)
        else:
            steps = seconds / first
        return max(1, math.ceil(steps - 1e-9))

    def idle_seconds(self, prompt_tokens: int) -> float:
        """Seconds to the first token of a prompt that has the engine for itself."""
        seconds = 0.0
        for before in range(0, prompt_tokens, self._chunk_tokens):
            tokens = min(self._chunk_tokens, prompt_tokens - before)
            seconds += self.step_seconds(self.prompt_seconds(tokens, before), 0)
        return seconds

    def longest_prompt(self, seconds: float) -> int:
        """Tokens of the longest prompt that is computed within `seconds` on an idle engine."""
        lengths = range(1, MAX_PROMPT_TOKENS + 1)
        return bisect_right(lengths, seconds, key=self.idle_seconds)
