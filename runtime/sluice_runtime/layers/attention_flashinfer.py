"""Paged attention by flashinfer's wrappers, which plan once in each step and run once in each
layer.

Layers with a window have wrappers and a plan of their own. Keys and values are read in place, as
views of the page-major pool with equal strides. A wrapper fills a pinned buffer when it plans, so
it waits until the previous plan's copy is made. For 8-bit
pages the wrappers take one scale for a layer's keys; if heads have different scales, queries are
multiplied by them instead. Sinks need modules of their own, which the wrappers load by the name
that we give them (`flashinfer_ahead`). Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import torch
from numpy.typing import NDArray
from sluice_kernels import flashinfer_ahead
from torch import Tensor

from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import AttentionRule, LayerKind, Run, TokenLayout
from sluice_runtime.layers.attention_plan import (
    AttentionPlan,
    PartKind,
    PlanPart,
    PrefillKernels,
    page_indices,
    parts_of,
    prefill_kernels,
)
from sluice_runtime.layers.dense import HeadNorm
from sluice_runtime.layers.flashinfer_library import Library, Target, Wrapper
from sluice_runtime.layers.flashinfer_workspace import HeadShape, step_workspace_bytes
from sluice_runtime.layers.rope import Angles, storing_step

_PLAIN_RULE: Final = AttentionRule()
LAYOUT: Final = "NHD"
"""Layout [page, token, head, dim], by flashinfer's name."""


class CopyEvent(Protocol):
    """The part of `torch.cuda.Event` that is used here. An event that was never recorded counts as
    done."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


class StepWrapper:
    """A wrapper that can plan for steps of any size, for layers of one kind."""

    def __init__(
        self,
        library: Library,
        kind: PartKind,
        wrapper: Wrapper,
        layers: LayerKind,
        copied: CopyEvent | None,
    ) -> None:
        """`copied`: event of the last plan's copy; None on a CPU, where nothing is copied."""
        self._library = library
        self._kind = kind
        self._wrapper = wrapper
        self._layers = layers
        self._copied = copied
        self._plan_again = False
        self.run = wrapper.run

    def plan(self, pool: PagePool, layout: TokenLayout, part: PlanPart, heads: int) -> None:
        """Plans one step, for its runs in all layers."""
        if self._copied is not None:
            self._copied.synchronize()
        indices = page_indices(layout, part, pool.page_size)
        arguments = {**constants(pool, heads, self._layers), "indices": indices}
        if self._kind != "decode":
            self._plan_prompts(part.plan, arguments, pool.shape.head_dim)
        else:
            self._plan_decode(part.plan, {**arguments, "head_dim": pool.shape.head_dim})
        if self._copied is not None:
            self._copied.record()

    def _plan_prompts(self, plan: AttentionPlan, arguments: dict[str, Any], head_dim: int) -> None:
        self._wrapper.plan(
            qo_indptr=self._on_host(plan.qo_indptr),
            paged_kv_indptr=self._on_host(plan.kv_indptr),
            paged_kv_indices=arguments.pop("indices"),
            paged_kv_last_page_len=self._on_host(plan.last_page_len),
            head_dim_qk=head_dim,
            causal=True,
            max_token_per_sequence=plan.most_queries,
            **arguments,
        )

    def _plan_decode(self, plan: AttentionPlan, arguments: dict[str, Any]) -> None:
        indptr, last_page_len = self._on_host(plan.kv_indptr), self._on_host(plan.last_page_len)
        if not self._plan_again:
            self._wrapper.plan(indptr=indptr, last_page_len=last_page_len, **arguments)
            self._plan_again = True
            return
        # `plan` loops over all rows in Python: 0.4 ms for 256. The fast plan instead keeps the
        # given tensors for the kernel; lengths must be on the host, or it would wait for the
        # device.
        place = arguments["indices"].device
        self._library.fast_decode_plan(
            self._wrapper,
            indptr=indptr.to(place, non_blocking=True),
            global_override_indptr_cpu=indptr,
            last_page_len=last_page_len,
            **arguments,
        )
        self._wrapper._paged_kv_last_page_len_buf = last_page_len.to(place, non_blocking=True)

    def _on_host(self, numbers: NDArray[Any]) -> Tensor:
        return on_host(numbers, pinned=self._copied is not None)


