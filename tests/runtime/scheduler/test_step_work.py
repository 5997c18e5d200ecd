"""No step does much more than others for requests that join, however long the prefix is that they
share: work is counted in elements, where it is done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from msgspec import structs
from sluice_runtime.grammar.constraint import CompiledGrammar
from sluice_runtime.grammar.masks import Matcher, Matchers
from sluice_runtime.scheduler import host_tier, prefix_node, request_table, retraction
from sluice_runtime.scheduler import request as request_module
from sluice_runtime.scheduler.admission_bounds import JOINED_PAGES
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.ngram import NGramIndex
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.prefix_node import TOKEN_BYTES
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import HostPages, StepTarget
from sluice_runtime.scheduler.speculation import Speculation
from sluice_runtime.wire.messages import Generate, Grammar, Sampling, TokenLogprob

from tests.runtime.grammar.drawing import SIZE, compiled_of
from tests.runtime.scheduler.building import request, settings_of

PREFIX = [n * n % 1009 for n in range(32_000)]
PAGE = 16
REQUESTS = 64
TAIL = 20


@dataclass(frozen=True)
class Joining:
    """What is on while requests join, and how they come."""

    settings: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of each request."""
    elsewhere: bool = False
    """Whether another engine computes what is not cached of their prompts."""


FEATURES = {
    "plain": Joining(),
    "NGram": Joining({"draft_tokens": 4}),
    "Draft": Joining({"draft_tokens": 4, "draft_model": True}),
    "host cache": Joining({"host_pages": HostPages(4096)}),
    "logprobs": Joining(fields={"logprobs": 2}),
    "penalties": Joining(fields={"sampling": Sampling(presence_penalty=0.5)}),
    "adapter": Joining({"max_adapters": 2}, {"adapter": "sql"}),
    "grammar": Joining(fields={"grammar": Grammar("regex", "\x07*", [SIZE], "regex")}),
    "resumed": Joining(fields={"generated_ids": [7] * 50}),
    "chunks are told": Joining({"report_chunks": True}),
    "prompts computed elsewhere": Joining({"report_chunks": True}, elsewhere=True),
    "slo": Joining({"target": StepTarget(1.0, 0.99), "draft_tokens": 4}),
}


compiled_once = cache(compiled_of)


class Engine:
    """A scheduler whose steps draw token 7, and what each step has done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, pages: int = 12_000, **on: Any) -> None:
        tokens = pages * on.get("page_size", PAGE)
        sizes = {"pool_tokens": tokens, "context": 60_000, "page_size": PAGE, "chunk_size": 4096}
        most = {"max_running_requests": 1024, "max_queued_requests": 1024}
        settings = settings_of(**(sizes | most | {"prefix_cache": True} | on))
        self.scheduler = Scheduler(settings, PageAllocator(pages))
        self.scheduler.take_adapters({"sql": ""})
        self._work: Counter[str] = Counter()
        self._scores = False
        self._matchers = Matchers(SIZE)
        self._lengths: dict[int, int] = {}
        """Tokens of each row."""
        self._count(monkeypatch, Matcher, "_take", lambda _: 1)
        self._count(monkeypatch, Matcher, "_mask", lambda _: 1)
        self._count(monkeypatch, NGramIndex, "extend", lambda indexed: indexed)
        self._count(monkeypatch, Speculation, "_candidates", len)
        self._count(monkeypatch, PageAllocator, "allocate", len)
        self._count(monkeypatch, host_tier, "_digest", lambda digest: 1)
        for module in (prefix_node, request_module):
            self._count(monkeypatch, module, "key_of", lambda key: len(key) // TOKEN_BYTES)
        self._count(monkeypatch, Match, "page_ids", len)

    def _count(
        self, patch: pytest.MonkeyPatch, owner: Any, name: str, size: Callable[[Any], int]
    ) -> None:
        original = getattr(owner, name)

        def counted(*arguments: Any) -> Any:
            result = original(*arguments)
            self._work[name] += size(result)
            return result

        patch.setattr(owner, name, counted)

    def add(self, message: Generate, *, elsewhere: bool = False) -> None:
        """Counts what it takes beyond reading the request's own tokens."""
        (self.scheduler.add_remote if elsewhere else self.scheduler.add)(message)
        self._work["key_of"] -= len(message.prompt_ids) + len(message.generated_ids)
        if grammar := message.grammar:
            compiled = compiled_once(grammar.kind, grammar.text)
            matcher = compiled.matcher.deep_copy()
            self._matchers.open(message, CompiledGrammar(matcher, compiled.compile))

    def step(self, now: float) -> tuple[Batch | None, Counter[str]]:
        """The next batch, and what it took to make it and to take its results in, with what was
        added before it. Prompts that have their pages arrive at once."""
        for room in self.scheduler.next_preallocations(now):
            self.scheduler.resume(room.request_id, (7, None, None), room.cached_tokens, now)
        batch = self.scheduler.next_batch(now)
        if batch is None:
            work = self._work.copy()
            self._work.clear()
            return None, work
        tokens = (7,) * len(batch.sampling_rows)
        if self._matchers.used:
            self._follow_grammars(batch, tokens)
        self._scores |= any(added.logprobs >= 0 for added in batch.added_rows)
        scores = (TokenLogprob(7, -1.0, 1, []),) * len(tokens) if self._scores else ()
        self.scheduler.process(batch, SampledTokens(batch.step, tokens, scores), now + 0.01)
        work = self._work.copy()
        self._work.clear()
        work["decode"] = batch.answering_rows
        if batch.host_copies:
            work["copies"] = len(batch.host_copies.saved) + len(batch.host_copies.loaded)
        return batch, work

    def _follow_grammars(self, batch: Batch, tokens: Sequence[int]) -> None:
        """Masks the rows that have a grammar, as the runner does, and gives them their tokens."""
        self._matchers.follow(batch)
        for extend in batch.extend_rows:
            self._lengths[extend.row] = extend.start + len(extend.token_ids)
        for row in batch.decode_rows:
            self._lengths[row] += 1
        rows = batch.sampling_rows
        self._matchers.masks(rows, [self._lengths[row] for row in rows])
        self._matchers.accepting(rows)(tokens)
        assert not self._matchers.take_given_up(batch.step)

    def run(self, steps: int, begin: float) -> list[tuple[Batch | None, Counter[str]]]:
        return [self.step(begin + 0.02 * number) for number in range(steps)]


