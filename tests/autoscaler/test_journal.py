"""What is decided can be written down, bounded, and read again as it was."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.journal import Journal, JournalError, read_journal
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role

from tests.figures import with_figures

SETTINGS = ScalingSettings({Role.MIXED: PoolLimits(1, 8, gpus=2)}, gpu_budget=16, ttft_seconds=2.0)


FINITE = st.floats(allow_nan=False, allow_infinity=False)


def ticked(seconds: float, desired: int = 2, reason: str = "Enough", **load: float) -> Tick:
    engine = EngineSample("chat-0", Role.MIXED, "e", "ready", 0.5, **with_figures(load))
    sample = Sample(seconds, {Role.MIXED: PoolSample(Role.MIXED, 2, 2)}, (engine,))
    pool = PoolDecision(Role.MIXED, 2, desired, reason, "words", ("chat-0",))
    return Tick(sample, Decision({Role.MIXED: pool}, reason, "words"))


@given(FINITE, FINITE)
def test_a_tick_is_read_as_it_was_written_whatever_a_report_said(itl: float, work: float) -> None:
    """Reports with NaN or infinity are refused where they are read."""
    tick = ticked(10.0, itl_seconds=itl, queued_work_seconds=work + 0.0)  # -0.0 is left out
    journal = Journal()
    journal.add(SETTINGS, tick, unix_seconds=1.7e9)
    (line,) = read_journal(journal.text().splitlines())
    assert (line.settings, line.unix_seconds) == (SETTINGS, 1.7e9)
    assert line.tick == tick


def test_a_decision_without_load_reports_is_one_again_when_it_is_read() -> None:
    seen = Sample(5.0, {Role.MIXED: PoolSample(Role.MIXED, 3, 3)}, None)
    journal = Journal()
    journal.add(SETTINGS, Tick(seen, decide(SETTINGS, History(), seen)))
    (line,) = read_journal(journal.text().splitlines())
    assert decide(line.settings, History(), line.sample) == line.decision


def test_equal_decisions_are_thinned_out_and_counted() -> None:
    journal = Journal()
    written = [journal.add(SETTINGS, ticked(2.0 * number)) for number in range(20)]
    assert written == [number in (0, 15) for number in range(20)]
    assert journal.add(SETTINGS, ticked(40.0, desired=3, reason="QueuedWork"))
    assert journal.add(SETTINGS, ticked(42.0, reason="CapacityBlocked"))
    assert [line.left_out_ticks for line in read_journal(journal.text().splitlines())] == [
        0, 14, 4, 0,
    ]  # fmt: skip


def test_a_journal_is_bounded_and_goes_on_where_an_earlier_life_ended() -> None:
    journal = Journal(kept_bytes=4_000)
    for number in range(50):
        journal.add(SETTINGS, ticked(60.0 * number))
    assert 3_000 < len(journal.text()) <= 4_000
    lines = journal.text().splitlines()
    later = Journal(lines, kept_bytes=4_000)
    later.add(SETTINGS, ticked(math.pi))
    seconds = [line.sample.time_seconds for line in read_journal(later.text().splitlines())]
    assert seconds[-2:] == [60.0 * 49, math.pi]


@pytest.mark.parametrize(
    ("line", "said"), [("{", "line 2"), ('{"settings": {"pools": {"nurse": {}}}}', "settings")]
)
def test_what_is_not_a_line_of_a_journal_is_refused_by_number(line: str, said: str) -> None:
    with pytest.raises(JournalError, match=said):
        list(read_journal(["", line]))


def test_lines_that_are_taken_are_gone_and_can_be_put_back_before_the_others() -> None:
    journal = Journal()
    journal.add(SETTINGS, ticked(0.0))
    taken = journal.take()
    assert journal.text() == ""
    assert journal.add(SETTINGS, ticked(2.0)) is False, "it still knows what was decided before"
    journal.add(SETTINGS, ticked(4.0, desired=3))
    journal.put_back(taken)
    assert [line.sample.time_seconds for line in read_journal(journal.text().splitlines())] == [
        0.0, 4.0,
    ]  # fmt: skip
