"""Decode wrappers of flashinfer for CUDA graphs: one for each batch size and kind of layers, over
shared buffers.

A captured graph reads the same addresses in every replay, so each plan is written there. Planning
cannot be captured, and comes before each replay. Only wrappers of this module may be captured: the
plan of another wrapper would move its buffers, and the graph would silently read the old ones.
Hence the type `GraphAttention`, which `TokenLayout.planned` requires. Knows nothing of how graphs
are captured, nor of what their rows are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import GraphRows, LayerKind, Run
from sluice_runtime.layers.attention_flashinfer import (
    CopyEvent,
    constants,
    copy_event,
    decode_wrapper,
    head_shape,
)
from sluice_runtime.layers.flashinfer_library import Library, Target
from sluice_runtime.layers.flashinfer_workspace import graph_workspace_bytes

INT_WORKSPACE_BYTES: Final = 512 << 10
"""Size of an integer workspace; a plan of 4,096 rows takes less than 200 KiB of it. Each wrapper
has pinned memory of the same size."""


@dataclass(frozen=True)
class GraphWorkspaces:
    """Workspaces that all batch sizes share, since graphs of one stream run one after the other."""

    floats: Tensor
    ints: Mapping[LayerKind, Tensor]
    """Workspaces by the kind of layers: a replay reads the plans of all kinds."""


class LayerKindWrapper:
    """Computes the layers of one kind, in steps of `batch` rows of one token."""

    def __init__(
        self,
        library: Library,
        workspaces: GraphWorkspaces,
        rows: GraphRows,
        pool: PagePool,
        heads: int,
        layers: LayerKind,
    ) -> None:
        self._library = library
        self._copied: CopyEvent | None = copy_event(rows.indptr.device)
        self._constants = {
            "indices": rows.indices,
            "head_dim": pool.shape.head_dim,
            **constants(pool, heads, layers),
        }
        self._wrapper = decode_wrapper(
            library,
            workspaces.floats,
            pool,
            heads,
            layers,
            use_cuda_graph=True,
            paged_kv_indptr_buffer=rows.indptr,
            paged_kv_indices_buffer=rows.indices,
            paged_kv_last_page_len_buffer=rows.last_page_len,
        )
        self._wrapper.reset_workspace_buffer(
            float_workspace_buffer=workspaces.floats,
            int_workspace_buffer=workspaces.ints[layers],
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
    wrappers: Mapping[LayerKind, LayerKindWrapper]

    def plan(self, indptr: Tensor, last_page_len: Tensor) -> None:
        """See `layers.attention.GraphAttention`."""
        for wrapper in self.wrappers.values():
            wrapper.plan(indptr, last_page_len)

    def run_with(self, kind: LayerKind) -> Run:
        """See `layers.attention.GraphAttention`."""
        return self.wrappers[kind].run


class GraphWrappers:
    """Makes the wrappers of one engine's graphs."""

    def __init__(
        self,
        library: Library,
        target: Target,
        kinds: Sequence[LayerKind],
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
        return GraphWrapper(batch, {kind: LayerKindWrapper(*where, kind) for kind in self._kinds})

    def _allocated(self, batch: int) -> GraphWorkspaces:
        shape = head_shape(self._pool, self._heads)
        major, blocks = self._target.capability[0], self._target.multiprocessors

        def workspace(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.uint8, device=self._target.place)

        return GraphWorkspaces(
            floats=workspace(
                max(
                    graph_workspace_bytes(shape, blocks, batch, major, plain=kind.plain)
                    for kind in self._kinds
                )
            ),
            ints={kind: workspace(INT_WORKSPACE_BYTES) for kind in self._kinds},
        )
