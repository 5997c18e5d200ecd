"""What is this machine's fault and not the product's, by the kernel's own account: how long
processes waited for a processor.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.runtime.launch.processes import descendants

_PRESSURE: Final = Path("/proc/pressure/cpu")
_STEAL: Final = 8
"""Column of /proc/stat: ticks in which the host ran something else."""


class BusyMachine:
    """What all processes of the machine have waited since it was made."""

    def __init__(self) -> None:
        self._began = _machine_waited_seconds()
        self._made = time.monotonic()

    @property
    def calm_seconds(self) -> float:
        """In which nobody has waited; all, where the kernel keeps no account."""
        waited = _machine_waited_seconds() - self._began
        return time.monotonic() - self._made - (0.0 if math.isnan(waited) else waited)

    def check(self, seconds: float) -> None:
        """Fails where they waited less: nothing was starved."""
        waited = _machine_waited_seconds() - self._began
        assert math.isnan(waited) or waited >= seconds, (
            f"given up as starved, though processes waited {waited:.3f} s for a processor"
        )


class Stopwatch:
    """Seconds since it was made, less what threads of this process and of all that it has started
    waited for a processor. What sleeps, or waits for a peer, is counted in full.

    A bound on them is a promise of the product: a busy machine does not break it."""

    def __init__(self) -> None:
        self._waited = dict(_waited_by_thread())
        self._stolen = _stolen_seconds()
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        passed = time.monotonic() - self._began
        waited = sum(
            seconds - self._waited.get(thread, 0.0) for thread, seconds in _waited_by_thread()
        )
        return passed - waited - (_stolen_seconds() - self._stolen)


def _waited_by_thread() -> Iterator[tuple[int, float]]:
    own = os.getpid()
    for pid in (own, *descendants(own)):
        for schedstat in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with suppress(OSError, IndexError):  # it has ended
                yield int(schedstat.parent.name), int(schedstat.read_text().split()[1]) / 1e9


def _machine_waited_seconds() -> float:
    """Since the machine started; NaN where the kernel keeps no account."""
    try:
        some = _PRESSURE.read_text().splitlines()[0]
    except OSError:
        return math.nan
    return int(some.rpartition("total=")[2]) / 1e6 + _stolen_seconds()


def _stolen_seconds() -> float:
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=_STEAL + 1)[_STEAL])
    return ticks / os.sysconf("SC_CLK_TCK")
