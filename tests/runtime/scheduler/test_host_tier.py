"""What is evicted comes back from the host tier, as it was."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.scheduler import host_tier
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.host_index import HostIndex
from sluice_runtime.scheduler.host_tier import LEAST_WAIT_SECONDS, HostTier, TierLoad
from sluice_runtime.scheduler.prefix_cache import PrefixCache
from sluice_runtime.scheduler.prefix_node import Tail, key_of
from sluice_runtime.scheduler.settings import HostPages

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to

PAGE = 4
FIRST = list(range(24))
OTHERS = [[20 + n] * 28 for n in range(4)]


MEMORY = HostPages(64)


def bench(host: HostPages | None = MEMORY, pool_pages: int = 8) -> Bench:
    """A pool of eight pages is nearly filled by one prompt of FIRST or OTHERS."""
    tokens = pool_pages * PAGE
    return Bench(settings_of(pool_tokens=tokens, chunk_size=64, prefix_cache=True, host_pages=host))


def ask(bench: Bench, name: str, prompt: list[int]) -> list[Batch]:
    bench.add(request(name, prompt, 3))
    batches = bench.run()
    assert bench.answers[name] == answer_to(prompt, 3)
    return batches


def tier(bench: Bench) -> Any:
    assert bench.scheduler._kv.host is not None
    return bench.scheduler._kv.host


def test_a_prefix_comes_back_after_everything_was_evicted() -> None:
    b = bench()
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    batches = ask(b, "again", FIRST)
    assert b.cached["again"] == 20
    assert tier(b).counts.hit_tokens == {"memory": 20}
    assert sum(batch.extend_tokens for batch in batches) == 4


def test_pages_are_hashed_a_few_a_step_from_the_beginning_of_their_prefix() -> None:
    """The prefix is split meanwhile, so what is hashed next continues what is not."""
    cache, ids = PrefixCache(PAGE, new_pages=2), list(range(6 * PAGE))
    settings = settings_of(page_size=PAGE, host_pages=MEMORY)
    HostTier(settings, cache, lambda: 0.0, lambda *lease: None, lambda fence: None)
    cache.extend(cache.lock(cache.match("", b"", 0)), key_of(ids), list(range(6)))
    upper = cache.lock(cache.match("", key_of(ids), 4)).node
    (lower,) = upper.children.values()
    hashed = [(len(upper.digests), len(lower.digests))]
    for _ in range(3):
        cache.packing.begin_step()
        hashed.append((len(upper.digests), len(lower.digests)))
    assert hashed == [(2, 0), (4, 0), (4, 2), (4, 2)]
    whole = PrefixCache(PAGE)
    HostTier(settings, whole, lambda: 0.0, lambda *lease: None, lambda fence: None)
    lock = whole.lock(whole.match("", b"", 0))
    whole.extend(lock, key_of(ids), list(range(6)))
    assert lock.node.digests == upper.digests + lower.digests


def test_the_upper_part_of_a_split_prefix_is_hashed_though_the_lower_one_is_evicted() -> None:
    cache, ids = PrefixCache(PAGE, new_pages=1), list(range(6 * PAGE))
    settings = settings_of(page_size=PAGE, host_pages=MEMORY)
    HostTier(settings, cache, lambda: 0.0, lambda *lease: None, lambda fence: None)
    whole = cache.lock(cache.match("", b"", 0))
    cache.extend(whole, key_of(ids), list(range(6)))
    upper = cache.lock(cache.match("", key_of(ids), 4)).node
    cache.unlock(whole)
    assert cache.evict(2) == [4, 5]
    for _ in range(4):
        cache.packing.begin_step()
    assert len(upper.digests) == 4


def test_pages_that_come_back_behind_unhashed_ones_are_hashed_after_these() -> None:
    """A prompt with the same beginning was computed meanwhile; one page a step is hashed."""
    cache, ids = PrefixCache(PAGE, new_pages=1), list(range(6 * PAGE))
    settings = settings_of(page_size=PAGE, host_pages=MEMORY)
    host = HostTier(settings, cache, lambda: 0.0, lambda *lease: None, lambda fence: None)
    pages, before = [], host_tier._root_digest("")
    for at in range(0, len(ids), PAGE):
        digest = host_tier._digest(before, key_of(ids[at : at + PAGE]))
        page = host.index.add(digest, before)
        assert page is not None
        page.readers += 1
        pages.append(page)
        before = digest
    empty = cache.match("", b"", 0)
    load = TierLoad(cache.lock(empty), key_of(ids), pages, list(range(10, 16)))
    computed = cache.lock(empty)
    cache.extend(computed, key_of(ids[: 4 * PAGE]), [0, 1, 2, 3])
    host._loaded(load, frozenset())
    cache.unlock(load.lock)
    cache.unlock(computed)
    assert [len(node.digests) for node in cache.nodes()] == [0, 1, 0]
    for _ in range(6):
        cache.packing.begin_step()
    last = load.lock.node
    assert last.digests == [page.digest for page in pages[4:]]
    assert cache.evict(2) == [14, 15]


def test_a_prefix_that_lost_hashed_pages_has_none_to_hash() -> None:
    cache, ids = PrefixCache(PAGE), list(range(6 * PAGE))
    settings = settings_of(page_size=PAGE, host_pages=MEMORY)
    HostTier(settings, cache, lambda: 0.0, lambda *lease: None, lambda fence: None)
    lock = cache.lock(cache.match("", b"", 0))
    cache.extend(lock, key_of(ids), list(range(6)))
    cache.unlock(lock)
    cache.evict(2)
    hash_pages = cache.packing.hash_pages
    assert hash_pages is not None
    assert hash_pages(lock.node, 9) == 0


def test_pages_that_come_back_are_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench()
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    hashed: list[int] = []
    hash_pages = tier(b)._cache.packing.hash_pages

    def counted(*arguments: Any) -> int:
        hashed.append(hash_pages(*arguments))
        return hashed[-1]

    monkeypatch.setattr(tier(b)._cache.packing, "hash_pages", counted)
    ask(b, "again", FIRST)
    assert b.cached["again"] == 20
    assert sum(hashed) == 1, "the page that was not in the tier"


def test_pages_that_the_step_cannot_compare_with_an_answer_are_given_back() -> None:
    """The answer ended while they were loaded, and only its first two pages are packed."""
    cache, ids = PrefixCache(PAGE, new_pages=1), list(range(4 * PAGE))
    settings = settings_of(page_size=PAGE, host_pages=MEMORY)
    host = HostTier(settings, cache, lambda: 0.0, lambda *lease: None, lambda fence: None)
    pages = [page for name in (b"a", b"b", b"c", b"d") if (page := host.index.add(name, b""))]
    for page in pages:
        page.readers += 1
    answer, lock = (cache.lock(cache.match("", b"", 0)) for _ in range(2))
    cache.extend(answer, key_of(ids[:PAGE]), [0, 1, 2, 3], Tail(ids, PAGE, len(ids)))
    load = TierLoad(lock, key_of(ids), pages, [10, 11, 12, 13])
    host._loaded(load, frozenset())
    assert (load.lock.pages, load.page_ids) == (2, [10, 11, 12, 13])


def test_without_the_tier_it_is_computed_anew() -> None:
    b = bench(None)
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    ask(b, "again", FIRST)
    assert b.cached["again"] == 0


def test_others_run_while_pages_are_on_their_way() -> None:
    b = bench()
    for name, prompt in enumerate([FIRST, OTHERS[0]]):
        ask(b, str(name), prompt)
    b.runner.host.steps = 4
    b.add(request("again", FIRST, 3))
    first = b.step()
    assert first is not None
    assert first.host_copies is not None
    assert first.host_copies.loaded
    b.add(request("short", [1], 3))
    b.step_until(lambda _: "short" in b.terminals)
    assert "again" not in b.answers
    b.run()
    assert b.cached["again"] == 20


def test_a_request_whose_pages_take_too_long_is_computed() -> None:
    b = bench(pool_pages=24)
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    b.runner.host.steps = 20
    b.add(request("again", FIRST, 3))
    b.step()
    b.now = LEAST_WAIT_SECONDS - 0.01
    b.step()
    assert not b.answers.get("again")
    b.now += 0.02
    b.add(request("other", [*OTHERS[0], 1], 3))  # its pages would be behind those
    b.step_until(lambda _: {"again", "other"} <= b.terminals.keys())
    assert tier(b).loading
    assert b.answers["again"] == answer_to(FIRST, 3)
    b.run()
    assert not tier(b).loading


def test_a_bad_page_counts_as_not_there_and_so_does_what_follows_it() -> None:
    b = bench()
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    b.runner.host.bad_every = 3
    ask(b, "again", FIRST)
    assert b.cached["again"] == 8
    assert tier(b).counts.bad_pages == 1


def test_what_is_used_once_and_cheap_to_compute_is_not_saved() -> None:
    b = bench()
    b.scheduler._kv.host._token_seconds = lambda: 1e-6  # type: ignore[union-attr]
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    assert not len(tier(b).index)
    for again in "ab":
        ask(b, again, FIRST)
    ask(b, "other", OTHERS[0])
    assert len(tier(b).index) >= 5


def test_memory_moves_to_disk_before_it_is_full_and_comes_back_from_there() -> None:
    b = bench(HostPages(4, 60))
    prompts = [FIRST, *OTHERS]
    for name, prompt in enumerate(prompts * 2):
        ask(b, str(name), prompt)
    counts = tier(b).counts
    assert counts.copied_pages["spilled"] > 0
    assert counts.hit_tokens["disk"] > 0


def test_after_a_flush_nothing_comes_back() -> None:
    b = bench()
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    b.scheduler.flush_cache()
    ask(b, "again", FIRST)
    assert b.cached["again"] == 0


def test_a_flush_while_pages_are_on_their_way_leaks_none() -> None:
    b = bench()
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    b.runner.host.steps = 3
    b.add(request("again", FIRST, 3))
    b.step()
    b.scheduler.flush_cache()
    b.run()
    assert b.answers["again"] == answer_to(FIRST, 3)
    status = b.scheduler.status()
    assert status.pages_available == status.pages_total


def test_namespaces_share_nothing() -> None:
    b = bench()
    b.add(request("salted", FIRST, 3, cache_salt="x"))
    b.run()
    for name, prompt in enumerate(OTHERS):
        ask(b, str(name), prompt)
    ask(b, "plain", FIRST)
    assert b.cached["plain"] == 0


def test_requests_with_one_prefix_bring_it_back_once() -> None:
    long = list(range(44))
    b = bench(pool_pages=18)
    ask(b, "first", long)
    ask(b, "other", [49] * 60)
    b.runner.host.steps = 2
    b.add(*(request(f"r{n}", [*long, n], 2) for n in range(3)))
    batches = b.run()
    loaded = [pair for batch in batches if batch.host_copies for pair in batch.host_copies.loaded]
    assert len(loaded) == len(set(loaded)) == 9, "two pages had stayed"
    assert all(b.cached[f"r{n}"] == 44 for n in range(3))


def test_a_slot_is_given_away_once_nobody_reads_it() -> None:
    index = HostIndex(HostPages(1))
    page = index.add(b"a", b"")
    assert page is not None
    page.readers = 2
    assert index.add(b"b", b"") is None
    index.drop(page)
    index.read(page)
    assert index.add(b"b", b"") is None
    index.read(page)
    assert index.add(b"b", b"") is not None


def test_more_pages_than_slots_leave_in_one_step() -> None:
    """A slot that is taken twice has the last page: what comes back is what was computed."""
    b = bench(HostPages(4), pool_pages=12)
    ask(b, "first", FIRST)
    ask(b, "second", OTHERS[0][:16])
    batches = ask(b, "all", list(range(50, 90)))  # of ten pages eight are evicted for it
    saved = max((b.host_copies.saved for b in batches if b.host_copies), key=len)
    assert len({slot for _, slot in saved}) == len(saved) == 4
    for name, prompt in enumerate([FIRST, OTHERS[0][:16]]):
        ask(b, f"again-{name}", prompt)


def test_pages_of_a_request_that_was_sent_back_are_copied_and_not_computed_again() -> None:
    b = Bench(
        settings_of(
            pool_tokens=64, chunk_size=64, prefix_cache=True, host_pages=MEMORY, policy="priority"
        )
    )
    b.add(request("slow", FIRST, 20, priority=0))
    for _ in range(8):
        b.step()
    long = [*OTHERS[0], *OTHERS[1]]
    b.add(request("urgent", long, 3, priority=50))
    batches = b.run()
    assert b.scheduler.status().retractions == 1
    assert b.answers == {"slow": answer_to(FIRST, 20), "urgent": answer_to(long, 3)}
    assert tier(b).counts.hit_tokens == {"memory": 24}
    again = sum(batch.extend_tokens for batch in batches) - len(long)
    assert again < 2 * PAGE, "what is behind its last whole page, and what was drawn last"


def test_nobody_is_sent_back_for_a_request_whose_pages_are_on_their_way() -> None:
    b = Bench(
        settings_of(
            pool_tokens=64, chunk_size=64, prefix_cache=True, host_pages=MEMORY, policy="priority"
        )
    )
    ask(b, "first", FIRST)
    ask(b, "other", OTHERS[0] + OTHERS[1])
    b.add(request("slow", OTHERS[2], 20, priority=0))
    b.step_until(lambda batch: bool(batch.decode_rows))
    b.runner.host.steps = 3
    b.add(request("urgent", FIRST, 3, priority=50))
    b.step_until(lambda _: "urgent" in b.terminals)
    assert b.cached["urgent"] == 20
    assert b.scheduler.status().retractions == 0


@pytest.mark.parametrize(("token_seconds", "loaded"), [(0.0, 15), (4e-4, 14)])
def test_a_step_begins_to_load_a_bounded_number_of_pages(
    token_seconds: float, loaded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three prompts want five pages each; the step may load seven, and the next one the rest, also
    where a page alone would be computed sooner, as the very last one is."""
    for module in ("admission", "host_tier"):
        monkeypatch.setattr(f"sluice_runtime.scheduler.{module}.MAX_LOADED", 7)
    b = bench(HostPages(64), pool_pages=24)
    prompts = [[10 * n + i for i in range(1, 10)] * 2 + [n] * 6 for n in range(3)]
    for name, prompt in enumerate([*prompts, *OTHERS, *OTHERS]):
        ask(b, f"first {name}", prompt)
    tier(b)._load_pages = 7
    tier(b)._token_seconds = lambda: token_seconds
    b.add(*(request(f"again {name}", prompt, 3) for name, prompt in enumerate(prompts)))
    batches = b.run()
    loads = [len(batch.host_copies.loaded) for batch in batches if batch.host_copies]
    assert max(loads) <= 7
    assert sum(loads) == loaded
    assert [b.answers[f"again {n}"] for n in range(3)] == [answer_to(p, 3) for p in prompts]


