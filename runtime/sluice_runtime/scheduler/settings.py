"""The values that decide how the scheduler behaves, resolved by its caller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_contract.config.adapters import DEFAULT_MAX_LORAS_PER_BATCH

from sluice_runtime.scheduler.limits import Limits

FIRST_CHUNK_TOKENS: Final = 128
"""Budget of the first steps with a target: on a CPU a chunk of 512 takes tens of milliseconds with
a small model and seconds with a large one."""


@dataclass(frozen=True)
class StepTarget:
    """Bound on the duration of a step that decode rows wait for."""

    seconds: float
    share: float
    """Share of the steps with prompt tokens that must keep it."""
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
    """All sizes in tokens unless named otherwise."""

    limits: Limits
    page_size: int
    chunk_size: int | None
    """Token budget of a step that prefills, the most with a target; None: chunking is off."""
    max_prefill_tokens: int
    min_prefill_tokens: int
    """Tokens of the chunk that decode rows cannot take; one page at least."""
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
    """Decides the budget of each step; None: it is chunk_size."""
    max_adapters: int = DEFAULT_MAX_LORAS_PER_BATCH
    """Maximum different adapters among the requests that have rows."""
    layers: int = 1
    """Number of the model's layers, into which a prompt's chunk may be split; 1: chunks are never
    split."""
    draft_tokens: int = 0
    """Maximum drafts of a row that one step verifies; 0: no speculation."""
    draft_model: bool = False
    """Whether a model proposes the drafts."""
    draft_head: bool = False
    """Whether the draft model is a head of the model, which computes every step after it."""
    ttft_seconds: float | None = None
    """Promised time to the first token; policy `slack` only."""
    host_pages: HostPages | None = None
    """Capacity of the host tier; None: there is none, so evicted pages are lost."""

    @property
    def draft_lags(self) -> bool:
        """Whether the draft model has to catch up on a row before it drafts for it."""
        return self.draft_model and not self.draft_head
