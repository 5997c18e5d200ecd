"""For which batch sizes decode steps are captured as CUDA graphs, and which graph serves a step.

Pure. A graph computes exactly the rows that it was captured with, so a step takes the next larger
one and pads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

_SMALL: Final = (1, 2, 4, 8, 12)
_SPANS: Final = ((16, 256, 8), (272, 496, 16), (512, 4096, 32))
"""(first, last, apart): padding costs at most a third of a step up to 16 rows, and 6 % from 256."""


def graph_batches(largest: int) -> tuple[int, ...]:
    """Ascending; the last is `largest` itself, so that every batch up to it has a graph."""
    if largest < 1:
        return ()
    usual = (*_SMALL, *(size for a, b, apart in _SPANS for size in range(a, b + 1, apart)))
    return (*(size for size in usual if size < largest), largest)


def batch_for(rows: int, batches: Sequence[int]) -> int | None:
    """The smallest of the ascending `batches` that holds so many rows."""
    at = bisect_left(batches, rows)
    return batches[at] if rows and at < len(batches) else None
