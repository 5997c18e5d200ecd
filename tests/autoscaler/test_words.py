"""Counts in the messages of decisions."""

from __future__ import annotations

from sluice_autoscaler.words import engines


def test_one_engine_is_singular_and_so_is_its_verb() -> None:
    assert [engines(count) for count in (0, 1, 2)] == ["0 engines", "1 engine", "2 engines"]
    assert [engines(n, ("is", "are")) for n in (1, 2)] == ["1 engine is", "2 engines are"]
