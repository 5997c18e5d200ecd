"""Triton's kernels as torch operators, which work in captured graphs and with fake tensors.

They take tensors of an NVIDIA GPU only. Importing this module registers them; Triton itself is
imported only when a program has to be compiled. `sluice_kernels.reference` documents each kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from sluice_kernels.packed import Grouping, Kind, PackedMatrix
from sluice_kernels.reference import DecodeTensors
from sluice_kernels.triton import calls
from sluice_kernels.triton.cubins import CubinFolder
from sluice_kernels.triton.driver import CudaDriver, Launcher


def rotate_and_store(
    qkv: Tensor,
    head_norm: Tensor | None,
    eps: float,
    cos: Tensor,
    sin: Tensor,
    pool: Tensor,
    layer: int,
    pages: Tensor,
    offsets: Tensor,
) -> Tensor:
    """See `reference.rotate_and_store_padded`."""
    operator = torch.ops.sluice_triton.rotate_and_store.default
    return cast(Tensor, operator(qkv, head_norm, eps, cos, sin, pool, layer, pages, offsets))


def decode_inputs(step: DecodeTensors) -> None:
    """See `reference.decode_inputs`."""
    torch.ops.sluice_triton.decode_inputs.default(*step)


def sample_rows(
    logits: Tensor, rows: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor
) -> Tensor:
    """See `reference.sample_rows`."""
    operator = torch.ops.sluice_triton.sample_rows.default
    return cast(Tensor, operator(logits, rows, positions, reals, wholes))


class Product(NamedTuple):
    """Arguments of the operator `packed_product`: see `reference.packed_product`."""

    x: Tensor
    kind: int
    numbers: Tensor
    scales: Tensor | None
    zeros: Tensor | None
    bias: Tensor | None
    counts: Tensor | None
    reads: Tensor | None
    writes: Tensor | None
    top: int

    @property
    def matrix(self) -> PackedMatrix:
        return PackedMatrix(Kind(self.kind), self.numbers, self.scales, self.zeros)

    @property
    def grouping(self) -> Grouping | None:
        if self.counts is None:
            return None
        return Grouping(self.counts, self.reads, self.writes, self.top)

    def out(self) -> Tensor:
        """The result, without its values."""
        rows = self.x if self.reads is None else self.reads
        return self.x.new_empty((len(rows), self.numbers.shape[-2]))


def packed_product(
    x: Tensor,
    matrix: PackedMatrix,
    bias: Tensor | None = None,
    grouping: Grouping | None = None,
) -> Tensor:
    """See `reference.packed_product`."""
    by_expert: tuple[Any, ...] = (None, None, None, 1)
    if grouping is not None:
        by_expert = grouping.counts, grouping.reads, grouping.writes, grouping.top
    stored = int(matrix.kind), matrix.numbers, matrix.scales, matrix.zeros
    operator = torch.ops.sluice_triton.packed_product.default
    return cast(Tensor, operator(*Product(x, *stored, bias, *by_expert)))


def choose_experts(logits: Tensor, top: int, renormalised: bool) -> tuple[Tensor, Tensor]:
    """See `reference.choose_experts`."""
    operator = torch.ops.sluice_triton.choose_experts.default
    return cast(tuple[Tensor, Tensor], operator(logits, top, renormalised))


def sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """See `reference.sort_by_expert`."""
    operator = torch.ops.sluice_triton.sort_by_expert.default
    return cast(tuple[Tensor, Tensor], operator(chosen, experts))


def clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    """See `reference.clamped_swiglu`."""
    operator = torch.ops.sluice_triton.clamped_swiglu.default
    return cast(Tensor, operator(gate_up, alpha, limit))


@cache
def _launcher(architecture: int) -> Launcher:
    return Launcher(CudaDriver(), architecture, CubinFolder())


def _launch(call: calls.Call, device: torch.device) -> None:
    if 0 in call.grid:
        return
    major, minor = torch.cuda.get_device_capability(device)
    stream = torch.cuda.current_stream(device).cuda_stream
    _launcher(10 * major + minor).launch(call, stream)


class Rotation(NamedTuple):
    """Arguments of the operator `rotate_and_store`: see `reference.rotate_and_store_padded`."""

    qkv: Tensor
    head_norm: Tensor | None
    eps: float
    cos: Tensor
    sin: Tensor
    pool: Tensor
    layer: int
    pages: Tensor
    offsets: Tensor

    def queries(self) -> Tensor:
        """The result, without its values."""
        tokens, heads, dim = self.qkv.shape
        return self.qkv.new_empty((tokens, heads - 2 * self.pool.shape[4], dim))


def _rotate_and_store(*arguments: Any) -> Tensor:
    rotation = Rotation(*arguments)
    queries = rotation.queries()
    _launch(calls.rotate_and_store(*rotation, queries), queries.device)
    return queries


def _decode_inputs(*step: Any) -> None:
    tensors = DecodeTensors(*step)
    _launch(calls.decode_inputs(tensors), tensors.rows.device)


def _tokens(logits: Tensor, *_: Tensor) -> Tensor:
    return logits.new_empty(len(logits), dtype=torch.int64)


def _sample_rows(
    logits: Tensor, rows: Tensor, positions: Tensor, reals: Tensor, wholes: Tensor
) -> Tensor:
    tokens = _tokens(logits)
    _launch(calls.sample_rows(logits, rows, positions, reals, wholes, tokens), logits.device)
    return tokens


def _packed_product(*arguments: Any) -> Tensor:
    product = Product(*arguments)
    out, x = product.out(), product.x.contiguous()
    call = calls.packed_product(x, product.matrix, product.bias, out, product.grouping)
    _launch(call, x.device)
    return out


def _choices(logits: Tensor, top: int, renormalised: bool) -> tuple[Tensor, Tensor]:
    shape = (len(logits), top)
    return logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape)


def _choose_experts(logits: Tensor, top: int, renormalised: bool) -> tuple[Tensor, Tensor]:
    chosen, shares = _choices(logits, top, renormalised)
    _launch(calls.choose_experts(logits, chosen, shares, renormalised), logits.device)
    return chosen, shares


def _sorted(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    return chosen.new_empty(chosen.numel()), chosen.new_empty(experts)


def _sort_by_expert(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    order, counts = _sorted(chosen, experts)
    _launch(calls.sort_by_expert(chosen, order, counts), chosen.device)
    return order, counts


def _gated(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    return gate_up.new_empty((len(gate_up), gate_up.shape[1] // 2))


def _clamped_swiglu(gate_up: Tensor, alpha: float, limit: float) -> Tensor:
    out = _gated(gate_up, alpha, limit)
    _launch(calls.clamped_swiglu(gate_up, out, alpha, limit), gate_up.device)
    return out


def _register(schema: str, launch: Callable[..., object], fake: Callable[..., object]) -> None:
    """Registers an operator. fake: computes the result's shape and type for tensors without
    data."""
    name = f"sluice_triton::{schema.partition('(')[0]}"
    torch.library.define(name, schema.removeprefix(schema.partition("(")[0]))
    torch.library.impl(name, "CUDA")(launch)
    torch.library.register_fake(name)(fake)


_register(
    "rotate_and_store(Tensor qkv, Tensor? head_norm, float eps, Tensor cos, Tensor sin,"
    " Tensor(a!) pool, int layer, Tensor pages, Tensor offsets) -> Tensor",
    _rotate_and_store,
    lambda *arguments: Rotation(*arguments).queries(),
)
_register(
    "decode_inputs(Tensor rows, Tensor contexts, Tensor indptr, Tensor page_table,"
    " Tensor last_tokens, Tensor(a!) token_ids, Tensor(b!) positions, Tensor(c!) pages,"
    " Tensor(d!) offsets, Tensor(e!) indices, int page_size, int padding_page) -> ()",
    _decode_inputs,
    lambda *_: None,
)
_register(
    "sample_rows(Tensor logits, Tensor rows, Tensor positions, Tensor reals, Tensor wholes)"
    " -> Tensor",
    _sample_rows,
    _tokens,
)
_register(
    "packed_product(Tensor x, int kind, Tensor numbers, Tensor? scales, Tensor? zeros,"
    " Tensor? bias, Tensor? counts, Tensor? reads, Tensor? writes, int top) -> Tensor",
    _packed_product,
    lambda *arguments: Product(*arguments).out(),
)
_register(
    "choose_experts(Tensor logits, int top, bool renormalised) -> (Tensor, Tensor)",
    _choose_experts,
    _choices,
)
_register(
    "sort_by_expert(Tensor chosen, int experts) -> (Tensor, Tensor)", _sort_by_expert, _sorted
)
_register(
    "clamped_swiglu(Tensor gate_up, float alpha, float limit) -> Tensor", _clamped_swiglu, _gated
)
