"""Random numbers that are a function of (seed, position) and of nothing else.

Not of the batch, the step, the process or the machine: the same request gives the same answer.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Words = NDArray[np.uint64]
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_UNIT: Final = 2.0**-53


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each (seed, position): [m] int64, [m] int64 → [m] float64."""
    mixed = _mix(_mix(_words(seeds)) ^ _mix(_words(positions) + _GOLDEN))
    return torch.from_numpy((mixed >> np.uint64(11)) * _UNIT)


def _words(numbers: Tensor) -> _Words:
    return numbers.numpy().view(np.uint64)


def _mix(value: _Words) -> _Words:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), in wrapping 64-bit arithmetic."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
