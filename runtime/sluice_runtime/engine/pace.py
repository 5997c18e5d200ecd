"""How fast this engine computes prompts and generates: for the log and the load report.

Fed with finished steps; reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from sluice_runtime.scheduler.batch import Batch

ITL_SECONDS: Final = 10.0
"""Over so long the time between two tokens is averaged."""
FORGETTING: Final = 0.98
"""A step that computed prompts counts for a third after fifty more."""


@dataclass(slots=True)
class _Second:
    """Steps that ended within one second."""

    began_seconds: float
    tokens: int = 0
    """Of decode rows."""
    waited_seconds: float = 0.0
    """For these tokens, summed."""


class Pace:
    """Rates of one engine."""

    def __init__(self) -> None:
        self._generated_tokens = 0
        self._decoded_tokens = 0
        self._since_seconds: float | None = None
        self._last_decode_seconds: float | None = None
        self._seconds: deque[_Second] = deque()
        self._prefill_weight = 0.0
        self._prefill_seconds = 0.0

    def stepped(self, batch: Batch, began_seconds: float, now_seconds: float) -> None:
        """A step is done: it ran from `began_seconds` to `now_seconds`."""
        sampled = len(batch.sampling_rows)
        self._generated_tokens += sampled
        self._decoded(sampled, began_seconds)
        if batch.extend_rows:
            self._prefilled(batch.extend_tokens, now_seconds - began_seconds)
        if batch.decode_rows:
            self._waited(len(batch.decode_rows), began_seconds, now_seconds)

    @property
    def generated_tokens(self) -> int:
        """Since the start."""
        return self._generated_tokens

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Of steps that computed prompts; the more tokens a step had, the more it counts, so that
        the rest of a prompt does not pass for the rate of whole chunks. None before the first."""
        if not self._prefill_seconds:
            return None
        return self._prefill_weight / self._prefill_seconds

    def itl_seconds(self, now_seconds: float) -> float | None:
        """Mean time between two tokens of an answer in the last `ITL_SECONDS`; steps that decode
        rows had to sit out count as waiting. None while no answer ran."""
        self._forget(now_seconds)
        tokens = sum(second.tokens for second in self._seconds)
        if not tokens:
            return None
        return sum(second.waited_seconds for second in self._seconds) / tokens

    def take_decode_rate(self, now_seconds: float) -> float:
        """Tokens per second since the last call."""
        if self._since_seconds is None:
            return 0.0
        rate = self._decoded_tokens / max(now_seconds - self._since_seconds, 1e-9)
        self._decoded_tokens, self._since_seconds = 0, now_seconds
        return rate

    def forget_decode(self) -> None:
        """Nothing runs any more: idle time counts neither as slow decoding nor as waiting."""
        self._decoded_tokens, self._since_seconds = 0, None
        self._last_decode_seconds = None

    def _decoded(self, tokens: int, began_seconds: float) -> None:
        if self._since_seconds is None:
            self._since_seconds = began_seconds
        self._decoded_tokens += tokens

    def _prefilled(self, tokens: int, step_seconds: float) -> None:
        self._prefill_weight = self._prefill_weight * FORGETTING + tokens * tokens
        self._prefill_seconds = self._prefill_seconds * FORGETTING + tokens * step_seconds

    def _waited(self, rows: int, began_seconds: float, now_seconds: float) -> None:
        last = self._last_decode_seconds
        since = began_seconds if last is None else last
        self._last_decode_seconds = now_seconds
        if not self._seconds or now_seconds - self._seconds[-1].began_seconds >= 1.0:
            self._seconds.append(_Second(now_seconds))
            self._forget(now_seconds)
        second = self._seconds[-1]
        second.tokens += rows
        second.waited_seconds += rows * (now_seconds - since)

    def _forget(self, now_seconds: float) -> None:
        while self._seconds and self._seconds[0].began_seconds < now_seconds - ITL_SECONDS:
            self._seconds.popleft()
