"""Failures that other engines are known for, one test each."""

from __future__ import annotations

from sluice_runtime.scheduler.batch import Batch

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def extend_lengths(batch: object) -> list[int]:
    return [len(extend.token_ids) for extend in batch.extend_rows]  # type: ignore[attr-defined]


def test_stale_full_flag() -> None:
    """A queue that waited for memory moves in the step after memory came free."""
    bench = Bench(settings_of(pool_tokens=64))
    bench.add(request("a", 30, 8), request("b", 30, 8))
    first = bench.step()
    assert first
    bench.step_until(lambda _: "a" in bench.terminals)
    assert "b" not in bench.answers
    admitted = bench.step()
    assert admitted
    assert [row.request_id for row in admitted.added_rows] == ["b"]


def test_waiting_queue_not_scanned_after_the_chunk_budget_is_spent() -> None:
    """What a long prompt leaves of the budget is offered to the queue in every step."""
    bench = Bench(settings_of(chunk_size=18))
    bench.add(request("long", 40, 2), request("short", 2, 2), request("next", 9, 2))
    first = bench.step()
    assert first
    assert extend_lengths(first) == [16, 2]
    second = bench.step()
    assert second
    # 18 - 1 decode row = 17: the next one fits whole, and the chunk ends at a page border.
    assert extend_lengths(second) == [8, 9]
    third = bench.step()
    assert third
    assert extend_lengths(third) == [16]


def test_near_capacity_request_never_admitted() -> None:
    """A request that fills the pool to the last token runs, and waits for nobody for ever."""
    bench = Bench(settings_of(pool_tokens=64))
    bench.add(request("small", 8, 6), request("whole", 40, 24))
    bench.run()
    assert bench.answers["whole"] == answer_to(range(40), 24)


def test_prompt_of_all_but_one_token() -> None:
    bench = Bench(settings_of(pool_tokens=64))
    bench.add(request("whole", 63, 500))
    bench.run()
    assert bench.answers["whole"] == answer_to(range(63), 1)
    assert bench.terminals["whole"][0].finish_reason == "length"


def test_double_free_on_preemption() -> None:
    """A retracted request that is aborted gives nothing back a second time."""
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.05))
    bench.add(*(request(name, 4, 40) for name in "abcd"))
    bench.step_until(lambda _: bench.scheduler.status().retractions > 0)
    for name in "abcd":
        bench.scheduler.abort(name)
    bench.run()
    assert bench.scheduler.status().pages_available == 16
    assert all(len(bench.terminals[name]) == 1 for name in "abcd")


def test_request_row_reused_while_its_last_step_runs() -> None:
    """A row changes hands only by a batch that drops it first."""
    bench = Bench(settings_of(max_running_requests=1))
    bench.add(request("a", 4, 3), request("b", 4, 3))
    batches = bench.run()
    handed_over = next(b for b in batches if any(r.request_id == "b" for r in b.added_rows))
    assert handed_over.dropped_rows == (handed_over.added_rows[0].row,)
    assert not any(b.dropped_rows for b in batches if b.step < handed_over.step)


def test_request_row_reused_while_a_step_that_was_launched_ahead_runs() -> None:
    """The first request meets its stop token with another step of it in flight: row and pages stay
    its own until that step has landed."""
    wanted = answer_to(range(4), 3)
    bench = Bench(settings_of(pool_tokens=16, max_running_requests=1), overlap=True)
    bench.add(request("a", 4, 9, stop_token_ids=[wanted[2]]), request("b", range(9, 13), 3))
    batches: list[Batch] = []
    for _ in range(20):
        in_flight = {row for batch in bench.in_flight for row in batch.decode_rows}
        if batch := bench.step():
            assert not in_flight & set(batch.dropped_rows)
            batches.append(batch)
    ended = next(b.step for b in batches if b.dropped_rows)
    last = max(b.step for b in batches if b.step < ended and b.decode_rows)
    assert last == 4, "the row was computed once more after its last token"
    assert bench.answers == {"a": wanted, "b": answer_to(range(9, 13), 3)}


def test_overlap_and_retract_allocation_race() -> None:
    """With a step in flight nobody is sent back: the results may free what is missing, and pages of
    a row in flight are no one else's yet."""
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.05), overlap=True)
    bench.add(*(request(name, range(i * 9, i * 9 + 4), 40) for i, name in enumerate("abcd")))
    retractions = 0
    for _ in range(300):
        flying = len(bench.in_flight)
        bench.step()
        if (now := bench.scheduler.status().retractions) > retractions:
            retractions = now
            assert flying == 0
    assert retractions > 0
    for index, name in enumerate("abcd"):
        assert bench.answers[name] == answer_to(range(index * 9, index * 9 + 4), 40)


def test_abort_that_still_commits_the_final_chunks_token() -> None:
    bench = Bench(settings_of())
    bench.add(request("a", 20, 4))
    bench.step()
    final = bench.launch()
    assert final
    assert final.extend_rows[0].samples
    bench.scheduler.abort("a")
    bench.land()
    bench.run()
    assert bench.answers["a"] == []
    assert bench.terminals["a"][0].finish_reason == "abort"