@pytest.mark.parametrize("requests", [64, pytest.param(200, marks=pytest.mark.process)])
@pytest.mark.parametrize("joining", FEATURES.values(), ids=FEATURES)
def test_many_that_join_over_a_long_cached_prefix_hold_up_no_step(
    joining: Joining, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(monkeypatch, **joining.settings)
    shared = {"adapter": joining.fields["adapter"]} if "adapter" in joining.fields else {}
    engine.add(request("first", PREFIX, 2, **shared))
    engine.run(10, 0.0)
    for number in range(requests):
        message = request(f"r{number}", [*PREFIX, *range(number, number + TAIL)], 400)
        message = structs.replace(message, **joining.fields)
        engine.add(message, elsewhere=joining.elsewhere)
    steps = engine.run(40, 1.0)
    assert sum(len(batch.added_rows) for batch, _ in steps if batch) == requests
    plain = max(work.total() for _, work in steps[-8:])
    # Pages of the cached prefix have a limit of their own.
    joined_pages = max(work.pop("page_ids", 0) for _, work in steps)
    assert joined_pages <= JOINED_PAGES + len(PREFIX) // PAGE
    # A joining prompt has pages of its own to take, and its own tokens to be compared with.
    generated = len(joining.fields.get("generated_ids", ()))
    own = requests * ((TAIL + generated) // PAGE + 2) + joining.elsewhere * requests * (TAIL + 1)
    most = max(work.total() for _, work in steps)
    assert most <= 3 * plain + own, [dict(work) for _, work in steps[:8]]


def test_requests_that_are_sent_back_hold_up_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """They run over one long prefix, and their answers outgrow the pool; so some come again."""
    pages = len(PREFIX) // PAGE + REQUESTS * 6
    engine = Engine(monkeypatch, pages, conservativeness=0.02)
    engine.add(request("first", PREFIX, 2))
    engine.run(10, 0.0)
    for number in range(REQUESTS):
        engine.add(request(f"r{number}", [*PREFIX, *range(number, number + TAIL)], 200))
    steps = engine.run(700, 1.0)
    status = engine.scheduler.status()
    assert status.retractions > 20
    assert status.finished_requests == REQUESTS + 1
    for _, work in steps:
        assert work.pop("page_ids", 0) <= JOINED_PAGES + len(PREFIX) // PAGE
    answer = 200
    most = max(work.total() for _, work in steps)
    assert most <= 3 * REQUESTS + REQUESTS // 4 * (answer + TAIL)


def test_in_a_nearly_full_pool_only_rows_at_the_end_of_a_page_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The free pages are fewer than the rows, and enough for the few that need one."""
    engine = Engine(monkeypatch, REQUESTS + 56, conservativeness=0.02)
    looked_at: list[int] = []
    original = request_module.rows_needing_page

    def counted(requests: Collection[Request], page_size: int) -> list[Request]:
        looked_at.append(len(requests))
        return original(requests, page_size)

    for number in range(REQUESTS):
        engine.add(request(f"r{number}", number % PAGE + 1, 14))
    for module in (request_table, retraction):
        monkeypatch.setattr(module, "rows_needing_page", counted)
    steps = [work["decode"] for _, work in engine.run(12, 0.0)]
    assert steps[2:] == [REQUESTS] * 10
    assert engine.scheduler.status().pages_available < REQUESTS
    assert max(looked_at) <= 2 * REQUESTS // PAGE


def test_an_evicted_prompt_is_hashed_once_and_saved_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The prefix is used twice, so it is worth saving; another of its length drives it out."""
    engine = Engine(monkeypatch, 15_000, page_size=4, chunk_size=2048, host_pages=HostPages(4096))
    engine.add(request("first", PREFIX[:8000], 2))
    engine.run(8, 0.0)
    engine.add(request("again", [*PREFIX[:8000], 1, 2, 3], 2))
    engine.run(8, 1.0)
    engine.add(request("other", [n % 997 for n in range(58_000)], 2))
    steps = [work for batch, work in engine.run(32, 2.0) if batch]
    chunk_pages = 2048 // 4
    assert sum(work["copies"] for work in steps) > 2 * chunk_pages
    assert max(work["copies"] for work in steps) <= chunk_pages + 1
    assert max(work["_digest"] for work in steps) <= chunk_pages + 1
    assert max(work["allocate"] for work in steps) <= chunk_pages + 1


@pytest.mark.parametrize("features", [{}, {"host_pages": HostPages(4096)}], ids=["plain", "host"])
@pytest.mark.parametrize("apart", [100, 0], ids=["different prompts", "equal prompts"])
def test_answers_that_end_together_enter_the_tree_at_once_and_are_packed_in_parts(
    apart: int, features: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another answer runs on, so there are steps in which to do the rest."""
    engine = Engine(monkeypatch, 15_000, page_size=4, chunk_size=2048, **features)
    engine.add(request("last", 8, 600))
    for number in range(REQUESTS):
        engine.add(request(f"r{number}", range(apart * number, apart * number + TAIL), 300))
    steps = [work for batch, work in engine.run(340, 0.0) if batch]
    step_pages = (2048 + 1024) // 4
    packed = [work["key_of"] for work in steps]
    different = REQUESTS if apart else 1
    assert sum(packed) > different * 280
    assert max(packed) <= (step_pages + REQUESTS) * 4, "and the first page of each"
    assert max(work["_digest"] for work in steps) <= step_pages
    if features:
        assert sum(work["_digest"] for work in steps) >= different * ((TAIL + 300) // 4 - 1)
    engine.add(request("next", [*range(TAIL), *([7] * 290), 1], 2))
    (batch, _), *_ = engine.run(1, 9.0)
    assert batch is not None
    assert batch.cached_tokens >= 300


def test_a_lookup_packs_no_more_of_an_answer_than_the_prompt_reaches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prompts continue answers that have just ended, of which most tokens are not packed yet."""
    engine = Engine(monkeypatch, 15_000, page_size=4, chunk_size=1024, max_running_requests=128)
    engine.add(request("last", 8, 600))
    for number in range(REQUESTS):
        engine.add(request(f"r{number}", range(100 * number, 100 * number + TAIL), 300))
    engine.run(302, 0.0)
    (_, plain), *_ = engine.run(1, 7.0)
    for number in range(REQUESTS):
        prompt = [*range(100 * number, 100 * number + TAIL), *([7] * 8), 5]
        engine.add(request(f"next{number}", prompt, 2))
    (batch, work), *_ = engine.run(1, 8.0)
    assert batch is not None
    assert batch.cached_tokens == REQUESTS * (TAIL + 8)
    assert work["key_of"] <= plain["key_of"] + REQUESTS * (8 + 4), "and a page to part at"
