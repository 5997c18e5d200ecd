"""flashinfer's own wrappers on a CPU: only the compiled functions behind them are replaced, by
plain torch that does what they are documented to do.

So the wrappers' Python sees our arguments, and what it hands on is what the kernels would get. The
replacements read nothing that the plan does not name.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from sluice_kernels import flashinfer_ahead
from sluice_runtime.layers import stacks
from sluice_runtime.layers.dense import Activation, Multiply, linear
from sluice_runtime.layers.experts import EveryExpert, Products, Router
from sluice_runtime.layers.stack import ExpertsWeights
from torch import Tensor

from tests.runtime.recorded_graph import kernel

CAUSAL = 1
PLAIN_DECODE_GROUPS = (1, 2, 3, 4, 8)
"""`DISPATCH_GQA_GROUP_SIZE` in flashinfer's utils.cuh: the decode kernel is made for these."""
PACKED_SCALE = 7
DECODE_SCALE = 2
"""Place of the softmax scale among the arguments that follow the fixed ones."""
WINDOWED = 7
"""Place of `use_sliding_window` among the arguments of `get_batch_prefill_module` after the
backend."""


@dataclass(frozen=True)
class PlanInfo:
    """What a plan leaves for the run, and what of the run must not have changed since."""

    qo_indptr: Tensor
    kv_indptr: Tensor
    heads: int
    kv_heads: int
    page_size: int
    graph: bool
    causal: bool
    window_left: int = -1
    """Tokens before a query's own that it attends to; -1: all."""


class PrefillModule:
    """`BatchPrefillWithPagedKVCache…`, of FA2 or FA3; `windowed`: compiled with `use_swa_True`;
    None: takes any window."""

    def __init__(self, *, windowed: bool | None) -> None:
        self._windowed = windowed

    def plan(self, *args: Any) -> PlanInfo:
        _, _, _, qo_indptr, kv_indptr, kv_lens, rows, batch, heads, kv_heads, page_size = args[:11]
        graph, _, _, causal, window_left = args[11:16]
        if self._windowed is not None:
            assert (window_left >= 0) == self._windowed, "without the flag a window is not masked"
        assert rows == qo_indptr[-1]
        assert len(kv_indptr) == len(qo_indptr) == batch + 1 == len(kv_lens) + 1
        for numbers in (qo_indptr, kv_indptr, kv_lens):
            assert (numbers.dtype, numbers.device.type) == (torch.int32, "cpu")
        assert heads % kv_heads == 0
        return _planned(
            args[1],
            PlanInfo(
                qo_indptr.clone(),
                kv_indptr.clone(),
                heads,
                kv_heads,
                page_size,
                graph,
                causal,
                window_left,
            ),
        )

    def paged_run(self, *args: Any) -> None:
        kernel(self._paged_run, *args)

    def _paged_run(self, *args: Any) -> None:
        info = _info(args[1], args[2])
        q, k, v, qo_indptr, kv_indptr, indices, last_page_len, out = args[3:11]
        mask_mode, _, window_left = args[12:15]
        assert torch.equal(info.qo_indptr, qo_indptr.cpu())
        assert (mask_mode == CAUSAL) == info.causal
        assert window_left == info.window_left
        scale, sinks = self._extra(args[16:])
        _check(info, q, k, v, kv_indptr)
        for row in range(len(last_page_len)):
            tokens = slice(int(qo_indptr[row]), int(qo_indptr[row + 1]))
            keys, values = _row(k, v, kv_indptr, indices, last_page_len, row)
            hidden = _hidden(len(q[tokens]), len(keys), info)
            out[tokens] = _attend(q[tokens], keys, values, scale, hidden, sinks)

    def _extra(self, args: tuple[Any, ...]) -> tuple[float, Tensor | None]:
        """Scale of scores, and sinks if there are any."""
        return args[PACKED_SCALE], None


class SinkModule(PrefillModule):
    """A module of FA2 with sinks, which takes them and the scale of scores after the fixed
    arguments. Its kernels read the window when they run."""

    def __init__(self) -> None:
        super().__init__(windowed=None)

    def build_and_load(self) -> SinkModule:
        return self

    def ragged_run(self, *_: Any) -> None:
        raise AssertionError("keys and values are in pages")

    def _extra(self, args: tuple[Any, ...]) -> tuple[float, Tensor | None]:
        sinks, scale = args
        assert sinks.dtype == torch.float32
        return scale, sinks


class DecodeModule:
    """`BatchDecodeWithPagedKVCache…`."""

    def plan(self, *args: Any) -> PlanInfo:
        _, _, _, kv_indptr, batch, heads, kv_heads, page_size, graph, window_left = args[:10]
        assert window_left == -1, "it reads whole contexts, windows or not"
        assert len(kv_indptr) == batch + 1
        assert (kv_indptr.dtype, kv_indptr.device.type) == (torch.int32, "cpu")
        assert heads // kv_heads in PLAIN_DECODE_GROUPS
        one_each = torch.arange(batch + 1, dtype=torch.int32)
        info = PlanInfo(one_each, kv_indptr.clone(), heads, kv_heads, page_size, graph, False)
        return _planned(args[1], info)

    def run(self, *args: Any) -> None:
        kernel(self._run, *args)

    def _run(self, *args: Any) -> None:
        info = _info(args[1], args[2])
        q, k, v, kv_indptr, indices, last_page_len, out = args[3:10]
        scale = args[14:][DECODE_SCALE]
        assert info.window_left == -1, "another wrapper has planned in this workspace"
        _check(info, q, k, v, kv_indptr)
        for row in range(len(q)):
            keys, values = _row(k, v, kv_indptr, indices, last_page_len, row)
            one = slice(row, row + 1)
            hidden = torch.zeros(1, len(keys), dtype=torch.bool)
            out[one] = _attend(q[one], keys, values, scale, hidden)


