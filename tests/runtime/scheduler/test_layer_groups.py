"""A chunk in groups of layers: its progress counts once all of them are computed, and whatever
happens in between leaves pages and answers right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sluice_runtime.scheduler.batch import Batch, ForwardMode, LayerGroup
from sluice_runtime.scheduler.pacing import LayerSplit

from tests.runtime.scheduler.building import Bench, SplitChunk, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to

LAYERS = 5
TWO_A_STEP = LayerSplit(16, 2)
LONG = list(range(40)) + list(range(30))


def bench_of(
    *,
    overlap: bool = False,
    split: LayerSplit = TWO_A_STEP,
    streams: int = 2,
    **changed: Any,
) -> Bench:
    """Chunks of 8 tokens, but those that are split."""
    values = {"chunk_size": 8 + streams, "pool_tokens": 1024, "layers": LAYERS} | changed
    bench = Bench(settings_of(**values), overlap=overlap)
    bench.scheduler._pacing._choice = SplitChunk(8 + streams, split)
    bench.add(*(request(f"s{i}", 3, 120) for i in range(streams)))
    bench.step_until(lambda batch: len(batch.decode_rows) == streams)
    return bench


def groups(batches: list[Batch]) -> list[LayerGroup | None]:
    return [batch.layers for batch in batches if batch.extend_rows]


def step_to(bench: Bench, first_layer: int) -> Batch:
    """Until a chunk's group that begins there."""
    return bench.step_until(lambda b: b.layers is not None and b.layers.first == first_layer)


@pytest.mark.parametrize("overlap", [False, True])
def test_groups_of_layers_follow_each_other_and_every_step_decodes(overlap: bool) -> None:
    bench = bench_of(overlap=overlap)
    bench.add(request("long", LONG, 3))
    batches = [step_to(bench, 0)]
    while bench.scheduler._table.prefilling:
        batches.append(bench.step())  # type: ignore[arg-type]
    one = [LayerGroup(0, 2, 5), LayerGroup(2, 4, 5), LayerGroup(4, 5, 5)]
    assert groups(batches) == one * 5, "16 tokens four times, then 6"
    assert {batch.mode for batch in batches} == {ForwardMode.SPLIT_PREFILL}
    assert all(len(batch.decode_rows) == 2 for batch in batches)
    bench.run()
    assert bench.answers["long"] == answer_to(LONG, 3)
    assert bench.answers["s0"] == answer_to(list(range(3)), 120)


def test_progress_counts_once_all_layers_are_computed() -> None:
    bench = bench_of(report_chunks=True)
    bench.add(request("long", LONG, 3))
    for first, done in ((0, 0), (2, 0), (4, 16), (0, 16), (2, 16), (4, 32)):
        batch = step_to(bench, first)
        status = bench.scheduler.status()
        assert batch.extend_rows[0].start == done - 16 * (first == 4)
        assert status.prefilling
        assert status.prefilling.computed_tokens == done
        assert sum(c.end - c.start for c in bench.chunks if c.request_id == "long") == done
    assert status.chunk_cuts == 2


def test_nobody_finds_a_prefix_before_all_layers_of_it_are_computed() -> None:
    bench = bench_of(prefix_cache=True)
    bench.add(request("long", LONG, 3))
    step_to(bench, 2)
    assert bench.scheduler._kv.matched_tokens(like(LONG)) == 0
    step_to(bench, 4)
    assert bench.scheduler._kv.matched_tokens(like(LONG)) == 16


def like(tokens: list[int]) -> Any:
    """A request with this prompt that nobody sent."""
    from sluice_runtime.scheduler.request import request_from

    return request_from(request("other", tokens, 1), 1, "")


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("first_layer", [0, 2, 4])
@pytest.mark.parametrize("how", ["abort", "fail"])
def test_a_prompt_may_leave_between_two_groups(how: str, first_layer: int, overlap: bool) -> None:
    bench = bench_of(overlap=overlap, prefix_cache=True)
    free = bench.scheduler.status().pages_available
    bench.add(request("long", LONG, 3))
    step_to(bench, first_layer)
    if how == "abort":
        bench.scheduler.abort("long")
    else:
        bench.scheduler.fail("long", "slow reader")
    bench.add(request("next", [7, *LONG], 3))
    bench.run()
    assert len(bench.terminals["long"]) == 1
    assert not bench.answers["long"]
    assert bench.answers["next"] == answer_to([7, *LONG], 3)
    assert bench.scheduler.status().pages_available > free


