"""Whether processes of this machine waited for a processor, by the kernel's own account.

What the product gives up as "starved" is the machine's fault only where they did.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

_PRESSURE: Final = Path("/proc/pressure/cpu")
_STEAL: Final = 8
"""Column of /proc/stat: ticks in which the host ran something else."""


class BusyMachine:
    """An account that begins with it."""

    def __init__(self) -> None:
        self._began = _waited_seconds()

    def check(self, seconds: float) -> None:
        """Fails unless somebody has waited so long, all in all."""
        waited = _waited_seconds() - self._began
        assert math.isnan(waited) or waited >= seconds, (
            f"given up as starved, though processes waited {waited:.3f} s for a processor"
        )


def _waited_seconds() -> float:
    """Since the machine started; NaN where the kernel keeps no account."""
    try:
        some = _PRESSURE.read_text().splitlines()[0]
    except OSError:
        return math.nan
    ticks = int(Path("/proc/stat").read_text().split(maxsplit=_STEAL + 1)[_STEAL])
    return int(some.rpartition("total=")[2]) / 1e6 + ticks / os.sysconf("SC_CLK_TCK")