def test_abort_that_still_commits_a_decode_steps_token() -> None:
    bench = Bench(settings_of())
    bench.add(request("a", 4, 9))
    bench.step()
    decode = bench.launch()
    assert decode
    assert decode.decode_rows
    bench.scheduler.abort("a")
    bench.land()
    bench.run()
    assert len(bench.answers["a"]) == 1
    assert bench.terminals["a"][0].finish_reason == "abort"


def test_disconnect_that_loses_the_abort() -> None:
    """Waiting, mid-chunk, running: each abort ends its request once and frees all it held."""
    bench = Bench(settings_of(max_running_requests=2))
    bench.add(request("running", 4, 50), request("chunk", 60, 5), request("waiting", 4, 5))
    bench.step()
    bench.step()
    assert bench.scheduler.status().prefilling
    for name in ("running", "chunk", "waiting", "running", "unknown"):
        bench.scheduler.abort(name)
    bench.run()
    reasons = {name: [t.finish_reason for t in ends] for name, ends in bench.terminals.items()}
    assert reasons == {"running": ["abort"], "chunk": ["abort"], "waiting": ["abort"]}
    assert bench.scheduler.status().pages_available == 64


def test_chunk_and_abort_corruption() -> None:
    """After a cut prompt is aborted, the next one is cut and continued from its own start."""
    bench = Bench(settings_of())
    bench.add(request("gone", 60, 5))
    bench.step()
    bench.scheduler.abort("gone")
    bench.add(request("stays", range(30, 50), 6))
    bench.run()
    assert bench.answers["stays"] == answer_to(range(30, 50), 6)


def test_chunk_abort_and_radix_corruption() -> None:
    """The chunks of an aborted prompt serve the next one as they are, also when it was aborted with
    a chunk in flight, and when the same pages were computed twice."""
    for overlap in (False, True):
        bench = Bench(settings_of(prefix_cache=True, chunk_size=8), overlap=overlap)
        bench.add(request("gone", 60, 5))
        for _ in range(3):
            bench.step()
        bench.scheduler.abort("gone")
        bench.add(request("stays", [*range(30), *range(40, 60)], 6), request("same", 60, 6))
        bench.run()
        assert bench.cached["stays"] > 0
        assert bench.answers["stays"] == answer_to([*range(30), *range(40, 60)], 6)
        assert bench.answers["same"] == answer_to(range(60), 6)
        status = bench.scheduler.status()
        assert status.pages_available == status.pages_total


def test_evictable_counted_twice() -> None:
    """12 of 16 pages are cached. Both prompts begin with them: they are no room for either answer,
    and neither is admitted on pages that the other one keeps from being evicted."""
    bench = Bench(settings_of(pool_tokens=64, prefix_cache=True, chunk_size=64))
    bench.add(request("first", 49, 1))
    bench.run()
    assert bench.scheduler.status().pages_evictable == 12
    bench.add(request("a", [*range(48), 7], 12), request("b", [*range(48), 8], 12))
    batches = bench.run()
    assert len(batches[0].added_rows) == 1
    assert bench.scheduler.status().retractions == 0
    assert bench.cached == {"first": 0, "a": 48, "b": 48}


def test_page_16_leak_in_mixed_batches() -> None:
    bench = Bench(settings_of(pool_tokens=512, page_size=16, chunk_size=32))
    for index in range(6):
        bench.add(request(f"r{index}", 40 + index, 20))
        bench.step()
    batches = bench.run()
    assert any(batch.mode == "MIXED" for batch in batches)
    assert bench.scheduler.status().pages_available == 32


def test_tail_chunk_left_unfilled() -> None:
    """The last chunk of a prompt leaves most of its budget: whole prompts fill it."""
    bench = Bench(settings_of(chunk_size=16))
    bench.add(request("long", 18, 2), request("b", 5, 2), request("c", 5, 2))
    bench.step()
    tail = bench.step()
    assert tail
    assert extend_lengths(tail) == [2, 5, 5]


def test_mixed_rows_eat_the_whole_chunk_budget() -> None:
    """With as many running rows as the chunk has tokens, prefill goes on by a page a step."""
    bench = Bench(settings_of(pool_tokens=1024, chunk_size=8, max_running_requests=16))
    bench.add(*(request(f"r{index}", 4, 60) for index in range(12)))
    bench.step_until(lambda batch: len(batch.decode_rows) == 12)
    bench.add(request("late", 20, 2))
    batches = [bench.step() for _ in range(5)]
    assert all(batch and extend_lengths(batch) == [4] for batch in batches)


def test_pages_compared_with_tokens() -> None:
    """With no page free, rows that have room in their page decode on; nobody is retracted."""
    bench = Bench(settings_of(pool_tokens=16, page_size=4))
    bench.add(request("a", 13, 3))
    bench.step()
    assert bench.scheduler.status().pages_available == 0
    bench.run()
    assert bench.scheduler.status().retractions == 0
    assert bench.answers["a"] == answer_to(range(13), 3)


def test_middle_chunks_never_append_a_token() -> None:
    bench = Bench(settings_of(chunk_size=8))
    bench.add(request("a", 30, 1))
    batches = bench.run()
    assert [extend.samples for b in batches for extend in b.extend_rows] == [False] * 3 + [True]
    assert bench.answers["a"] == answer_to(range(30), 1)
