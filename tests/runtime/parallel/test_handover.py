"""Two engines of two ranks each hand pages over: every rank's heads."""

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
from tests.runtime.handover.engines import running
from tests.runtime.handover.test_two_engines import requests

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


@pytest.mark.parametrize(
    ("backend", "overlap"),
    [("TCP", True), pytest.param("Mooncake", False, marks=pytest.mark.full)],
)
def test_answers_are_those_of_one_engine(backend: str, overlap: bool) -> None:
    with running("mixed", **SETTINGS) as alone:
        expected = alone.answers(requests())
    shared = SETTINGS | {"backend": backend, "overlap": overlap, "ranks": 2}
    with prefill_engine(**shared) as prefill, running("decode", **shared) as decode:
        asked = [
            msgspec.structs.replace(one, prefill=prefill, arrival_seconds=time.monotonic())
            for one in requests()
        ]
        answers = decode.answers(asked)
        load = decode.last and decode.last.load
    assert {name: answer.tokens for name, answer in answers.items()} == {
        name: answer.tokens for name, answer in expected.items()
    }
    assert load is not None