def test_a_prompt_is_hashed_from_its_cached_prefix_on(monkeypatch: pytest.MonkeyPatch) -> None:
    b = bench(pool_pages=64)
    for name, prompt in enumerate([FIRST, *OTHERS]):
        ask(b, str(name), prompt)
    hashed: list[bytes] = []
    digest = host_tier._digest

    def counted(before: bytes, page: bytes) -> bytes:
        hashed.append(page)
        return digest(before, page)

    monkeypatch.setattr(host_tier, "_digest", counted)
    for name in range(8):
        ask(b, f"again {name}", [*FIRST[:20], 90 + name, 1, 2, 3])
        assert len(hashed) <= 2, "the page that is its own: looked up, and once it is in the tree"
        hashed.clear()


def test_a_long_prompt_saves_what_it_evicts_chunk_by_chunk() -> None:
    b = Bench(settings_of(pool_tokens=256, chunk_size=16, prefix_cache=True, host_pages=MEMORY))
    for name, prompt in enumerate([*OTHERS, *OTHERS]):
        ask(b, str(name), [*prompt, *range(20)])
    batches = ask(b, "long", [50 + 7 * n % 190 for n in range(236)])
    saved = [len(batch.host_copies.saved) for batch in batches if batch.host_copies]
    assert sum(saved) > 30, "it evicts most of what is in the pool"
    assert max(saved) <= 16 // PAGE + 1, "a chunk's pages, and one of the answer"
