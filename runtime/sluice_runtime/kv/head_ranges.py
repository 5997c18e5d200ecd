"""Where the heads of a rank are in pages that an engine of another number of ranks has computed.

In transfer a page has one part for each rank of that engine, in order: all that this rank has of
the page, `[layer, 2, token, head, dim]`. So the heads of a rank of ours are strided pieces of one
part, or several whole parts. Pure; knows no memory.
"""

from __future__ import annotations

from typing import NamedTuple


class HeadRange(NamedTuple):
    """Neighbouring heads that are in one part of a page, and in one rank's pool."""

    part: int
    first: int
    """The first of them, within the part."""
    own: int
    """The first of them, within the rank's own heads."""
    heads: int


def head_ranges(heads: int, parts: int, rank: int, ranks: int) -> tuple[HeadRange, ...]:
    """Where the heads of `rank` are in a page of `parts` parts, in order. `heads`: of the model,
    which both numbers divide."""
    assert heads % parts == heads % ranks == 0, "engines refuse other numbers"
    in_part, own = heads // parts, heads // ranks
    start, end, ranges = rank * own, (rank + 1) * own, list[HeadRange]()
    for part in range(start // in_part, (end - 1) // in_part + 1):
        first, last = max(start, part * in_part), min(end, (part + 1) * in_part)
        ranges.append(HeadRange(part, first - part * in_part, first - start, last - first))
    return tuple(ranges)