_WORKSPACES: dict[int, PlanInfo] = {}
"""What plans for graphs wrote to their int workspace, by its address. A graph has captured where to
look, not what is there."""


def _planned(workspace: Tensor, info: PlanInfo) -> PlanInfo:
    if info.graph:
        _WORKSPACES[workspace.data_ptr()] = info
    return info


def _info(workspace: Tensor, info: PlanInfo) -> PlanInfo:
    return _WORKSPACES[workspace.data_ptr()] if info.graph else info


def _check(info: PlanInfo, q: Tensor, k: Tensor, v: Tensor, kv_indptr: Tensor) -> None:
    assert torch.equal(info.kv_indptr, kv_indptr.cpu()), "run differs from what was planned"
    assert k.stride() == v.stride()
    assert q.stride(-1) == k.stride(-1) == 1
    assert (q.shape[1], k.shape[2], k.shape[1]) == (info.heads, info.kv_heads, info.page_size)
    assert q.shape[0] == info.qo_indptr[-1]


def _row(
    k: Tensor, v: Tensor, kv_indptr: Tensor, indices: Tensor, last_page_len: Tensor, row: int
) -> tuple[Tensor, Tensor]:
    pages = indices[int(kv_indptr[row]) : int(kv_indptr[row + 1])].long()
    assert indices.dtype == kv_indptr.dtype == last_page_len.dtype == torch.int32
    length = (len(pages) - 1) * k.shape[1] + int(last_page_len[row])
    assert 0 < last_page_len[row] <= k.shape[1]
    return k[pages].flatten(0, 1)[:length], v[pages].flatten(0, 1)[:length]


def _hidden(queries: int, context: int, info: PlanInfo) -> Tensor:
    """Tokens that each of the context's last tokens does not attend to [queries, context]."""
    hidden = torch.zeros(queries, context, dtype=torch.bool)
    own = torch.arange(context - queries, context)[:, None]
    if info.causal:
        hidden |= torch.arange(context) > own
    if info.window_left >= 0:
        hidden |= torch.arange(context) + info.window_left < own
    return hidden


def _attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, hidden: Tensor, sinks: Tensor | None = None
) -> Tensor:
    """q [n, heads, d]; k, v [context, kv_heads, d]; hidden: see `_hidden`; sinks: [heads]."""
    group = q.shape[1] // k.shape[1]
    keys, values = (x.float().repeat_interleave(group, 1) for x in (k, v))
    scores = torch.einsum("nhd,chd->hnc", q.float(), keys) * scale
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        scores = torch.cat((scores, sinks[:, None, None].expand(-1, len(q), 1)), -1)
    shares = scores.softmax(-1)[..., : len(k)]
    return torch.einsum("hnc,chd->nhd", shares, values).to(q.dtype)


def every_expert(
    weights: ExpertsWeights, activation: Activation, multiply: Multiply = linear
) -> EveryExpert:
    """Experts as on GPUs without grouped products: the host reads no counts, so graphs can have
    them."""
    parts = weights.experts
    gate_up_biases, down_biases = zip(*(part.biases for part in parts), strict=True)
    gate_up = Products([(part.gate, part.up) for part in parts], gate_up_biases)
    down = Products([(part.down,) for part in parts], down_biases)
    return EveryExpert(Router.of(weights), gate_up, down, activation)


def flashinfer_on_cpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library with its compiled functions replaced, and experts as on a GPU."""
    import flashinfer
    from flashinfer import decode, prefill

    decodes = DecodeModule()
    prefills = {windowed: PrefillModule(windowed=windowed) for windowed in (False, True)}

    def prefill_module(backend: str, *args: Any) -> PrefillModule:
        windowed = args[WINDOWED]
        assert backend == "fa2" or not windowed, "FA3 is built without windows"
        return prefills[windowed]

    for module in (prefill, decode):
        monkeypatch.setattr(module, "get_batch_prefill_module", prefill_module)
    monkeypatch.setattr(decode, "get_batch_decode_module", lambda *_: decodes)
    sinks = SinkModule()

    def sink_module(backend: str, *args: Any) -> SinkModule:
        assert backend == "fa2"
        return sinks

    monkeypatch.setattr(prefill, "get_customize_batch_prefill_module", sink_module)
    monkeypatch.setattr(decode, "gen_customize_batch_prefill_module", sink_module)
    # Engines of most tests compute in float32, of which flashinfer has no kernels.
    monkeypatch.setitem(flashinfer_ahead.SHORT, "float32", "f32")
    monkeypatch.setattr(stacks, "experts", every_expert)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    empty = torch.empty

    def without_pinning(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", without_pinning)
    return flashinfer
