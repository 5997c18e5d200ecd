"""No step does much more than others for requests that join, however long the prefix is that they
share: work is counted in elements, where it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sluice_runtime.scheduler import host_tier
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.ngram import NGramIndex
from sluice_runtime.scheduler.prefix_cache import Node
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import HostPages
from sluice_runtime.scheduler.speculation import Speculation

from tests.runtime.scheduler.building import request, settings_of

PREFIX = [n * n % 1009 for n in range(8000)]
REQUESTS = 64
TAIL = 20
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "NGram": {"draft_tokens": 4},
    "Draft": {"draft_tokens": 4, "draft_model": True},
    "host cache": {"host_pages": HostPages(4096)},
}


class Engine:
    """A scheduler whose steps draw token 7, and what each step has done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **features: Any) -> None:
        sizes = {"pool_tokens": 60_000, "context": 60_000, "page_size": 4, "chunk_size": 2048}
        most = {"max_running_requests": 1024, "max_queued_requests": 1024}
        settings = settings_of(**sizes, **most, prefix_cache=True, **features)
        self._scheduler = Scheduler(settings, PageAllocator(15_000))
        self._work: Counter[str] = Counter()
        self.add = self._scheduler.add
        self._count(monkeypatch, NGramIndex, "extend", lambda indexed: indexed)
        self._count(monkeypatch, Speculation, "_candidates", len)
        self._count(monkeypatch, PageAllocator, "allocate", len)
        self._count(monkeypatch, host_tier, "_digest", lambda digest: 1)
        self._count(monkeypatch, Node, "pack", lambda tokens: tokens)

    def _count(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, size: Callable[[Any], int]
    ) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            result = original(*arguments)
            self._work[name] += size(result)
            return result

        patch.setattr(owner, name, counted)

    def step(self, now: float) -> tuple[Batch | None, Counter[str]]:
        """The next batch, and what it took to make it and to take its results in."""
        self._work.clear()
        batch = self._scheduler.next_batch(now)
        if batch is None:
            return None, self._work
        drawn = [extend.row for extend in batch.extend_rows if extend.samples]
        tokens = (7,) * (len(drawn) + batch.draft_tokens + batch.answering_rows)
        self._scheduler.process(batch, SampledTokens(batch.step, tokens), now + 0.01)
        work = self._work.copy()
        work["decode"] = batch.answering_rows
        if batch.host_copies:
            work["copies"] = len(batch.host_copies.saved) + len(batch.host_copies.loaded)
        return batch, work

    def run(self, steps: int, begin: float) -> list[tuple[Batch | None, Counter[str]]]:
        return [self.step(begin + 0.02 * number) for number in range(steps)]


@pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)
def test_many_that_join_over_a_long_cached_prefix_hold_up_no_step(
    features: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(monkeypatch, **features)
    engine.add(request("first", PREFIX, 2))
    engine.run(8, 0.0)
    for number in range(REQUESTS):
        engine.add(request(f"r{number}", [*PREFIX, *range(number, number + TAIL)], 400))
    steps = engine.run(40, 1.0)
    joined = sum(len(batch.added_rows) for batch, _ in steps if batch)
    assert joined == REQUESTS
    plain = max(work.total() for _, work in steps[-8:])
    # A joining prompt has pages of its own to take, beside a page now and then for each answer.
    own_pages = REQUESTS * (TAIL // 4 + 2)
    most = max(work.total() for _, work in steps)
    assert most <= 3 * plain + 2 * own_pages, [dict(work) for _, work in steps[:4]]


def test_an_evicted_prompt_is_hashed_once_and_saved_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prefix is used twice, so it is worth saving; another of its length drives it out."""
    engine = Engine(monkeypatch, host_pages=HostPages(4096))
    engine.add(request("first", PREFIX, 2))
    engine.run(8, 0.0)
    engine.add(request("again", [*PREFIX, 1, 2, 3], 2))
    engine.run(8, 1.0)
    engine.add(request("other", [n % 997 for n in range(58_000)], 2))
    steps = [work for batch, work in engine.run(32, 2.0) if batch]
    chunk_pages = 2048 // 4
    assert sum(work["copies"] for work in steps) > 2 * chunk_pages
    assert max(work["copies"] for work in steps) <= chunk_pages + 1
    assert max(work["_digest"] for work in steps) <= chunk_pages + 1
    assert max(work["allocate"] for work in steps) <= chunk_pages + 1


@pytest.mark.parametrize("features", [{}, {"host_pages": HostPages(4096)}], ids=["plain", "host"])
def test_answers_that_end_together_enter_the_tree_at_once_and_are_packed_in_parts(
    features: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another answer runs on, so there are steps in which to do the rest."""
    engine = Engine(monkeypatch, **features)
    engine.add(request("last", 8, 600))
    for number in range(REQUESTS):
        engine.add(request(f"r{number}", range(100 * number, 100 * number + TAIL), 300))
    steps = [work for batch, work in engine.run(340, 0.0) if batch]
    step_pages = (2048 + 1024) // 4
    assert sum(work["pack"] for work in steps) > REQUESTS * 280
    assert max(work["pack"] for work in steps) <= step_pages * 4
    assert max(work["_digest"] for work in steps) <= step_pages
    if features:
        assert sum(work["_digest"] for work in steps) >= REQUESTS * ((TAIL + 300) // 4 - 1)
    engine.add(request("next", [*range(TAIL), *([7] * 290), 1], 2))
    (batch, _), *_ = engine.run(1, 9.0)
    assert batch is not None
    assert batch.cached_tokens >= 300
