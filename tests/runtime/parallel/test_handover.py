"""Engines of several ranks hand pages over: every rank's heads, to as many ranks or to others."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from sluice_runtime.wire.messages import PrefillEngine

from tests.patience import PATIENCE_SECONDS
from tests.runtime.handover.engines import Answer, running
from tests.runtime.handover.test_two_engines import requests, same

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("ranks")]

SETTINGS: dict[str, Any] = {"attention_backend": "torch", "chunk_size": 48}


@contextmanager
def prefill_engine(**settings: Any) -> Iterator[PrefillEngine]:
    """In another process: torch knows one group of ranks a process."""
    words = [sys.executable, "-m", "tests.runtime.handover.prefill_engine", json.dumps(settings)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "it did not start"
        yield msgspec.json.decode(line, type=PrefillEngine)
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.fixture(scope="module")
def expected() -> dict[str, Answer]:
    with running("mixed", **SETTINGS) as alone:
        return alone.answers(requests())


@pytest.mark.parametrize(
    ("backend", "overlap", "theirs", "ours"),
    [
        ("TCP", True, 2, 2),
        ("TCP", True, 1, 2),
        ("TCP", False, 2, 1),
        ("Mooncake", False, 1, 2),
        ("Mooncake", True, 2, 1),
        pytest.param("Mooncake", False, 2, 2, marks=pytest.mark.full),
        pytest.param("TCP", False, 1, 2, marks=pytest.mark.full),
        pytest.param("Mooncake", False, 2, 1, marks=pytest.mark.full),
    ],
)
def test_answers_are_those_of_one_engine(
    backend: str, overlap: bool, theirs: int, ours: int, expected: dict[str, Answer]
) -> None:
    shared = SETTINGS | {"backend": backend, "overlap": overlap}
    with (
        prefill_engine(**shared, ranks=theirs) as prefill,
        running("decode", **shared, ranks=ours) as decode,
    ):
        asked = [
            msgspec.structs.replace(one, prefill=prefill, arrival_seconds=time.monotonic())
            for one in requests()
        ]
        answers = decode.answers(asked)
        assert decode.last is not None
        load = decode.last.load
    for name, answer in expected.items():
        same(answer, answers[name])
    assert load.handover is not None
    assert (load.handover.failures, load.handover.recomputed) == ({}, 0)
    assert load.steps["EXTEND"] == load.steps["MIXED"] == 0
