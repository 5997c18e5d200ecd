"""Summarises the record of a simulation's run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice_runtime.scheduler.status import Status

from sluice_simulator.percentiles import Spread, spread
from sluice_simulator.record import Record, Timeline


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of one run. Spreads are over requests, except `itl`, which is over the gaps between
    tokens."""

    ttft: Spread
    itl: Spread
    e2e: Spread
    queued: Spread
    """Time from a request's arrival to its first step."""
    urgent_ttft: Spread
    """TTFT of requests with a priority above 0."""
    small_tenants_ttft: Spread
    """TTFT of requests outside the routing key with the most requests; empty if all have one
    key."""
    finished: int
    failed: int
    """Number of requests that were refused or failed."""
    first_error: str | None
    seconds: float
    """Time from the start of the trace to the last token."""
    busy_seconds: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    usage_mean: float
    usage_peak: float
    running_mean: float
    running_peak: int
    queue_peak: int
    retractions: int
    chunk_cuts: int
    steps: Mapping[str, int]

    @property
    def output_rate(self) -> float:
        """Generated tokens per second of the run."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def input_rate(self) -> float:
        return self.prompt_tokens / self.seconds if self.seconds else 0.0

    @property
    def cached_share(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def as_json(self) -> dict[str, Any]:
        """The figures as plain values, with the rates."""
        return asdict(self) | {
            "output_rate": self.output_rate,
            "input_rate": self.input_rate,
            "cached_share": self.cached_share,
        }


def summarise(record: Record, status: Status) -> Summary:
    """Summary of a run. `status`: the scheduler's, at the end of the run."""
    served = [line for line in record.timelines if line.error is None and line.tokens]
    usage = [sample.usage_ratio for sample in record.samples] or [0.0]
    running = [sample.running for sample in record.samples] or [0]
    return Summary(
        ttft=_ttft(served),
        itl=spread(record.gaps.values, record.gaps.counts),
        e2e=spread([_since(line, line.finished_seconds) for line in served]),
        queued=spread([_since(line, line.started_seconds) for line in served]),
        urgent_ttft=_ttft([line for line in served if line.request.priority > 0]),
        small_tenants_ttft=_ttft(_not_the_busiest(served)),
        finished=len(served),
        failed=len(record.timelines) - len(served),
        first_error=next((line.error for line in record.timelines if line.error), None),
        seconds=record.ended_seconds,
        busy_seconds=record.busy_seconds,
        prompt_tokens=sum(line.request.prompt_tokens for line in served),
        cached_tokens=sum(line.cached_tokens for line in served),
        output_tokens=sum(line.tokens for line in record.timelines),
        usage_mean=_mean(usage),
        usage_peak=max(usage),
        running_mean=_mean(running),
        running_peak=max(running),
        queue_peak=max((sample.queued for sample in record.samples), default=0),
        retractions=status.retractions,
        chunk_cuts=status.chunk_cuts,
        steps=status.steps,
    )


def _ttft(lines: Sequence[Timeline]) -> Spread:
    return spread([_since(line, line.first_token_seconds) for line in lines])


def _not_the_busiest(lines: Sequence[Timeline]) -> list[Timeline]:
    ranked = Counter(line.request.routing_key for line in lines).most_common(1)
    return [line for line in lines if line.request.routing_key != ranked[0][0]]


def _since(line: Timeline, seconds: float | None) -> float:
    assert seconds is not None, "a served request has every time"
    return seconds - line.request.arrival_seconds


def _mean(values: Iterable[float]) -> float:
    kept = list(values)
    return sum(kept) / len(kept)