def constants(pool: PagePool, heads: int, layers: LayerKind) -> dict[str, Any]:
    """Arguments that are equal in every plan for layers of this kind."""
    shape, window = pool.shape, layers.window_tokens
    return {
        "num_qo_heads": heads,
        "num_kv_heads": shape.kv_heads,
        "page_size": pool.page_size,
        "sm_scale": shape.head_dim**-0.5,
        "window_left": -1 if window is None else window - 1,
        "q_data_type": shape.dtype,
        "kv_data_type": shape.stored,
        "non_blocking": True,
    }


def on_host(numbers: NDArray[Any], *, pinned: bool) -> Tensor:
    """Tensor on the host. Pinned memory comes from torch, which reuses it only after copies from it
    are made."""
    tensor = torch.from_numpy(numbers)
    return tensor.pin_memory() if pinned else tensor


@dataclass(frozen=True)
class LayerCache:
    """Keys and values of one layer, as wrappers take them."""

    views: tuple[Tensor, Tensor]
    """[page, token, head, dim]"""
    queries: Tensor | None = None
    """Factors [heads, 1] for the queries; None: no factors."""
    sinks: tuple[Any, ...] = ()
    """Arguments of `run` for a layer with sinks: these in float32, and the scale of scores."""
    scales: dict[str, Any] = field(default_factory=dict)
    """Further arguments of `run`."""


def layer_cache(pool: PagePool, layer: int, heads: int, sinks: Tensor | None) -> LayerCache:
    """A layer's cache. The wrappers take one scale for all its keys, since it becomes part of the
    softmax's scale. The scale of values is multiplied with the result, so it may differ by head."""
    shape, place = pool.shape, pool.data.device
    queries: Tensor | None = None
    of_layer: dict[str, Any] = {}
    if shape.scales is not None:
        group = heads // shape.kv_heads
        of_keys = _scale(shape.scales.keys[layer], group, place)
        of_layer["v_scale"] = _scale(shape.scales.values[layer], group, place)
        if isinstance(of_keys, Tensor):
            queries = of_keys
        else:
            of_layer["k_scale"] = of_keys
    scores: tuple[Any, ...] = ()
    if sinks is not None:
        # The modules for sinks get the scale from here alone.
        scores = sinks.float(), shape.head_dim**-0.5 * of_layer.pop("k_scale", 1.0)
    keys, values = pool.data[:, layer].unbind(1)
    return LayerCache((keys, values), queries, scores, of_layer)


def _scale(by_head: Tensor, group: int, place: torch.device) -> float | Tensor:
    """Scale for `run`: [key heads] → one number, or [query heads, 1]."""
    first = float(by_head[0])
    if bool((by_head == first).all()):
        return first
    return by_head.repeat_interleave(group)[:, None].to(place)


class FlashinferAttention:
    """Makes the attention of each step. Owns the wrappers and their workspace, made at the first
    step, which shows the number of heads and the kinds of layers."""

    def __init__(self, target: Target, library: Library) -> None:
        self._target = target
        self._library = library
        self._wrappers: dict[LayerKind, dict[PartKind, StepWrapper]] = {}
        self._workspace: Tensor | None = None
        self._caches: dict[int, LayerCache] = {}
        """Caches by layer of `_pool`."""
        self._pool: PagePool | None = None

    def __call__(
        self, pool: PagePool, layout: TokenLayout, angles: Angles, rule: AttentionRule = _PLAIN_RULE
    ) -> FlashinferStep:
        return FlashinferStep(self, pool, layout, angles, rule)

    def planned(
        self, pool: PagePool, layout: TokenLayout, heads: int, layers: LayerKind
    ) -> Iterator[tuple[slice, Run]]:
        """The parts of a step, each with its tokens and the `run` of a wrapper that has planned for
        it."""
        group = heads // pool.shape.kv_heads
        if layers not in self._wrappers:
            self._wrappers[layers] = self._made(pool, heads, layers)
        wrappers, kernels = self._wrappers[layers], self._prefill_kernels(layout, heads, layers)
        for part in parts_of(layout.numbers, layout.extends, pool.page_size, group, kernels):
            wrappers[part.kind].plan(pool, layout, part, heads)
            yield part.tokens, wrappers[part.kind].run

    def _prefill_kernels(
        self, layout: TokenLayout, heads: int, layers: LayerKind
    ) -> PrefillKernels:
        """Kernels for a step's prompts: FA2 in layers with a window or sinks."""
        target = self._target
        if not layers.plain:
            return "fa2"
        if target.prefill == "auto":
            rows = layout.numbers, layout.extends
            return prefill_kernels(*rows, heads, target.multiprocessors)
        return target.prefill

    def cache(self, pool: PagePool, layer: int, heads: int, sinks: Tensor | None) -> LayerCache:
        """Cache of one of the pool's layers, made once: see `layer_cache`."""
        if self._pool is not pool:
            self._pool, self._caches = pool, {}
        if layer not in self._caches:
            self._caches[layer] = layer_cache(pool, layer, heads, sinks)
        return self._caches[layer]

    def _made(self, pool: PagePool, heads: int, layers: LayerKind) -> dict[PartKind, StepWrapper]:
        library, workspace = self._library, self._shared_workspace(head_shape(pool, heads))
        prefill = partial(library.BatchPrefillWithPagedKVCacheWrapper, workspace, kv_layout=LAYOUT)
        every: dict[PartKind, Wrapper] = {
            "decode": decode_wrapper(library, workspace, pool, heads, layers)
        }
        choice = self._target.prefill if layers.plain else "fa2"
        if choice != "fa3":
            every["fa2"] = prefill(backend="fa2", jit_args=module_arguments(pool, layers))
        if choice != "fa2":
            every["fa3"] = prefill(backend="fa3")
        return {
            kind: StepWrapper(library, kind, wrapper, layers, copy_event(workspace.device))
            for kind, wrapper in every.items()
        }

    def _shared_workspace(self, shape: HeadShape) -> Tensor:
        """Workspace of all wrappers, whose kernels run one after the other in one stream."""
        if self._workspace is None:
            size = step_workspace_bytes(shape, self._target.multiprocessors)
            self._workspace = torch.zeros(size, dtype=torch.uint8, device=self._target.place)
        return self._workspace


