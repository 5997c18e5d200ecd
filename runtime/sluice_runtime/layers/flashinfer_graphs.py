"""Decode wrappers of flashinfer for CUDA graphs: one for each batch size, over shared buffers.

A captured graph reads the same addresses in every replay, so each plan is written there. Planning
cannot be captured, and comes before each replay. Only wrappers of this module may be captured: the
plan of another wrapper would move its buffers, and the graph would silently read the old ones.
Hence the type `GraphAttention`, which `TokenLayout.planned` requires. Knows nothing of how graphs
are captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.attention_flashinfer import (
    LAYOUT,
    CopyEvent,
    constants,
    copy_event,
    on_host,
)
from sluice_runtime.layers.attention_plan import AttentionPlan, padded, page_indices, parts_of
from sluice_runtime.layers.flashinfer_library import Library, Target
from sluice_runtime.layers.flashinfer_workspace import HeadShape, graph_workspace_bytes

INT_WORKSPACE_BYTES: Final = 512 << 10
"""Size of the integer workspace; a plan of 4,096 rows takes less than 200 KiB of it. Each wrapper
has pinned memory of the same size."""
LISTED_PAGES: Final = 4
"""Most pages that a step's rows may list together, as a multiple of the pool's pages; more than the
pool, since rows share pages. A step with more runs without a graph."""
NO_ROWS: Final = AttentionPlan(np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros(0, np.int32))


@dataclass(frozen=True)
class GraphBuffers:
    """Buffers that all batch sizes share, since graphs of one stream run one after the other."""

    indptr: Tensor
    """[rows of the largest + 1]"""
    indices: Tensor
    """[pages]"""
    last_page_len: Tensor
    """[rows of the largest]"""
    floats: Tensor
    ints: Tensor
    """Workspaces."""


class GraphWrapper:
    """Computes `batch` rows of one token; rows that a step does not fill are padding."""

    def __init__(
        self, library: Library, buffers: GraphBuffers, batch: int, pool: PagePool, heads: int
    ) -> None:
        self.batch = batch
        self._library = library
        self._buffers = buffers
        self._pool = pool
        self._heads = heads
        self._copied: CopyEvent | None = copy_event(buffers.indptr.device)
        shape = HeadShape(heads, pool.shape.kv_heads, pool.shape.head_dim)
        self._wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            buffers.floats,
            kv_layout=LAYOUT,
            backend="fa2",
            use_cuda_graph=True,
            use_tensor_cores=shape.tensor_core_decode,
            paged_kv_indptr_buffer=buffers.indptr[: batch + 1],
            paged_kv_indices_buffer=buffers.indices,
            paged_kv_last_page_len_buffer=buffers.last_page_len[:batch],
        )
        self._wrapper.reset_workspace_buffer(
            float_workspace_buffer=buffers.floats, int_workspace_buffer=buffers.ints
        )
        self._plan_again = False
        self.run = self._wrapper.run

    def holds(self, layout: TokenLayout) -> bool:
        """Whether a step's rows and pages fit."""
        counts = layout.numbers.page_counts(self._pool.page_size)
        rows = len(counts)
        return rows <= self.batch and counts.sum() + self.batch - rows <= len(self._buffers.indices)

    def plan(self, layout: TokenLayout | None) -> None:
        """Plans for a decode step for which `holds` is true; None: padding only."""
        plan = self._list_pages(layout)
        pinned = self._copied is not None
        indptr = on_host(plan.kv_indptr, pinned=pinned)
        last_page_len = on_host(plan.last_page_len, pinned=pinned)
        if self._copied is not None:
            self._copied.synchronize()
        rows = {
            "indices": self._buffers.indices[: plan.pages],
            "last_page_len": last_page_len,
            "head_dim": self._pool.shape.head_dim,
            **constants(self._pool, self._heads),
        }
        if self._plan_again:
            # The fast plan leaves filling the buffers to us, and does not loop over rows in Python.
            self._buffers.indptr[: self.batch + 1].copy_(indptr, non_blocking=True)
            self._buffers.last_page_len[: self.batch].copy_(last_page_len, non_blocking=True)
            self._library.fast_decode_plan(
                self._wrapper, indptr=indptr, global_override_indptr_cpu=indptr, **rows
            )
        else:
            self._wrapper.plan(indptr=indptr, **rows)
            self._plan_again = True
        if self._copied is not None:
            self._copied.record()

    def _list_pages(self, layout: TokenLayout | None) -> AttentionPlan:
        """Lists the pages of the step's rows, and the padding page for rows of padding."""
        page_size, plan, indices = self._pool.page_size, NO_ROWS, self._buffers.indices
        if layout is not None:
            (part,) = parts_of(layout.numbers, 0, page_size, 1, "fa2")
            plan = part.plan
            indices[: plan.pages].copy_(page_indices(layout, part, page_size))
        whole = padded(plan, self.batch)
        indices[plan.pages : whole.pages].fill_(self._pool.padding_page)
        return whole


class GraphWrappers:
    """Makes the wrappers of one engine's graphs."""

    def __init__(self, library: Library, target: Target, pool: PagePool, heads: int) -> None:
        self._library = library
        self._target = target
        self._pool = pool
        self._heads = heads
        self._buffers: GraphBuffers | None = None

    def wrapper(self, batch: int) -> GraphWrapper:
        """Wrapper for a batch size. The first call must be for the largest batch, because it
        allocates the buffers."""
        self._buffers = self._buffers or self._allocated(batch)
        return GraphWrapper(self._library, self._buffers, batch, self._pool, self._heads)

    def _allocated(self, batch: int) -> GraphBuffers:
        pool, place = self._pool, self._target.place
        shape = HeadShape(self._heads, pool.shape.kv_heads, pool.shape.head_dim)
        major, blocks = self._target.capability[0], self._target.multiprocessors

        def int32(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=place)

        def workspace(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.uint8, device=place)

        return GraphBuffers(
            indptr=int32(batch + 1),
            indices=int32(LISTED_PAGES * pool.pages + batch),
            last_page_len=int32(batch),
            floats=workspace(graph_workspace_bytes(shape, blocks, batch, major)),
            ints=workspace(INT_WORKSPACE_BYTES),
        )
