"""Matrices of parameters: a cover in the level of the file, all other combinations in `full`.

A cover does not find a fault that only a combination outside it shows: `full` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest

Values = frozenset[tuple[int, int]]
"""Indices: of an axis, and of a value on it."""


def matrix(*axes: Collection[Any], others: pytest.MarkDecorator, together: int = 2) -> list[Any]:
    """All combinations of the axes' values, as parameter sets; those outside the cover are marked.

    `others`: that mark, which the test file spells out since its levels are read from its text.
    `together`: of so many axes the cover has each combination of values: of two, each pair; of
    one, each value.
    """
    covered = set(cover([len(axis) for axis in axes], together))
    rows = product(*(range(len(axis)) for axis in axes))
    return [
        pytest.param(*values, marks=() if row in covered else others)
        for row, values in zip(rows, product(*axes), strict=True)
    ]


def cover(sizes: Sequence[int], together: int) -> list[tuple[int, ...]]:
    """Combinations of indices below `sizes`, with each combination of any `together` axes."""
    widest_first = sorted(range(len(sizes)), key=lambda axis: -sizes[axis])
    missing = dict.fromkeys(
        frozenset(zip(some, values, strict=True))
        for some in combinations(widest_first, together)
        for values in product(*(range(sizes[axis]) for axis in some))
    )
    used, rows = Counter[tuple[int, int]](), list[tuple[int, ...]]()
    while missing:
        row = dict(next(iter(missing)))
        for axis in widest_first:
            if axis not in row:
                news = [
                    sum(some in missing for some in _with((axis, value), row, together))
                    for value in range(sizes[axis])
                ]
                # Of those that add as much, the value that is used least.
                ranks = [(new, -used[axis, value]) for value, new in enumerate(news)]
                row[axis] = ranks.index(max(ranks))
        used.update(row.items())
        for some in combinations(row.items(), together):
            missing.pop(frozenset(some), None)
        rows.append(tuple(row[axis] for axis in range(len(sizes))))
    return rows


def _with(value: tuple[int, int], row: Mapping[int, int], together: int) -> Iterator[Values]:
    """Combinations that this value makes with those of the row."""
    for some in combinations(row.items(), together - 1):
        yield frozenset({value, *some})
