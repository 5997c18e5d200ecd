"""Engines of several ranks hand pages over: every rank's heads, to as many ranks or to others. Of
four ranks two hold the same key head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from tests.runtime.handover.engines import (
    Answer,
    HasPrefill,
    prefill_elsewhere,
    running,
    through,
)
from tests.runtime.handover.test_two_engines import requests, same

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("ranks")]

SETTINGS: dict[str, Any] = {"attention_backend": "torch", "chunk_size": 48}


@pytest.fixture(scope="module")
def expected() -> dict[str, Answer]:
    with running("mixed", **SETTINGS) as alone:
        return alone.answers(requests())


@pytest.fixture(scope="module")
def prefill_of() -> Iterator[Callable[[str, bool, int], HasPrefill]]:
    """Prefill engines by backend, overlap and ranks, one for each. They have the prompts of the
    first test cached in the next; pages are checked at the end."""
    with ExitStack() as stack:

        @cache
        def started(backend: str, overlap: bool, ranks: int) -> HasPrefill:
            settings = SETTINGS | {"backend": backend, "overlap": overlap}
            if ranks == 1:
                return stack.enter_context(running("prefill", **settings))
            return stack.enter_context(prefill_elsewhere(**settings, ranks=ranks))

        yield started


@pytest.mark.parametrize(
    ("backend", "overlap", "theirs", "ours"),
    [
        ("TCP", True, 2, 2),
        ("Mooncake", False, 1, 2),
        ("Mooncake", True, 2, 1),
        ("TCP", True, 2, 4),
        ("TCP", False, 4, 1),
        pytest.param("TCP", True, 1, 2, marks=pytest.mark.full),
        pytest.param("TCP", False, 2, 1, marks=pytest.mark.full),
        pytest.param("Mooncake", False, 1, 4, marks=pytest.mark.full),
        pytest.param("TCP", True, 4, 2, marks=pytest.mark.full),
        pytest.param("Mooncake", False, 2, 2, marks=pytest.mark.full),
        pytest.param("TCP", False, 1, 2, marks=pytest.mark.full),
        pytest.param("Mooncake", False, 2, 1, marks=pytest.mark.full),
    ],
)
def test_answers_are_those_of_one_engine(
    backend: str,
    overlap: bool,
    theirs: int,
    ours: int,
    expected: dict[str, Answer],
    prefill_of: Callable[[str, bool, int], HasPrefill],
) -> None:
    shared = SETTINGS | {"backend": backend, "overlap": overlap, "ranks": ours}
    prefill = prefill_of(backend, overlap, theirs)
    with running("decode", **shared) as decode:
        answers = decode.answers(through(prefill, requests()))
        assert decode.last is not None
        load = decode.last.load
    for name, answer in expected.items():
        same(answer, answers[name])
    assert load.handover is not None
    assert (load.handover.failures, load.handover.recomputed) == ({}, 0)
    assert load.steps["EXTEND"] == load.steps["MIXED"] == 0


def test_pages_of_8_bits_are_divided_by_heads() -> None:
    shared = SETTINGS | {"kv_cache_dtype": "fp8_e4m3"}
    with running("mixed", **shared) as alone:
        expected = alone.answers(requests())
    with running("prefill", **shared) as prefill, running("decode", **shared, ranks=2) as decode:
        answers = decode.answers(through(prefill, requests()))
        assert decode.last is not None
        load = decode.last.load.handover
    for name, answer in expected.items():
        same(answer, answers[name])
    assert load is not None
    assert (load.failures, load.recomputed) == ({}, 0)
