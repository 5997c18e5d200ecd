"""A step of several rows, laid out in a pool."""

from __future__ import annotations

import torch
from sluice_runtime.layers.token_layout import TokenLayout

ROWS = ((40, 40), (7, 30), (1, 1), (1, 17), (1, 100))
"""(tokens, context): two rows extend, three decode."""


def layout(page_size: int) -> TokenLayout:
    counts = torch.tensor([count for count, _ in ROWS])
    contexts = torch.tensor([context for _, context in ROWS])
    ends = counts.cumsum(0)
    most = -(-int(contexts.max()) // page_size)
    table = torch.randperm(len(ROWS) * most).view(len(ROWS), most)
    rows = torch.arange(len(ROWS))
    positions = torch.arange(int(ends[-1])) + (contexts - ends).repeat_interleave(counts)
    pages = table[rows.repeat_interleave(counts), positions // page_size]
    begins = torch.cat((torch.zeros(1, dtype=torch.int64), ends))
    return TokenLayout(pages, positions % page_size, table, rows, begins, contexts, extends=2)
