"""The router's spans: one for each request, and in it one for each engine or pair that is asked.

Knows no connection; who takes spans is passed in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sluice_contract.wire.spans import (
    Attributes,
    Record,
    Span,
    child_of,
    is_sampled,
    new_traceparent,
    trace_id,
    unsampled,
)

REQUEST: Final = "sluice.request"
ATTEMPT: Final = "sluice.attempt"


@dataclass(frozen=True, slots=True)
class Traced:
    """A request's own traceparent, and its client's if that sent one."""

    own: str
    parent: str | None


@dataclass(frozen=True)
class Attempt:
    """An engine, or a pair, that is asked. `end` is called once."""

    traceparent: str
    """For the engine: its spans are parts of this one."""
    parent: str
    start_seconds: float
    target: str
    spans: RouterSpans

    def end(self, status: int | None, error: str | None = None) -> None:
        """The answer is over, or there is none: `error` says why."""
        told: dict[str, str | int | float] = {"sluice.engine": self.target}
        if status is not None:
            told["http.response.status_code"] = status
        now = self.spans.clock()
        self.spans.record(
            Span(
                ATTEMPT, self.traceparent, self.parent, self.start_seconds, now, "client", told,
                error,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class RouterSpans:
    """Begins spans. `sample_ratio`: of requests whose client does not say, and 0: of none, whatever
    clients say; `draw`: in [0, 1)."""

    record: Record
    sample_ratio: float
    draw: Callable[[], float]
    clock: Callable[[], float]

    def request(self, given: str | None) -> Traced:
        """A request with this header."""
        if given is not None and trace_id(given):
            own = child_of(given)
            return Traced(own if self.sample_ratio else unsampled(own), given)
        return Traced(new_traceparent(sampled=self.draw() < self.sample_ratio), None)

    def end_request(
        self, traced: Traced, start_seconds: float, told: Attributes, error: str | None
    ) -> None:
        """It was answered, whatever the answer."""
        if is_sampled(traced.own):
            end = self.clock()
            self.record(
                Span(REQUEST, traced.own, traced.parent, start_seconds, end, "server", told, error)
            )

    def attempt(self, parent: str, target: str) -> Attempt | None:
        """None where the request is not sampled."""
        if not is_sampled(parent):
            return None
        return Attempt(child_of(parent), parent, self.clock(), target, self)
