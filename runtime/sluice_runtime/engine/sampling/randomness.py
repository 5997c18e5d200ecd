"""Random numbers that are a function of (seed, position) and of nothing else.

Not of the batch, the step, the process or the machine: the same request gives the same answer.
"""

from __future__ import annotations

from typing import Final

from torch import Tensor

_MASK_53: Final = (1 << 53) - 1


def uniform(seeds: Tensor, positions: Tensor) -> Tensor:
    """A number in [0, 1) for each (seed, position): [m] int64, [m] int64 → [m] float64."""
    mixed = _mix(_mix(seeds) ^ _mix(positions + _signed(0x9E3779B97F4A7C15)))
    return (_shift(mixed, 11) & _MASK_53).double() / float(1 << 53)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical shift to the right: torch's own keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014), in wrapping 64-bit arithmetic."""
    value = (value ^ _shift(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shift(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shift(value, 31)
