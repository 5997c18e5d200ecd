"""The steps before the engine is ready: one of each kind, and nothing left behind."""

from __future__ import annotations

import pytest
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.scheduler.limits import Limits

from tests.runtime.scheduler.fake_runner import FakeRunner


@pytest.mark.parametrize("page_size", [1, 16])
def test_one_prefill_and_one_decode_step_and_the_row_is_free(page_size: int) -> None:
    runner = FakeRunner(64 // page_size, page_size)
    warm_up(runner, Limits(1024, 64), page_size)
    assert [batch.mode for batch in runner.batches] == ["EXTEND", "DECODE", "IDLE"]
    assert not runner.rows


def test_a_context_without_room_for_it_is_left_alone() -> None:
    runner = FakeRunner(1, 1)
    warm_up(runner, Limits(1024, 1), 1)
    assert not runner.batches
