"""Settings of the scheduler, resolved by its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_contract.config.adapters import DEFAULT_MAX_LORAS_PER_BATCH

from sluice_runtime.scheduler.limits import Limits

FIRST_CHUNK_TOKENS: Final = 128
"""Budget of the first steps with a target. It is small because on a CPU a chunk of 512 takes tens
of milliseconds with a small model and seconds with a large one."""


@dataclass(frozen=True)
class StepTarget:
    """Bound on the duration of a step that decode rows wait for."""

    seconds: float
    share: float
    """Share of the steps with prompt tokens that must keep the bound."""
    start_tokens: int = FIRST_CHUNK_TOKENS


@dataclass(frozen=True)
class HostPages:
    """The host tier's capacity in pages, in memory and on disk."""

    memory: int
    disk: int = 0
    page_bytes: int = 0
    """Size of one page; for metrics."""


@dataclass(frozen=True)
class SchedulerSettings:
    """Settings of a scheduler. Sizes are in tokens unless the name says otherwise."""

    limits: Limits
    page_size: int
    chunk_size: int | None
    """Token budget of a step with prompts, or with a target the largest budget; None: chunking is
    off."""
    max_prefill_tokens: int
    min_prefill_tokens: int
    """Tokens of the chunk that decode rows cannot take; at least one page."""
    max_running_requests: int
    max_queued_requests: int
    mixed: bool
    """Whether decode rows join prefill chunks in one forward pass."""
    prefix_cache: bool = True
    """Whether computed prefixes are kept and shared."""
    eviction: str = "lru"
    """Name of the order in which prefixes are evicted when pages are needed."""
    policy: str = "fcfs"
    seed: int = 0
    """Seed of the policy `random`."""
    priority_threshold: int = 10
    """Difference in priority above which one request preempts another; policy priority only."""
    conservativeness: float = 1.0
    report_chunks: bool = False
    """Whether `process` returns the chunks of prompts that a step has finished."""
    target: StepTarget | None = None
    """Target that decides the budget of each step; None: the budget is chunk_size."""
    max_adapters: int = DEFAULT_MAX_LORAS_PER_BATCH
    """Most different adapters among requests with rows."""
    layers: int = 1
    """Number of the model's layers, into which a prompt's chunk may be split; 1: chunks are never
    split."""
    draft_tokens: int = 0
    """Maximum drafts of a row that one step verifies; 0: no speculation."""
    draft_model: bool = False
    """Whether a model proposes the drafts."""
    draft_head: bool = False
    """Whether drafts come from a head, which computes every step after the model."""
    ttft_seconds: float | None = None
    """Promised time to the first token; policy `slack` only."""
    host_pages: HostPages | None = None
    """Capacity of the host tier; None: there is none, so evicted pages are lost."""

    @property
    def draft_lags(self) -> bool:
        """Whether the draft model has to catch up on a row before it drafts for it."""
        return self.draft_model and not self.draft_head
