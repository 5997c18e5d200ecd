"""A trace and its requests: frozen values, independent of where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

BLOCK_TOKENS: Final = 512
"""Tokens that one block id of a trace stands for."""


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A prompt and its answer. Requests whose leading block ids are equal share that prefix."""

    arrival_seconds: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    """Ids of the prompt's blocks of BLOCK_TOKENS tokens, including a partial last block; empty: the
    prompt shares nothing."""
    priority: int = 0
    routing_key: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in order of arrival; the first arrives near time 0."""

    name: str
    requests: tuple[TraceRequest, ...]

    @property
    def seconds(self) -> float:
        """Time of the last arrival, from 0."""
        return self.requests[-1].arrival_seconds if self.requests else 0.0

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt_tokens for request in self.requests)

    @property
    def output_tokens(self) -> int:
        return sum(request.output_tokens for request in self.requests)


def trace_of(name: str, requests: Sequence[TraceRequest]) -> Trace:
    """Trace with requests sorted by arrival; equal arrivals keep their order."""
    return Trace(name, tuple(sorted(requests, key=lambda request: request.arrival_seconds)))


def window(trace: Trace, start_seconds: float, seconds: float | None) -> Trace:
    """Trace of the arrivals in [start, start + seconds), moved to begin at 0; None: to the end."""
    end = float("inf") if seconds is None else start_seconds + seconds
    kept = [
        replace(request, arrival_seconds=request.arrival_seconds - start_seconds)
        for request in trace.requests
        if start_seconds <= request.arrival_seconds < end
    ]
    return Trace(trace.name, tuple(kept))


def at_rate(trace: Trace, factor: float) -> Trace:
    """Trace with arrivals `factor` times as fast; 1 leaves them as they are."""
    moved = [
        replace(request, arrival_seconds=request.arrival_seconds / factor)
        for request in trace.requests
    ]
    return Trace(trace.name, tuple(moved))
