"""The scheduler's state as one frozen value for logs, metrics and the load report, and the counters
behind it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sluice_runtime.scheduler.admission import PrefillPlan
from sluice_runtime.scheduler.batch import ForwardMode
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.pacing import PaceStatus, Pacing
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import NewTokenRatio, RequestTable
from sluice_runtime.wire.messages import HostCacheLoad


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
    """Requests with a row and pages whose prompts are computed elsewhere."""
    pages_total: int
    pages_free: int
    pages_evictable: int
    """Cached pages that no request uses."""
    evicted_pages: int
    """Cached pages evicted for other uses since the start."""
    new_token_ratio: float
    beta: float
    """Share of max_tokens that the next requests are expected to use."""
    average_usage: float | None
    """Mean share of max_tokens that the last completions used."""
    saved_share: float
    """Share of memory that admission saves; see `Running.saved_share`."""
    prefilling: ChunkProgress | None
    admission_reason: str
    """Reason why the last step has no more prompts: see `PrefillPlan.reason`."""
    retractions: int
    chunk_cuts: int
    received_prompt_tokens: int
    """Tokens received since the start in prompts to compute here, without tokens that were cached
    on arrival."""
    finished_requests: int
    """Requests whose answer ended, since the start."""
    steps: Mapping[str, int]
    """Number of steps since the start, by forward mode."""
    pace: PaceStatus
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that answers kept since the start; `drafted_tokens` are all verified drafts."""
    host_cache: HostCacheLoad | None = None

    @property
    def usage_ratio(self) -> float:
        """Share of the pool that requests hold."""
        return 1.0 - self.pages_available / self.pages_total

    @property
    def pages_available(self) -> int:
        """Pages that a request can get now."""
        return self.pages_free + self.pages_evictable


@dataclass(slots=True)
class Counts:
    """Counters of the scheduler since the start; see `Status`."""

    steps: Counter[str] = field(
        default_factory=lambda: Counter({mode.value: 0 for mode in ForwardMode})
    )
    admission_reason: str = PrefillPlan().reason
    """Reason of the last step."""
    retractions: int = 0
    chunk_cuts: int = 0
    received_prompt_tokens: int = 0
    finished_requests: int = 0

    def received(self, request: Request, cached_tokens: int) -> None:
        """Counts the prompt of a request that no other engine has counted."""
        self.received_prompt_tokens += len(request.token_ids) - cached_tokens


class DraftCounts(Protocol):
    """See `Status`."""

    drafted_tokens: int
    accepted_tokens: int


def status_of(
    counts: Counts,
    table: RequestTable,
    kv: KvAllocator,
    ratio: NewTokenRatio,
    pacing: Pacing,
    drafts: DraftCounts | None,
) -> Status:
    """The status of a scheduler with these parts."""
    prefilling = table.prefilling
    return Status(
        queued_requests=len(table.waiting) + len(table.awaiting_pages),
        queued_tokens=table.waiting.tokens + (prefilling.uncomputed_tokens if prefilling else 0),
        running_requests=len(table.running) + len(table.preallocated) + (prefilling is not None),
        awaiting_pages=len(table.awaiting_pages),
        preallocated=len(table.preallocated),
        pages_total=kv.total_pages,
        pages_free=kv.free_pages,
        pages_evictable=kv.evictable_pages,
        evicted_pages=kv.evicted_pages,
        new_token_ratio=ratio.value,
        beta=ratio.beta,
        average_usage=ratio.average_usage,
        saved_share=table.running.saved_share(ratio.value),
        prefilling=progress_of(prefilling),
        admission_reason=counts.admission_reason,
        retractions=counts.retractions,
        chunk_cuts=counts.chunk_cuts,
        received_prompt_tokens=counts.received_prompt_tokens,
        finished_requests=counts.finished_requests,
        steps=dict(counts.steps),
        pace=pacing.status(),
        drafted_tokens=drafts.drafted_tokens if drafts else 0,
        accepted_tokens=drafts.accepted_tokens if drafts else 0,
        host_cache=kv.host.load() if kv.host else None,
    )


def progress_of(request: Request | None) -> ChunkProgress | None:
    """Progress of a cut prompt; None without a request."""
    if request is None:
        return None
    return ChunkProgress(request.request_id, request.computed_tokens, len(request.token_ids))
