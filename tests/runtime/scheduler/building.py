"""Small schedulers and requests for tests."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sluice_runtime.scheduler.batch import Batch, FinishedChunk
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.pacing import ChunkBudget, FixedChunk, LayerSplit, StepView
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Generate, Sampling, TokenDelta

from tests.runtime.scheduler.fake_runner import FakeRunner, NearlyRight


def settings_of(pool_tokens: int = 256, page_size: int = 4, **changed: Any) -> SchedulerSettings:
    values: dict[str, Any] = {
        "limits": Limits(changed.pop("context", 10_000), pool_tokens),
        "page_size": page_size,
        "chunk_size": 16,
        "max_prefill_tokens": 4096,
        "min_prefill_tokens": page_size,
        "max_running_requests": 16,
        "max_queued_requests": 64,
        "mixed": True,
        "prefix_cache": False,
    }
    return SchedulerSettings(**(values | changed))


def request(
    request_id: str, prompt: Sequence[int] | int, max_tokens: int, **fields: Any
) -> Generate:
    tokens = list(range(prompt)) if isinstance(prompt, int) else list(prompt)
    return Generate(request_id, tokens, max_tokens, Sampling(), **fields)


class SplitChunk(FixedChunk):
    """Every chunk that may be split is, whatever a step takes."""

    def __init__(self, chunk_tokens: int, split: LayerSplit) -> None:
        super().__init__(chunk_tokens)
        self._split = split

    def budget(self, view: StepView) -> ChunkBudget:
        fixed = super().budget(view)
        return replace(fixed, split=self._split) if view.decode_rows else fixed


class Bench:
    """A scheduler and a fake runner, stepped by hand.

    `overlap`: each batch is made before the results of the one before it are in, and runs as late
    as it may.
    """

    def __init__(
        self,
        settings: SchedulerSettings,
        order: Sequence[int] | None = None,
        *,
        overlap: bool = False,
    ) -> None:
        pages = settings.limits.kv_pool_tokens // settings.page_size
        self.settings = settings
        self.runner = FakeRunner(pages, settings.page_size)
        self.runner.has_head = settings.draft_head
        self.scheduler = Scheduler(settings, PageAllocator(pages, order, self._freed))
        if self.scheduler._speculation and not settings.draft_model:
            self.scheduler._speculation._drafts_of_row = lambda request: NearlyRight()
        self.overlap = overlap
        self.now = 0.0
        self.in_flight: deque[Batch] = deque()
        self.answers: dict[str, list[int]] = {}
        self.terminals: dict[str, list[TokenDelta]] = {}
        self.cached: dict[str, int] = {}
        self.deltas: list[TokenDelta] = []
        self.chunks: list[FinishedChunk] = []
        self.accepted_tokens = 0

    def _freed(self, page_ids: Sequence[int]) -> None:
        """What the next step saves first is to stay until then."""
        host = self.scheduler._kv.host
        saving = host.saving_pages if host else ()
        self.runner.freed([page for page in page_ids if page not in saving])

    def add(self, *requests: Generate) -> None:
        for one in requests:
            self.scheduler.add(one)

    def step(self) -> Batch | None:
        batch = self.launch()
        if self.in_flight and not (self.overlap and batch and len(self.in_flight) == 1):
            self.land()
        return batch

    def launch(self) -> Batch | None:
        """The first half of a step."""
        batch = self.scheduler.next_batch(self.now)
        if batch is not None:
            self.in_flight.append(batch)
        return batch

    def land(self) -> None:
        """The second half, of the oldest step in flight."""
        batch = self.in_flight.popleft()
        outcome = self.scheduler.process(batch, self.runner.forward(batch), self.now)
        deltas, chunks = outcome.deltas, outcome.finished_chunks
        self.accepted_tokens += outcome.accepted_tokens
        self.chunks += chunks
        self.deltas += deltas
        for delta in deltas:
            if delta.token_ids and delta.request_id not in self.answers:
                self.cached[delta.request_id] = delta.cached_tokens
            self.answers.setdefault(delta.request_id, []).extend(delta.token_ids)
            if delta.finish_reason:
                self.terminals.setdefault(delta.request_id, []).append(delta)
        self.scheduler.check_integrity()
        if host := self.scheduler._kv.host:
            host.check_integrity()

    def run(self, max_steps: int = 10_000) -> list[Batch]:
        """Steps until there is nothing left to do."""
        batches: list[Batch] = []
        for _ in range(max_steps):
            flying = bool(self.in_flight)
            if batch := self.step():
                batches.append(batch)
            elif not flying:
                return batches
        raise AssertionError("requests never end")

    def step_until(self, done: Any, max_steps: int = 1000) -> Batch:
        """Steps until `done(batch)`."""
        for _ in range(max_steps):
            batch = self.step()
            assert batch is not None, "idle before it happened"
            if done(batch):
                return batch
        raise AssertionError("it never happened")