def copy_event(place: torch.device) -> CopyEvent | None:
    """Event for copies of plans; None on a CPU, where nothing is copied."""
    if place.type == "cpu":
        return None
    event: CopyEvent = torch.cuda.Event()  # type: ignore[no-untyped-call]
    return event


def head_shape(pool: PagePool, heads: int) -> HeadShape:
    """Shape of a device's heads: `heads` query heads over those of its pool."""
    return HeadShape(heads, pool.shape.kv_heads, pool.shape.head_dim)


def decode_wrapper(
    library: Library,
    workspace: Tensor,
    pool: PagePool,
    heads: int,
    layers: LayerKind,
    **buffers: Any,
) -> Wrapper:
    """Wrapper that decodes layers of one kind; `buffers`: further arguments, for graphs."""
    return library.BatchDecodeWithPagedKVCacheWrapper(
        workspace,
        kv_layout=LAYOUT,
        backend="fa2",
        use_tensor_cores=head_shape(pool, heads).decodes_on_tensor_cores(plain=layers.plain),
        jit_args=module_arguments(pool, layers),
        **buffers,
    )


def module_arguments(pool: PagePool, layers: LayerKind) -> list[Any] | None:
    """Arguments by which wrappers load the module for layers with sinks; None: they find it
    themselves."""
    if not layers.sinks:
        return None
    shape = pool.shape
    dtype, fp8_pages = str(shape.dtype).removeprefix("torch."), shape.scales is not None
    heads = flashinfer_ahead.Heads(shape.head_dim, sinks=True)
    return flashinfer_ahead.sink_arguments(flashinfer_ahead.Shape(dtype, heads, fp8_pages))


class FlashinferStep:
    """Attention of one step in layers with the same rule. The first of them shows the number of
    heads, and then plans the step, unless a graph has done so."""

    def __init__(
        self,
        owner: FlashinferAttention,
        pool: PagePool,
        layout: TokenLayout,
        angles: Angles,
        rule: AttentionRule,
    ) -> None:
        self._owner = owner
        self._pool = pool
        self._layout = layout
        self._rule = rule
        self._storing = storing_step(pool, layout, angles)
        self._parts: list[tuple[slice, Run]] = []

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """See `layers.attention.Attention`."""
        pool = self._pool
        queries = self._storing.queries(layer, qkv, head_norm)
        if not self._parts:
            self._parts = self._planned(queries.shape[1])
        cache = self._owner.cache(pool, layer, queries.shape[1], self._rule.sinks.get(layer))
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if cache.queries is not None:
            queries = (queries * cache.queries).to(out.dtype)
        for tokens, run in self._parts:
            run(queries[tokens], cache.views, *cache.sinks, out=out[tokens], **cache.scales)
        return out

    def _planned(self, heads: int) -> list[tuple[slice, Run]]:
        layout, kind = self._layout, self._rule.kind
        if layout.planned is not None:
            return [(slice(None), layout.planned.run_with(kind))]
        return list(self._owner.planned(self._pool, layout, heads, kind))
