"""Random numbers that are a function of (seed, position) and of nothing else.

Not of the batch, the step, the process or the machine: the same request gives the same answer. The
host knows both before a step runs, so it computes the numbers for every device.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

_Words = NDArray[np.uint64]
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_UNIT: Final = 2.0**-53


def uniform(seeds: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position): [m], [m] → [m]."""
    mixed = _mix(_mix(seeds.view(np.uint64)) ^ _mix(positions.view(np.uint64) + _GOLDEN))
    return (mixed >> np.uint64(11)).astype(np.float64) * _UNIT


def _mix(value: _Words) -> _Words:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), in wrapping 64-bit arithmetic."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
