"""Measures how long the phases of an engine's start take."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sluice_contract.wire.start import Phase, start_text

OnPhase = Callable[[Phase], None]
"""Callback at the end of a phase."""
_STARTED_FIELD: Final = 19
"""Field 22 of /proc/PID/stat, counted from the field after the command: when the process started,
in ticks since the machine did (proc_pid_stat(5))."""


def unmeasured(_: Phase) -> None:
    """Does nothing; default for callers that measure nothing."""


def process_began() -> float:
    """`time.monotonic()` when this process started, to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started = int(fields[_STARTED_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)


@contextmanager
def uncollected() -> Iterator[None]:
    """Context for imports, in which the garbage collector does not run. Afterwards it skips what
    was imported. Imports make much that stays, so that it would run often and find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


class StartWatch:
    """Stopwatch of a start. The time since the end of a phase counts in the phase that ends next;
    a phase may end several times."""

    def __init__(self, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`began`: time of `clock` at which the start began."""
        self._clock = clock
        self._last = began
        self._phases: dict[str, float] = {}

    def ended(self, phase: Phase, at: float | None = None) -> None:
        """Records the end of a phase, at `at` or now; `at` may be a little before the phase began,
        as `process_began` rounds down."""
        now = max(self._last, self._clock() if at is None else at)
        self._phases[phase] = self._phases.get(phase, 0.0) + now - self._last
        self._last = now

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, to a thousandth."""
        return {phase: round(seconds, 3) for phase, seconds in self._phases.items()}

    def __str__(self) -> str:
        return start_text(sum(self._phases.values()), self._phases)
