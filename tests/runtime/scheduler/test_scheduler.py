"""What the scheduler does with one or a few requests, and what its batches carry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, ForwardMode, SampledTokens
from sluice_runtime.scheduler.request_table import INITIAL_BETA
from sluice_runtime.wire.messages import Grammar

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def test_a_batch_survives_the_wire() -> None:
    bench = Bench(settings_of())
    bench.add(request("a", 20, 4), request("b", 3, 4))
    for batch in bench.run():
        wire = msgspec.msgpack.encode(batch)
        assert msgspec.msgpack.decode(wire, type=Batch) == batch


def test_modes_follow_the_rows() -> None:
    bench = Bench(settings_of())
    bench.add(request("a", 4, 3))
    modes = [bench.step()]
    bench.add(request("b", 4, 2))
    modes += bench.run()
    assert [batch.mode for batch in modes if batch] == [
        ForwardMode.EXTEND,
        ForwardMode.MIXED,
        ForwardMode.DECODE,
    ]


def test_without_mixing_prompts_run_alone_and_first() -> None:
    bench = Bench(settings_of(mixed=False))
    bench.add(request("a", 4, 3))
    bench.step()
    bench.add(request("b", 40, 2))
    batches = bench.run()
    assert [batch.mode.value for batch in batches] == ["EXTEND"] * 3 + ["DECODE"] * 2
    assert not any(batch.extend_rows and batch.decode_rows for batch in batches)


def test_a_stop_token_is_delivered_and_wins_over_length() -> None:
    wanted = answer_to(range(5), 3)
    bench = Bench(settings_of())
    bench.add(request("a", 5, 3, stop_token_ids=[wanted[2]]))
    bench.run()
    assert bench.answers["a"] == wanted
    assert bench.terminals["a"][0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "part"),
    [
        (0, 5, "0 tokens"),
        (64, 5, "KV pool of 64 tokens"),
        (5, -1, "max_tokens -1"),
    ],
)
def test_impossible_requests_end_at_once_with_the_numbers(
    prompt: int, max_tokens: int, part: str
) -> None:
    bench = Bench(settings_of(pool_tokens=64))
    bench.add(request("a", prompt, max_tokens))
    batch = bench.step()
    assert batch
    assert batch.mode is ForwardMode.IDLE
    assert part in (bench.terminals["a"][0].error or "")
    assert bench.step() is None


def test_what_runs_and_a_full_queue_leave_no_room_for_one_more() -> None:
    bench = Bench(settings_of(max_running_requests=1, max_queued_requests=2))
    bench.add(*(request(name, 4, 2) for name in "abcd"))
    bench.run()
    (refused,) = bench.terminals["d"]
    assert (refused.finish_reason, refused.refusal) == ("error", "overloaded")
    assert "maxQueuedRequests" in (refused.error or "")
    assert [bench.answers[name] for name in "abc"] == [answer_to(range(4), 2)] * 3


def test_a_short_queue_does_not_refuse_what_an_idle_engine_can_run_at_once() -> None:
    bench = Bench(settings_of(max_running_requests=4, max_queued_requests=1))
    bench.add(*(request(name, 4, 2) for name in "abcd"))
    first = bench.step()
    assert first
    assert len(first.added_rows) == 4


def test_an_id_in_use_is_refused_and_the_first_request_goes_on() -> None:
    bench = Bench(settings_of())
    bench.add(request("a", 4, 3), request("a", 9, 3))
    bench.run()
    assert [end.finish_reason for end in bench.terminals["a"]] == ["error", "length"]
    assert bench.answers["a"] == answer_to(range(4), 3)


def test_status_counts_prompt_tokens_not_computed_yet() -> None:
    bench = Bench(settings_of(max_running_requests=1))
    bench.add(request("a", 40, 2), request("b", 7, 2))
    assert bench.scheduler.status().queued_tokens == 47
    bench.step()
    status = bench.scheduler.status()
    assert (status.queued_tokens, status.queued_requests, status.running_requests) == (31, 1, 1)
    assert status.prefilling
    assert (status.prefilling.computed_tokens, status.prefilling.total_tokens) == (16, 40)
    assert (status.chunk_cuts, status.steps["EXTEND"]) == (1, 1)


def test_rows_bound_what_runs_at_once() -> None:
    bench = Bench(settings_of(max_running_requests=3))
    bench.add(*(request(f"r{i}", 4, 5) for i in range(9)))
    batches = bench.run()
    assert max(len(batch.sampling_rows) for batch in batches) == 3
    assert len(bench.terminals) == 9


@pytest.mark.parametrize("overlap", [False, True])
def test_no_row_runs_once_its_last_token_is_on_its_way(overlap: bool) -> None:
    bench = Bench(settings_of(), overlap=overlap)
    bench.add(request("a", 4, 6), request("b", 5, 1))
    batches = bench.run()
    assert sum(len(batch.decode_rows) for batch in batches) == 5


def with_a_last_token_in_flight(**settings: Any) -> Bench:
    """The step that draws it runs; one row of 2 pages has it."""
    bench = Bench(settings_of(**settings), overlap=True)
    bench.add(request("last", 4, 2))
    bench.step()
    bench.step()
    return bench


def test_a_row_whose_last_token_is_on_its_way_takes_no_tokens_of_a_step() -> None:
    bench = with_a_last_token_in_flight(chunk_size=16)
    bench.add(request("next", 16, 1))
    batch = bench.step()
    assert batch is not None
    assert [len(row.token_ids) for row in batch.extend_rows] == [16]
    assert batch.decode_rows == ()


def test_a_row_whose_last_token_is_on_its_way_still_has_its_pages() -> None:
    bench = with_a_last_token_in_flight(pool_tokens=64)
    bench.add(request("large", 16, 40))
    assert bench.step() is None
    batch = bench.step()
    assert batch is not None
    assert [len(row.token_ids) for row in batch.extend_rows] == [16]


def test_a_row_without_a_token_ends_alone_and_says_why() -> None:
    bench = Bench(settings_of())
    bench.add(request("bad", 4, 9), request("good", 5, 9))
    bench.step()
    batch = bench.scheduler.next_batch(0.0)
    assert batch
    drawn = bench.runner.forward(batch)
    result = SampledTokens(batch.step, (NO_TOKEN, drawn.token_ids[1]))
    ended, going_on = bench.scheduler.process(batch, result, 0.0).deltas
    assert (ended.request_id, ended.token_ids, ended.finish_reason) == ("bad", (), "error")
    assert "not finite" in (ended.error or "")
    assert (going_on.token_ids, going_on.finish_reason) == ((drawn.token_ids[1],), None)
    bench.run()
    assert bench.terminals["good"][0].finish_reason == "length"
    assert bench.scheduler.status().pages_available == bench.scheduler.status().pages_total


@pytest.mark.parametrize(
    ("how", "share"),
    [("abort", INITIAL_BETA), ("fail", INITIAL_BETA), ("length", 1.0), ("stop", 0.2)],
)
def test_the_ratio_learns_from_answers_that_ended_by_themselves(how: str, share: float) -> None:
    bench = Bench(settings_of())
    second = answer_to(range(4), 2)[1]
    bench.add(request("a", 4, 10, stop_token_ids=[second] if how == "stop" else []))
    bench.step()
    if how == "abort":
        bench.scheduler.abort("a")
    elif how == "fail":
        bench.scheduler.fail("a", "slow reader")
    bench.run()
    assert bench.scheduler.status().beta == pytest.approx(share)


def test_the_first_token_tells_how_long_its_request_waited_and_no_other_does() -> None:
    bench = Bench(settings_of(pool_tokens=48, max_running_requests=1, chunk_size=8))
    bench.add(request("a", 20, 2, arrival_seconds=10.0), request("b", 4, 1, arrival_seconds=11.0))
    told: list[tuple[str, float | None]] = []
    now = 12.0
    while batch := bench.scheduler.next_batch(now):
        deltas = bench.scheduler.process(batch, bench.runner.forward(batch), now + 0.5).deltas
        told += [(delta.request_id, delta.queue_seconds) for delta in deltas]
        now += 1.0
    assert told == [("a", 2.0), ("a", None), ("b", 5.0)]  # three chunks, one token, then b


def test_a_row_is_announced_with_whether_its_request_has_a_grammar() -> None:
    bench = Bench(settings_of())
    grammar = Grammar("regex", "a+", [1], "regex")
    bench.add(request("plain", 5, 2), request("masked", 5, 2, grammar=grammar))
    added = [row for batch in bench.run() for row in batch.added_rows]
    assert {row.request_id: row.has_grammar for row in added} == {"plain": False, "masked": True}
