"""The scheduler with a prefix cache: what is found, what is shared, and what it costs."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def bench_of(**changed: Any) -> Bench:
    return Bench(settings_of(**({"prefix_cache": True, "chunk_size": 64} | changed)))


def extends(batch: Batch | None) -> list[tuple[int, int]]:
    assert batch
    return [(extend.start, len(extend.token_ids)) for extend in batch.extend_rows]


def test_a_prompt_that_comes_again_computes_its_last_page_only() -> None:
    bench = bench_of()
    bench.add(request("a", 21, 3))
    bench.run()
    bench.add(request("b", 21, 3))
    assert extends(bench.step()) == [(20, 1)]
    bench.run()
    assert bench.answers["b"] == bench.answers["a"] == answer_to(range(21), 3)
    assert bench.cached == {"a": 0, "b": 20}


def test_at_most_all_tokens_but_the_last_are_found() -> None:
    bench = bench_of()
    bench.add(request("a", 20, 5))
    bench.run()
    bench.add(request("b", 20, 1))
    assert extends(bench.step()) == [(16, 4)]


def test_a_conversation_goes_on_where_its_answer_ended() -> None:
    bench = bench_of()
    bench.add(request("first", 10, 9))
    bench.run()
    turn = [*range(10), *bench.answers["first"], 7, 8, 9]
    bench.add(request("second", turn, 2))
    # 18 tokens were computed: prompt and answer but for its last token.
    assert extends(bench.step()) == [(16, 6)]
    bench.run()
    assert bench.answers["second"] == answer_to(turn, 2)


def test_prompts_of_one_step_share_different_parts_of_one_prefix() -> None:
    bench = bench_of()
    bench.add(request("a", 40, 1))
    bench.run()
    part, whole = [*range(24), 7, 7, 7], [*range(40), 8]
    bench.add(request("part", part, 3), request("whole", whole, 3))
    assert extends(bench.step()) == [(24, 3), (40, 1)]
    bench.run()
    assert bench.answers["part"] == answer_to(part, 3)
    assert bench.answers["whole"] == answer_to(whole, 3)


def test_an_answers_last_token_is_not_computed_though_it_fills_a_page() -> None:
    bench = bench_of()
    bench.add(request("first", 10, 6))
    bench.run()
    turn = [*range(10), *bench.answers["first"], 7, 8]
    bench.add(request("second", turn, 2))
    assert extends(bench.step()) == [(12, 6)]
    bench.run()
    assert bench.answers["second"] == answer_to(turn, 2)


def test_an_aborted_prompt_leaves_its_finished_chunks() -> None:
    bench = bench_of(chunk_size=16)
    bench.add(request("gone", 60, 2))
    bench.step()
    bench.step()
    bench.scheduler.abort("gone")
    bench.add(request("next", 60, 2))
    assert extends(bench.step()) == [(32, 16)]


def test_choices_of_one_prompt_compute_it_once() -> None:
    bench = bench_of()
    bench.add(*(request(f"choice{i}", 50, 4 + i) for i in range(4)))
    assert extends(bench.step()) == [(0, 50)]
    assert extends(bench.step()) == [(48, 2)] * 3
    bench.run()
    for i in range(4):
        assert bench.answers[f"choice{i}"] == answer_to(range(50), 4 + i)


def test_choices_of_a_prompt_that_is_cut_wait_for_its_end() -> None:
    bench = bench_of(chunk_size=16)
    bench.add(request("a", 70, 2), request("b", 70, 2))
    batches = bench.run()
    assert sum(batch.extend_tokens for batch in batches) == 70 + (70 - 64)


def test_who_shares_nothing_does_not_wait() -> None:
    bench = bench_of()
    bench.add(request("a", 50, 2), request("b", 50, 2), request("other", range(40, 50), 1))
    assert extends(bench.step()) == [(0, 50), (0, 10)]


def test_short_prefixes_are_not_waited_for() -> None:
    bench = bench_of()
    bench.add(request("a", 31, 2), request("b", 31, 2))
    assert extends(bench.step()) == [(0, 31), (0, 31)]


def test_equal_pages_are_kept_once() -> None:
    """Both prompts were computed side by side: the second row's pages are replaced and go."""
    bench = bench_of()
    bench.add(request("a", 30, 9), request("b", 30, 9))
    bench.step()
    status = bench.scheduler.status()
    assert status.pages_free == status.pages_total - 8 - 1, "7 shared pages, one tail each"
    second = bench.step()
    assert second
    assert [(r.first, len(r.page_ids)) for r in second.replaced_pages] == [(0, 7)]
    bench.run()
    assert bench.answers["b"] == answer_to(range(30), 9)


def test_salts_share_nothing() -> None:
    bench = bench_of()
    bench.add(request("a", 40, 1, cache_salt="one"))
    bench.run()
    bench.add(request("b", 40, 1, cache_salt="two"), request("c", 40, 1, cache_salt="one"))
    bench.run()
    assert bench.cached == {"a": 0, "b": 0, "c": 36}


def test_salts_do_not_wait_for_each_other() -> None:
    bench = bench_of(chunk_size=128)
    bench.add(request("a", 40, 1, cache_salt="one"), request("b", 40, 1, cache_salt="two"))
    assert extends(bench.step()) == [(0, 40), (0, 40)]


