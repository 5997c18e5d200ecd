"""Every moment of an engine's start counts in one phase."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from sluice_runtime.process.start import StartWatch, process_began, uncollected


def test_the_phases_add_up_to_the_whole_start() -> None:
    times = iter((14.0, 16.5, 17.0, 20.0))
    watch = StartWatch(10.0, lambda: next(times))
    watch.ended("launch", 11.0)
    watch.ended("imports")
    watch.ended("device")
    watch.ended("weights")
    watch.ended("device")
    assert watch.phases == {"launch": 1.0, "imports": 3.0, "device": 5.5, "weights": 0.5}
    assert str(watch) == "10.0 s: device 5.5 s, imports 3.0 s, launch 1.0 s, weights 0.5 s"


def test_a_phase_takes_no_less_than_no_time() -> None:
    """The kernel says when a process began in whole hundredths of a second, rounded down: perhaps
    before the launcher's start, which has a finer clock."""
    watch = StartWatch(10.004, lambda: 12.0)
    watch.ended("launch", 10.0)
    watch.ended("imports")
    assert watch.phases == {"launch": 0.0, "imports": 1.996}


def test_a_process_knows_when_it_began() -> None:
    code = "from sluice_runtime.process.start import process_began; print(process_began())"
    before = time.monotonic()
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    # The kernel counts in hundredths of a second.
    assert before - 0.02 <= float(child.stdout) <= time.monotonic()
    assert process_began() < before


def test_imports_are_not_searched_for_garbage_then_or_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    with suppress(ImportError), uncollected():
        was_enabled = gc.isenabled()
        raise ImportError
    assert (was_enabled, gc.isenabled(), frozen) == (False, True, [True])


def test_the_launcher_loads_no_large_library_before_the_engine_process_runs() -> None:
    slow = {"torch", "zmq", "pydantic", "numpy"}
    code = f"import sys, sluice_runtime.process.launch; print({slow} & set(sys.modules))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert child.stdout == "set()\n"
