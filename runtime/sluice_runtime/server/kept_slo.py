"""How many answers kept the engine's `slo`, for the load report.

An answer keeps it if its first token came within `ttftMilliseconds` of the request's arrival here,
and the mean time between its tokens is within `itlMilliseconds`. An answer that its reader gave up
counts only if it was late by then: else those who lose patience would make the share look better.
Refusals and errors do not count, as another engine may take the request.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice_contract.config.engine import SloTargets

from sluice_runtime.wire.messages import FinishReason


@dataclass(slots=True)
class Timeline:
    """A request in progress. Times are of the engine's clock."""

    arrival_seconds: float
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    output_tokens: int = 0
    answered: bool = False
    """Whether the answer is whole, however the engine ends it."""

    def ttft_seconds(self, now_seconds: float) -> float:
        """Without a first token: at least, as of now."""
        first = self.first_token_seconds
        return (now_seconds if first is None else first) - self.arrival_seconds

    @property
    def itl_seconds(self) -> float:
        """The mean; 0 for less than two tokens."""
        if self.first_token_seconds is None or self.last_token_seconds is None:
            return 0.0
        gaps = max(1, self.output_tokens - 1)
        return (self.last_token_seconds - self.first_token_seconds) / gaps


class KeptSlo:
    """Counts since the start."""

    def __init__(self, slo: SloTargets) -> None:
        self._ttft_milliseconds = slo.ttft_milliseconds
        self._itl_milliseconds = slo.itl_milliseconds
        self.requests = 0
        self.in_time = 0

    def ended(self, timeline: Timeline, reason: FinishReason, now_seconds: float) -> None:
        """An answer came to its end."""
        late = self._is_late(timeline, now_seconds)
        if reason == "error" or (reason == "abort" and not late):
            return
        self.requests += 1
        self.in_time += not late

    def _is_late(self, timeline: Timeline, now_seconds: float) -> bool:
        ttft, itl = self._ttft_milliseconds, self._itl_milliseconds
        first_late = ttft is not None and timeline.ttft_seconds(now_seconds) * 1000 > ttft
        return first_late or (itl is not None and timeline.itl_seconds * 1000 > itl)
