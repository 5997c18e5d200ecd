"""What a person sees while a step runs."""

from __future__ import annotations

import threading

import pytest

from e2e.cluster.progress import Step
from tests.patience import PATIENCE_SECONDS


def test_a_step_says_when_it_begins_and_how_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with Step("Doing it"):
        pass
    with pytest.raises(ValueError, match="broken"), Step("Breaking it"):
        raise ValueError("broken")
    begun, done, _, failed = capsys.readouterr().err.splitlines()
    assert begun == "… Doing it"
    assert done.startswith("✓ Doing it")
    assert failed.startswith("✗ Breaking it")


def test_a_log_has_what_is_waited_for_once_until_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    ticks = threading.Semaphore(0)

    def say(line: str) -> None:
        lines.append(line)
        ticks.release()

    monkeypatch.setattr("e2e.cluster.progress.say", say)
    with Step("Waiting", log_refresh_seconds=0.001) as step:
        step.detail("no image")
        for _ in range(40):
            assert ticks.acquire(timeout=PATIENCE_SECONDS)
        step.detail("no node")
        for _ in range(40):
            assert ticks.acquire(timeout=PATIENCE_SECONDS)
    said = [line.split(" · ")[1] for line in lines if " · " in line]
    assert said == ["no image", "no node"]
    assert len(lines) >= 80, "the seconds go on"
