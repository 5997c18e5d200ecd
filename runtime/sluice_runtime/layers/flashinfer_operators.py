"""Norms and activation by flashinfer's kernels, which fuse what torch does in several operations.

torch computes inputs that the kernels do not accept: float32, norms with a weight for each head,
rows that do not begin at a multiple of 16 bytes, and empty inputs. Weights of float32 for 16-bit
inputs are taken by kernels that add 1 to a 16-bit weight, as Gemma's. Knows no model.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sluice_runtime.layers import dense

_DTYPES: Final = (torch.bfloat16, torch.float16)
_VECTOR_BYTES: Final = 16


class Kernels(Protocol):
    """Functions of the module `flashinfer` that are used here."""

    def rmsnorm(self, input: Tensor, weight: Tensor, eps: float) -> Tensor: ...

    def fused_add_rmsnorm(
        self,
        input: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
    ) -> None:
        """residual += input; input = norm of residual."""
        ...

    def gemma_rmsnorm(self, input: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The norm, with a weight larger by 1."""
        ...

    def gemma_fused_add_rmsnorm(
        self, input: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> None:
        """See `fused_add_rmsnorm`; the weight is larger by 1."""
        ...

    def silu_and_mul(self, input: Tensor) -> Tensor: ...

    def gelu_tanh_and_mul(self, input: Tensor) -> Tensor: ...


def activation_modules(activation: dense.Activation | None) -> tuple[str, ...]:
    """Modules of flashinfer that compute a model's activation; None: silu(gate) x up."""
    if activation is None:
        return ("silu_and_mul",)
    return ("gelu_tanh_and_mul",) if activation is dense.gelu_and_multiply else ()


class FlashinferOperators:
    """Norms and activation by kernels: see `layers.dense` for what each computes."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._lessened = WeakTensorKeyDictionary()

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not _is_taken(x, weight):
            return dense.rms_norm(x, weight, eps)
        if weight.dtype != x.dtype:
            return self._kernels.gemma_rmsnorm(x, self._less_one(weight, x.dtype), eps)
        return self._kernels.rmsnorm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The norm of x + delta, in the memory of `delta`."""
        if not (_is_taken(x, weight) and _is_taken(delta, weight)):
            return dense.add_rms_norm(x, delta, weight, eps)
        if weight.dtype != x.dtype:
            own = self._less_one(weight, x.dtype)
            self._kernels.gemma_fused_add_rmsnorm(delta, x, own, eps)
        else:
            self._kernels.fused_add_rmsnorm(delta, x, weight, eps)
        return delta

    def silu_and_multiply(self, gate_up: Tensor) -> Tensor:
        if not _is_activated(gate_up):
            return dense.silu_and_multiply(gate_up)
        return self._kernels.silu_and_mul(gate_up)

    def gelu_and_multiply(self, gate_up: Tensor) -> Tensor:
        if not _is_activated(gate_up):
            return dense.gelu_and_multiply(gate_up)
        return self._kernels.gelu_tanh_and_mul(gate_up)

    def _less_one(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """The weight less 1 in `dtype`, computed once for each weight. Gemma's checkpoints store
        this number, in bfloat16."""
        if weight not in self._lessened:
            self._lessened[weight] = (weight - 1).to(dtype)
        lessened: Tensor = self._lessened[weight]
        return lessened


def _is_taken(x: Tensor, weight: Tensor) -> bool:
    rows = x.dim() == 2 and len(x) and x.is_contiguous()
    known = x.dtype in _DTYPES and weight.dtype in (x.dtype, torch.float32)
    aligned = x.shape[-1] * x.dtype.itemsize % _VECTOR_BYTES == 0
    return bool(rows and known and weight.dim() == 1 and aligned)


def _is_activated(gate_up: Tensor) -> bool:
    half_bytes = gate_up.shape[-1] // 2 * gate_up.dtype.itemsize
    taken = gate_up.dtype in _DTYPES and len(gate_up) and gate_up.is_contiguous()
    return bool(taken and half_bytes % _VECTOR_BYTES == 0)