def test_a_prompt_that_came_back_is_split_anew() -> None:
    """It has other pages than those that hold what the first layers computed."""
    bench = bench_of(prefix_cache=True)
    bench.add(request("long", LONG, 3))
    step_to(bench, 0)
    scheduler = bench.scheduler
    scheduler._retract(scheduler._table.prefilling, 0.0)  # type: ignore[arg-type]
    batch = bench.step()
    assert batch
    assert batch.layers == LayerGroup(0, 2, LAYERS)
    assert batch.added_rows
    bench.run()
    assert bench.answers["long"] == answer_to(LONG, 3)


@pytest.mark.parametrize("overlap", [False, True])
def test_the_pool_may_run_short_between_two_groups(overlap: bool) -> None:
    """The only row that decodes opens pages until the prompt that is split must go."""
    one_by_one = LayerSplit(4, 1)
    bench = bench_of(
        pool_tokens=128, conservativeness=0.01, streams=1, split=one_by_one, overlap=overlap
    )
    bench.add(request("long", LONG, 3))
    while not bench.scheduler.status().retractions:
        bench.step()
    split = [bool(batch.layers) for batch in bench.runner.batches]
    assert split[-1] or split[-2], "it was split until then"
    assert bench.scheduler._table.prefilling is None
    bench.run()
    assert bench.answers["long"] == answer_to(LONG, 3)
    assert bench.answers["s0"] == answer_to(list(range(3)), 120)


def test_other_layers_are_computed_at_once_when_nothing_decodes_any_more() -> None:
    bench = bench_of()
    bench.add(request("long", LONG, 3))
    step_to(bench, 0)
    bench.scheduler.abort("s0")
    bench.scheduler.abort("s1")
    batch = bench.step()
    assert batch
    assert batch.layers == LayerGroup(2, 5, 5)
    assert not batch.decode_rows
    batch = bench.step()
    assert batch
    assert batch.layers is None


def test_others_join_between_two_chunks_not_between_two_groups() -> None:
    bench = bench_of()
    bench.add(request("long", LONG, 3))
    step_to(bench, 0)
    bench.add(request("short", 4, 2))
    assert groups([step_to(bench, 2), step_to(bench, 4)])
    batch = bench.step()
    assert batch
    assert batch.layers is None
    assert len(batch.extend_rows) == 2, "the short one and a chunk"
    bench.run()
    assert bench.answers["short"] == answer_to(list(range(4)), 2)
    assert bench.answers["long"] == answer_to(LONG, 3)


CANNOT: dict[str, Callable[[], Bench]] = {
    "batches that are not mixed": lambda: bench_of(mixed=False),
    "a prompt that is scored": bench_of,
}


@pytest.mark.parametrize("why", CANNOT)
def test_what_cannot_be_split_is_not(why: str) -> None:
    bench = CANNOT[why]()
    fields = {"prompt_logprobs": 0} if "scored" in why else {}
    bench.add(request("long", LONG, 3, **fields))
    assert not any(groups(bench.run()))
    assert bench.answers["long"] == answer_to(LONG, 3)


def test_nobody_is_sent_back_for_another_prompt_between_two_groups() -> None:
    bench = bench_of(policy="priority", max_running_requests=3)
    bench.add(request("long", LONG, 3, priority=0))
    step_to(bench, 0)
    bench.add(request("urgent", 5, 3, priority=50))
    bench.run()
    assert bench.answers["long"] == answer_to(LONG, 3)
    assert bench.answers["urgent"] == answer_to(list(range(5)), 3)


def test_a_prompt_that_fits_in_a_step_is_not_split() -> None:
    """Less than a page fits, and the prompt is shorter."""
    bench = bench_of(split=LayerSplit(16, 2, fits=6))
    bench.add(request("short", 6, 3))
    batch = bench.step_until(lambda b: bool(b.extend_rows))
    assert batch.layers is None
    bench.add(request("longer", 7, 3))
    assert bench.step_until(lambda b: bool(b.extend_rows)).layers is not None
