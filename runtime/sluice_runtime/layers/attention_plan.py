"""Plans of paged attention kernels, from what the host knows of a step's rows.

Pure and without a device, so that nothing is read back from a GPU. Knows lengths only; page numbers
are gathered on the device (`page_indices`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice_runtime.layers.attention import RowNumbers, TokenLayout

Int32 = NDArray[np.int32]
PrefillKernels = Literal["fa2", "fa3"]
PartKind = Literal["fa2", "fa3", "decode"]

LARGE_TILE_OVER: Final = 64
"""Mean number of queries above which FA2 uses tiles of 128; a query counts once for each query head
of a key head. Otherwise tiles have 64 or 16 (`FA2DetermineCtaTileQ` in flashinfer's utils.cuh)."""
FA3_TILE: Final = 128
"""Queries of one head that FA3 computes in a block. A block reads all keys before its queries. FA3
does not split keys, so fewer blocks than multiprocessors leave some multiprocessors idle
(`PrefillSM90Plan`)."""
FA3_BLOCKS_PER_SM: Final = 2
"""Fewest blocks per multiprocessor for FA3. With fewer blocks FA2 computes the prompts: it splits
keys, and packs all query heads of a key head into one tile."""


@dataclass(frozen=True)
class AttentionPlan:
    """Plan of r rows, whose pages are in one list, row after row. Field names are those of
    flashinfer's wrappers."""

    qo_indptr: Int32
    """[r + 1] row i's queries are [qo_indptr[i], qo_indptr[i + 1]): the last of its context."""
    kv_indptr: Int32
    """[r + 1] row i's pages in the list."""
    last_page_len: Int32
    """[r] tokens in each row's last page, at least one."""

    @property
    def rows(self) -> int:
        return len(self.last_page_len)

    @property
    def pages(self) -> int:
        return int(self.kv_indptr[-1])

    @property
    def most_queries(self) -> int:
        """Maximum number of queries of one row."""
        return int(np.diff(self.qo_indptr).max())


@dataclass(frozen=True)
class PlanPart:
    """Rows of a step that one kernel computes. Every row attends causally, so a row of one query,
    its last token, attends to its whole context."""

    kind: PartKind
    rows: slice
    tokens: slice
    plan: AttentionPlan


def plan_rows(
    begins: NDArray[np.int64], contexts: NDArray[np.int64], page_size: int
) -> AttentionPlan:
    """Plan for consecutive rows. begins: [r + 1], need not begin at 0; contexts: [r]."""
    counts = -(-contexts // page_size)
    return AttentionPlan(
        qo_indptr=(begins - begins[0]).astype(np.int32),
        kv_indptr=np.append(0, counts.cumsum()).astype(np.int32),
        last_page_len=(contexts - (counts - 1) * page_size).astype(np.int32),
    )


def parts_of(
    numbers: RowNumbers, extends: int, page_size: int, group: int, kernels: PrefillKernels
) -> tuple[PlanPart, ...]:
    """The step's rows in one part, or in two: rows that extend, and rows that decode. `group`:
    query heads of each key head; `kernels`: kernels for rows that extend."""
    rows = len(numbers.rows)
    if extends == 0:
        return (_part("decode", numbers, slice(0, rows), page_size),)
    if extends == rows or _one_call(int(numbers.begins[-1]), rows, group, kernels):
        return (_part(kernels, numbers, slice(0, rows), page_size),)
    return (
        _part(kernels, numbers, slice(0, extends), page_size),
        _part("decode", numbers, slice(extends, rows), page_size),
    )


def prefill_kernels(
    numbers: RowNumbers, extends: int, heads: int, multiprocessors: int
) -> PrefillKernels:
    """Kernels for a step's prompts on a GPU with both kinds: FA3 if its blocks fill the GPU, else
    FA2."""
    queries = np.diff(numbers.begins[: extends + 1])
    blocks = heads * int((-(-queries // FA3_TILE)).sum())
    return "fa3" if blocks >= FA3_BLOCKS_PER_SM * multiprocessors else "fa2"


def _one_call(tokens: int, rows: int, group: int, kernels: PrefillKernels) -> bool:
    """Whether decode rows may join the prefill call, as rows of one query. They may not if that
    makes the prompts' tiles small, since each tile reads all keys before it. They never join FA3:
    its tiles hold one head's queries, so each decode row would fill 1/128 of a tile for every
    head."""
    return kernels == "fa2" and tokens * group // rows > LARGE_TILE_OVER


def _part(kind: PartKind, numbers: RowNumbers, rows: slice, page_size: int) -> PlanPart:
    begins = numbers.begins[rows.start : rows.stop + 1]
    plan = plan_rows(begins, numbers.contexts[rows], page_size)
    return PlanPart(kind, rows, slice(int(begins[0]), int(begins[-1])), plan)


def page_indices(layout: TokenLayout, part: PlanPart, page_size: int) -> Tensor:
    """Pages [p] int32 of the part's rows, on the device, one row after the other. Takes a fixed,
    small number of operations, none of which waits."""
    counts = (layout.contexts[part.rows] + (page_size - 1)) // page_size
    pages = part.plan.pages
    row_of_page = torch.repeat_interleave(counts, output_size=pages)
    first = counts.cumsum(0) - counts
    place = torch.arange(pages, device=counts.device) - first[row_of_page]
    return layout.page_table[layout.rows[part.rows][row_of_page], place].int()
