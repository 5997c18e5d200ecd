"""Decode steps taken at once leave the scheduler as the steps themselves do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Generate, Sampling
from sluice_simulator.fast_forward import FastForwardScheduler

from tests.examples import examples

TOKEN = 7
SIZES = st.lists(st.tuples(st.integers(1, 40), st.integers(2, 60)), min_size=1, max_size=6)


def _scheduler(pages: int, chunk_size: int | None = None) -> FastForwardScheduler:
    limits = Limits(4_096, pages * 4)
    return FastForwardScheduler(
        SchedulerSettings(
            limits=limits,
            page_size=4,
            chunk_size=chunk_size,
            max_prefill_tokens=4_096,
            min_prefill_tokens=4,
            max_running_requests=8,
            max_queued_requests=8,
            mixed=True,
            conservativeness=0.01,
        ),
        PageAllocator(pages),
    )


def _started(sizes: list[tuple[int, int]], pages: int) -> FastForwardScheduler:
    """All that fit at once have their first token."""
    scheduler = _scheduler(pages)
    for number, (prompt, output) in enumerate(sizes):
        tokens = [100 + number] * prompt
        scheduler.add(Generate(str(number), tokens, output, Sampling(), ignore_eos=True))
    _step(scheduler)
    return scheduler


def _step(scheduler: FastForwardScheduler) -> Batch | None:
    batch = scheduler.next_batch(0.0)
    if batch is not None:
        scheduler.process(
            batch, SampledTokens(batch.step, (TOKEN,) * len(batch.sampling_rows)), 0.0
        )
    return batch


@examples(60)
@given(SIZES, st.integers(1, 80), st.integers(30, 120))
def test_a_leap_is_its_steps(sizes: list[tuple[int, int]], most: int, pages: int) -> None:
    leaping, stepping = (_started(sizes, pages) for _ in range(2))
    steps = leaping.fast_forward_decode(most, 0.0)
    for _ in range(steps):
        _step(stepping)
    leaping.check_integrity()
    pace = stepping.status().pace
    assert replace(leaping.status(), pace=pace) == stepping.status()
    # From here on both do the same, to the last token.
    while (batch := _step(leaping)) is not None:
        other = _step(stepping)
        assert other is not None
        assert (batch.mode, batch.decode_rows) == (other.mode, other.decode_rows)
        assert batch.decode_context_tokens == other.decode_context_tokens
    assert _step(stepping) is None


def test_it_ends_before_the_first_answer_does() -> None:
    scheduler = _started([(5, 30), (5, 12)], 100)
    assert scheduler.fast_forward_decode(1_000, 0.0) == 10
    assert scheduler.fast_forward_decode(1_000, 0.0) == 0


def test_it_ends_before_pages_are_short() -> None:
    scheduler = _started([(4, 60)] * 3, 12)
    steps = scheduler.fast_forward_decode(1_000, 0.0)
    assert scheduler.status().pages_available < 3
    assert steps >= 8
    _step(scheduler)
    assert scheduler.fast_forward_decode(1_000, 0.0) == 0 or scheduler.status().retractions == 0


def test_it_ends_where_the_first_in_the_queue_is_admitted() -> None:
    """Each token of an answer is one that need not be reserved, until the answer opens a page."""
    scheduler = _started([(4, 20), (1, 20)], 13)
    assert scheduler.status().queued_requests == 1
    assert scheduler.fast_forward_decode(1_000, 0.0) == 1
    batch = _step(scheduler)
    assert batch is not None
    assert [row.request_id for row in batch.added_rows] == ["1"]


def test_cached_pages_make_room_as_they_do_for_steps() -> None:
    scheduler = _started([(30, 2)], 20)
    while _step(scheduler) is not None:
        pass
    assert scheduler.status().pages_evictable > 5
    scheduler.add(Generate("next", [9] * 30, 40, Sampling(), ignore_eos=True))
    _step(scheduler)
    assert scheduler.fast_forward_decode(38, 0.0) == 38
    scheduler.check_integrity()


@pytest.mark.parametrize("state", ["idle", "cut", "aborting"])
def test_there_is_nothing_to_leap_over(state: str) -> None:
    if state == "idle":
        assert _scheduler(10).fast_forward_decode(5, 0.0) == 0
        return
    scheduler = _started([(5, 30)], 100)
    if state == "aborting":
        scheduler.abort("0")
    else:
        scheduler = FastForwardScheduler(
            replace(scheduler._settings, chunk_size=8), PageAllocator(100)
        )
        scheduler.add(Generate("0", [1] * 30, 5, Sampling()))
        _step(scheduler)
    assert scheduler.fast_forward_decode(5, 0.0) == 0
