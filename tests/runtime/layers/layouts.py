"""A step of several rows, laid out in a pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sluice_runtime.layers.attention import RowNumbers, TokenLayout

Row = tuple[int, int]
"""(tokens, context)."""
ROWS: tuple[Row, ...] = ((40, 40), (7, 30), (1, 1), (1, 17), (1, 100))
"""Two rows extend, three decode."""


def layout(page_size: int, rows: Sequence[Row] = ROWS, extends: int = 2) -> TokenLayout:
    counts = torch.tensor([count for count, _ in rows])
    contexts = torch.tensor([context for _, context in rows])
    ends = counts.cumsum(0)
    most = -(-int(contexts.max()) // page_size)
    table = torch.randperm(len(rows) * most).view(len(rows), most)
    # The rows of a step are not the first of the table, nor in its order.
    places = torch.randperm(len(rows))
    positions = torch.arange(int(ends[-1])) + (contexts - ends).repeat_interleave(counts)
    pages = table[places.repeat_interleave(counts), positions // page_size]
    begins = torch.cat((torch.zeros(1, dtype=torch.int64), ends))
    numbers = RowNumbers(places.numpy(), begins.numpy(), contexts.numpy())
    offsets = positions % page_size
    return TokenLayout(pages, offsets, table, places, begins, contexts, extends, numbers)
