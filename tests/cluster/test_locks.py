"""Who waits for a file is told which process holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from e2e.cluster import locks


def test_who_waits_is_told_the_process_that_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with (tmp_path / "lock").open("a+") as holds, (tmp_path / "lock").open("a+") as waits:

        @contextmanager
        def step(title: str) -> Iterator[None]:
            said.append(title)
            fcntl.flock(holds, fcntl.LOCK_UN)
            yield

        monkeypatch.setattr(locks, "Step", step)
        locks.lock(holds.fileno(), "another build")
        assert not said
        locks.lock(waits.fileno(), "another build")
    assert said == [f"Waiting for another build (process {os.getpid()})"]
    assert (tmp_path / "lock").read_text() == str(os.getpid())
