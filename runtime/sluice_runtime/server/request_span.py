"""The span of one request in this engine, with a part for its prompt and one for its answer.

A file of its own: only requests whose trace is recorded use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.spans import Record, Span, child_of, is_sampled, record_part

from sluice_runtime.process.spans import DECODE, ENGINE, PREFILL


@dataclass(slots=True)
class RequestSpan:
    """From a request's arrival to its end."""

    record: Record
    traceparent: str
    """Its own, of which the engine process's are parts."""
    parent: str
    arrival_seconds: float
    clock: Callable[[], float]
    role: Role
    first_seconds: float | None = None

    def token_arrived(self) -> None:
        """A piece of the answer has come."""
        if self.first_seconds is None:
            self.first_seconds = self.clock()

    def end(self, outcome: str, error: str | None) -> None:
        """The answer is whole, or `error` says why not."""
        now, own = self.clock(), self.traceparent
        if self.first_seconds is not None:
            if self.role is Role.MIXED:
                record_part(
                    self.record, own, PREFILL, (self.arrival_seconds, self.first_seconds), {}
                )
            record_part(self.record, own, DECODE, (self.first_seconds, now), {})
        attributes = {"sluice.role": self.role.value, "sluice.outcome": outcome}
        self.record(
            Span(ENGINE, own, self.parent, self.arrival_seconds, now, "server", attributes, error)
        )


def request_span(
    record: Record | None,
    parent: str,
    arrival_seconds: float,
    clock: Callable[[], float],
    role: Role,
) -> RequestSpan | None:
    """None if spans are not recorded, or the request is not sampled."""
    if record is None or not is_sampled(parent):
        return None
    return RequestSpan(record, child_of(parent), parent, arrival_seconds, clock, role)
