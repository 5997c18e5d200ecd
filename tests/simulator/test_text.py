"""What a person reads: units, tables, runs side by side."""

from __future__ import annotations

import pytest
from sluice_simulator.report import summarise
from sluice_simulator.text import comparison, duration, headline, number, table

from tests.simulator.simulating import COST, replay, requests, settings


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 us"),
        (2e-5, "20 us"),
        (0.0123, "12.3 ms"),
        (1.5, "1.5 s"),
        (119, "119 s"),
        (600, "10 min"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(("value", "shown"), [(7.6, "8"), (12_031, "12,031"), (1.44e8, "144 M")])
def test_numbers(value: float, shown: str) -> None:
    assert number(value) == shown


def test_a_table_aligns_its_columns() -> None:
    assert table([("", "long name"), ("a", "1"), ("bcd", "22")]) == (
        "     long name\na            1\nbcd         22"
    )


def test_runs_side_by_side() -> None:
    trace = requests((0.0, 1_000, 5), (0.0, 200, 5))
    runs = {}
    for name, chunk in (("small", 128), ("large", 2_048)):
        replayed = replay(trace, settings(chunk_size=chunk))
        runs[name] = summarise(replayed.record, replayed.status)
    head, small, large = comparison("chunk", runs).splitlines()
    assert head.split()[:3] == ["chunk", "TTFT", "p50"]
    assert small.startswith("small ")
    assert large.split()[1:3] == ["22", "ms"]
    assert len({len(line) for line in (head, small, large)}) == 1


def test_a_headline_names_what_was_simulated() -> None:
    lines = headline(requests((0.0, 10, 1), (0.0, 10, 1)), settings(chunk_size=None), COST)
    assert "made: 2 requests at once, 20 tokens in, 2 out" in lines
    assert "chunk off, mixed" in lines
