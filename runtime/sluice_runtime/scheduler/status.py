"""The scheduler's state as one frozen value, for logs, metrics and the load report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice_runtime.scheduler.pacing import PaceStatus
from sluice_runtime.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class ChunkProgress:
    """The request whose prompt is being computed in chunks."""

    request_id: str
    computed_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Status:
    """The scheduler between two steps."""

    queued_requests: int
    queued_tokens: int
    """Prompt tokens not computed yet, of waiting and of partly prefilled requests."""
    running_requests: int
    """Requests that have a row: they decode, are mid-prefill, or get their prompt from elsewhere.
    """
    awaiting_pages: int
    """Queued requests whose prompts are computed elsewhere."""
    preallocated: int
    """Requests of that kind that have a row and pages."""
    pages_total: int
    pages_free: int
    pages_evictable: int
    """Cached prefixes that no request uses."""
    evicted_pages: int
    """Since the start: cached pages that were needed for something else."""
    new_token_ratio: float
    beta: float
    """Mean share of max_tokens that the last completions used."""
    prefilling: ChunkProgress | None
    admission_reason: str
    """Why the last step has no more prompts: `PrefillPlan.reason`."""
    retractions: int
    chunk_cuts: int
    received_prompt_tokens: int
    """Since the start: tokens of the prompts to compute here, without those that were cached when
    they came."""
    finished_requests: int
    """Since the start: requests whose answer came to its end."""
    steps: Mapping[str, int]
    """Since the start, by forward mode."""
    pace: PaceStatus

    @property
    def usage_ratio(self) -> float:
        """Share of the pool that requests hold."""
        return 1.0 - self.pages_available / self.pages_total

    @property
    def pages_available(self) -> int:
        """Pages that a request could have now."""
        return self.pages_free + self.pages_evictable


def progress_of(request: Request | None) -> ChunkProgress | None:
    """How far the prompt of the request that was cut is; None when there is none."""
    if request is None:
        return None
    return ChunkProgress(request.request_id, request.computed_tokens, len(request.token_ids))