def test_a_flush_hides_also_what_running_requests_computed() -> None:
    bench = bench_of()
    bench.add(request("a", 40, 20))
    bench.step()
    bench.scheduler.flush_cache()
    bench.add(request("b", 40, 1))
    bench.run()
    assert bench.cached["b"] == 0
    assert bench.answers["a"] == answer_to(range(40), 20)


def test_cached_prefixes_make_room_when_pages_are_needed() -> None:
    bench = bench_of(pool_tokens=64)
    for index in range(6):
        bench.add(request(f"r{index}", range(index * 40 % 256, index * 40 % 256 + 30), 10))
        bench.run()
    status = bench.scheduler.status()
    assert status.pages_evictable > 0
    assert status.retractions == 0
    assert status.pages_available == status.pages_total


def test_a_request_is_weighed_with_its_prefix_locked() -> None:
    """4 pages are cached and 2 free. Its 4 cached pages are not room for the other 3 it needs."""
    bench = bench_of(pool_tokens=40, max_running_requests=4)
    bench.add(request("first", 16, 1))
    bench.run()
    bench.add(request("holds", range(100, 115), 1000))
    bench.step()
    assert bench.scheduler.status().pages_evictable == 4
    bench.add(request("again", 27, 1))
    bench.step()
    assert "again" not in bench.cached, "7 pages, of which 2 are free and 4 its own already"
    bench.run()
    assert bench.answers["again"] == answer_to(range(27), 1)


def test_a_retracted_request_finds_what_it_computed() -> None:
    bench = bench_of(pool_tokens=64, conservativeness=0.05, chunk_size=16)
    prompts = {name: range(i * 20, i * 20 + 6) for i, name in enumerate("abcd")}
    bench.add(*(request(name, prompt, 40) for name, prompt in prompts.items()))
    batches = bench.run()
    assert bench.scheduler.status().retractions > 0
    resumed = [e.start for b in batches for e in b.extend_rows if e.start > 8]
    assert resumed, "no resumed request found its own pages"
    for name, prompt in prompts.items():
        assert bench.answers[name] == answer_to(prompt, 40)
        assert bench.cached[name] == 0


def test_what_a_broken_row_computed_is_not_reused() -> None:
    """Neither its last chunk nor those that were shared before."""
    bench = bench_of(chunk_size=16)
    bench.add(request("bad", 40, 5))
    bench.step()
    bench.step()
    batch = bench.scheduler.next_batch(0.0)
    assert batch
    assert batch.extend_rows[0].samples
    bench.runner.forward(batch)
    bench.scheduler.process(batch, SampledTokens(batch.step, (NO_TOKEN,)), 0.0)
    bench.add(request("next", 40, 1))
    bench.run()
    assert bench.cached["next"] == 0


def test_without_the_cache_nothing_is_kept() -> None:
    bench = bench_of(prefix_cache=False)
    bench.add(request("a", 40, 3), request("b", 40, 3))
    assert extends(bench.step()) == [(0, 40), (0, 24)]
    bench.run()
    status = bench.scheduler.status()
    assert (status.pages_free, status.pages_evictable) == (status.pages_total, 0)


def test_what_was_not_finite_is_found_by_nobody_also_when_its_request_is_aborted() -> None:
    bench = Bench(settings_of(prefix_cache=True, chunk_size=64))
    bench.add(request("a", 40, 5))
    batch = bench.scheduler.next_batch(0.0)
    assert batch
    bench.runner.forward(batch)
    bench.scheduler.abort("a")
    bench.scheduler.process(batch, SampledTokens(batch.step, (NO_TOKEN,)), 0.0)
    bench.add(request("b", 40, 5))
    bench.run()
    assert bench.cached["b"] == 0


def test_nobody_waits_for_a_prefix_that_a_flush_took_from_its_writer() -> None:
    bench = Bench(settings_of(pool_tokens=4096, chunk_size=64, prefix_cache=True))
    bench.add(request("writer", [i % 50 for i in range(1000)], 2))
    bench.step()
    bench.scheduler.flush_cache()
    bench.add(request("b", [i % 50 for i in range(50)], 2))
    bench.step()
    assert "b" in bench.answers


def test_nobody_waits_for_a_prefix_that_a_flush_keeps_out_of_the_tree() -> None:
    """The writer's first step is in flight, so nothing of its prompt is cached yet."""
    settings = settings_of(pool_tokens=4096, chunk_size=64, prefix_cache=True)
    bench = Bench(settings, overlap=True)
    prompt = [i % 50 for i in range(1000)]
    bench.add(request("writer", prompt, 2))
    bench.launch()
    bench.scheduler.flush_cache()
    bench.add(request("b", prompt[:50], 2))
    batch = bench.launch()
    assert batch is not None
    assert [row.request_id for row in batch.added_rows] == ["b"]


def test_thousands_that_wait_for_one_prefix_are_not_matched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And those behind them go ahead."""
    bench = Bench(settings_of(pool_tokens=4096, chunk_size=64, prefix_cache=True))
    document = [i % 50 for i in range(500)]
    matched: list[str] = []
    match = KvAllocator.match

    def counted(kv: KvAllocator, request: Request) -> Match:
        matched.append(request.request_id)
        return match(kv, request)

    monkeypatch.setattr(KvAllocator, "match", counted)
    bench.add(*(request(f"r{number}", [*document, number % 50], 2) for number in range(40)))
    bench.add(request("other", [3] * 20, 2))
    bench.step()
    matched.clear()
    bench.step()
    assert "other" in bench.answers
    assert len(matched) <= 4
