"""Percentiles of weighted values, by nearest rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean, percentiles and maximum of a set of values; all 0 for an empty one."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    worst: float = 0.0


def spread(values: Sequence[float], counts: Sequence[int] | None = None) -> Spread:
    """Spread of `values`. `counts`: number of occurrences of each value; None: 1 each."""
    weighted = sorted(zip(values, counts or [1] * len(values), strict=True))
    total = sum(count for _, count in weighted)
    if not total:
        return Spread()
    mean = sum(value * count for value, count in weighted) / total
    p50, p90, p99 = at_shares(weighted, total, (0.5, 0.9, 0.99))
    return Spread(total, mean, p50, p90, p99, weighted[-1][0])


def at_shares(
    weighted: Sequence[tuple[float, int]], total: int, shares: Iterable[float]
) -> list[float]:
    """For each of the ascending `shares`, the smallest value that this share of all values does not
    exceed."""
    values, seen, index = [], 0, -1
    for share in shares:
        while seen < share * total:
            index += 1
            seen += weighted[index][1]
        values.append(weighted[index][0])
    return values


def percentiles(values: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Percentiles of values that occur once each; at least one value is required."""
    ordered = sorted(values)
    return [ordered[max(0, math.ceil(share * len(ordered)) - 1)] for share in shares]
