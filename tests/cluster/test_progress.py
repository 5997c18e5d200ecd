"""What a person sees while a step runs."""

from __future__ import annotations

import io
import threading

import pytest

from e2e.cluster.progress import CLEAR_LINE, Step, time_on_idle_cores
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


def test_a_build_says_for_which_machine_its_time_is() -> None:
    text = time_on_idle_cores(6, load=15.2)
    assert text.startswith("6 minutes the first time on two idle cores; this machine has ")
    assert text.endswith(", with a load of 15")


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


class Terminal(io.StringIO):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = threading.Semaphore(0)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.writes.release()
        return count


def test_a_terminal_has_a_bar_of_what_is_reached_and_a_log_has_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("e2e.cluster.progress.TERMINAL_REFRESH_SECONDS", 0.001)
    with Step("Loading", log_refresh_seconds=0.001) as step:
        step.reached(1, 4, "images")
    assert "━" not in capsys.readouterr().err
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with Step("Loading") as step:
        step.reached(1, 4, "images")
        step.detail("engine")
        while terminal.writes.acquire(blocking=False):
            pass  # written before that
        for _ in range(6):
            assert terminal.writes.acquire(timeout=PATIENCE_SECONDS)
    shown = [line.strip() for line in terminal.getvalue().split(CLEAR_LINE)]
    assert f"… Loading  0 s  {'━' * 8}{'·' * 24} 1 of 4 images · engine" in shown
