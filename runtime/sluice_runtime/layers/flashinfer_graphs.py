"""Decode wrappers of flashinfer for CUDA graphs: one for each batch size and window of layers, over
shared buffers.

A captured graph reads the same addresses in every replay, so each plan is written there. Planning
cannot be captured, and comes before each replay. Only wrappers of this module may be captured: the
plan of another wrapper would move its buffers, and the graph would silently read the old ones.
Hence the type `GraphAttention`, which `TokenLayout.planned` requires. Knows nothing of how graphs
are captured, nor of what their rows are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import AttentionKinds, GraphRows, Run
from sluice_runtime.layers.attention_flashinfer import LAYOUT, CopyEvent, constants, copy_event
from sluice_runtime.layers.flashinfer_library import Library, Target
from sluice_runtime.layers.flashinfer_workspace import HeadShape, graph_workspace_bytes

INT_WORKSPACE_BYTES: Final = 512 << 10
"""Size of an integer workspace; a plan of 4,096 rows takes less than 200 KiB of it. Each wrapper
has pinned memory of the same size."""


@dataclass(frozen=True)
class GraphWorkspaces:
    """Workspaces that all batch sizes share, since graphs of one stream run one after the other."""

    floats: Tensor
    ints: Mapping[int | None, Tensor]
    """Workspaces by the window of layers: a replay reads the plans of all windows."""


class WindowWrapper:
    """Computes the layers with one window, in steps of `batch` rows of one token."""

    def __init__(
        self,
        library: Library,
        workspaces: GraphWorkspaces,
        rows: GraphRows,
        pool: PagePool,
        heads: int,
        window_tokens: int | None,
    ) -> None:
        self._library = library
        self._copied: CopyEvent | None = copy_event(rows.indptr.device)
        shape = HeadShape(heads, pool.shape.kv_heads, pool.shape.head_dim)
        self._constants = {
            "indices": rows.indices,
            "head_dim": pool.shape.head_dim,
            **constants(pool, heads, window_tokens),
        }
        self._wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            workspaces.floats,
            kv_layout=LAYOUT,
            backend="fa2",
            use_cuda_graph=True,
            use_tensor_cores=shape.decodes_on_tensor_cores(windowed=window_tokens is not None),
            paged_kv_indptr_buffer=rows.indptr,
            paged_kv_indices_buffer=rows.indices,
            paged_kv_last_page_len_buffer=rows.last_page_len,
        )
        self._wrapper.reset_workspace_buffer(
            float_workspace_buffer=workspaces.floats,
            int_workspace_buffer=workspaces.ints[window_tokens],
        )
        self._plan_again = False
        self.run: Run = self._wrapper.run

    def plan(self, indptr: Tensor, last_page_len: Tensor) -> None:
        """See `layers.attention.GraphAttention`."""
        if self._copied is not None:
            self._copied.synchronize()
        rows = {"indptr": indptr, "last_page_len": last_page_len, **self._constants}
        if self._plan_again:
            # The fast plan leaves filling the buffers to us, and does not loop over rows in Python.
            self._library.fast_decode_plan(self._wrapper, global_override_indptr_cpu=indptr, **rows)
        else:
            self._wrapper.plan(**rows)
            self._plan_again = True
        if self._copied is not None:
            self._copied.record()


@dataclass(frozen=True)
class GraphWrapper:
    """Computes `batch` rows of one token; rows that a step does not fill are padding."""

    batch: int
    wrappers: Mapping[int | None, WindowWrapper]
    """Wrappers by the window of layers."""

    def plan(self, indptr: Tensor, last_page_len: Tensor) -> None:
        """See `layers.attention.GraphAttention`."""
        for wrapper in self.wrappers.values():
            wrapper.plan(indptr, last_page_len)

    def run_with(self, window_tokens: int | None) -> Run:
        """See `layers.attention.GraphAttention`."""
        return self.wrappers[window_tokens].run


class GraphWrappers:
    """Makes the wrappers of one engine's graphs."""

    def __init__(
        self,
        library: Library,
        target: Target,
        kinds: AttentionKinds,
        pool: PagePool,
        heads: int,
    ) -> None:
        self._library = library
        self._target = target
        self._pool = pool
        self._heads = heads
        self._kinds = kinds
        self._workspaces: GraphWorkspaces | None = None

    def wrapper(self, rows: GraphRows) -> GraphWrapper:
        """Wrapper for as many rows as `rows` are. The first call must be for the largest batch,
        because it allocates the workspaces."""
        batch = len(rows.last_page_len)
        self._workspaces = workspaces = self._workspaces or self._allocated(batch)
        where = self._library, workspaces, rows, self._pool, self._heads
        windows = self._kinds.windows
        return GraphWrapper(batch, {window: WindowWrapper(*where, window) for window in windows})

    def _allocated(self, batch: int) -> GraphWorkspaces:
        shape = HeadShape(self._heads, self._pool.shape.kv_heads, self._pool.shape.head_dim)
        major, blocks = self._target.capability[0], self._target.multiprocessors
        windows = self._kinds.windows

        def workspace(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.uint8, device=self._target.place)

        return GraphWorkspaces(
            floats=workspace(
                max(
                    graph_workspace_bytes(shape, blocks, batch, major, windowed=window is not None)
                    for window in windows
                )
            ),
            ints={window: workspace(INT_WORKSPACE_BYTES) for window in windows},
        )
