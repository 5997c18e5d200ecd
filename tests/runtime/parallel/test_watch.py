"""What the first rank makes of the end of another."""

from __future__ import annotations

import subprocess
import threading
from typing import cast

import pytest
from sluice_runtime.parallel.processes import _watch
from sluice_runtime.process import exits


class EndsMeanwhile(threading.Event):
    """The first rank refuses to start while somebody waits whether it does."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


class Process:
    """That has ended."""

    def __init__(self, code: int) -> None:
        self._code = code

    def wait(self) -> int:
        return self._code


@pytest.mark.parametrize(
    ("code", "told"), [(exits.STARTUP, []), (exits.FAILED, ["exit code 1"]), (-9, ["SIGKILL"])]
)
def test_a_refusal_to_start_is_left_to_the_first_rank(code: int, told: list[str]) -> None:
    heard: list[str] = []
    process = cast("subprocess.Popen[bytes]", Process(code))
    _watch(process, "rank 1 of 2", EndsMeanwhile(), heard.append)
    assert len(heard) == len(told)
    assert all(word in what for word, what in zip(told, heard, strict=True))
