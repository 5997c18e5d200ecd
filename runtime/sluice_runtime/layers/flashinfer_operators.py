"""Norms and activation by flashinfer's kernels, which fuse what torch does in several operations.

torch computes inputs that the kernels do not accept: float32, norms with a weight for each head,
rows that do not begin at a multiple of 16 bytes, and empty inputs. Knows no model.
"""

from __future__ import annotations

from typing import Final, Protocol

import torch
from torch import Tensor

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

    def silu_and_mul(self, input: Tensor) -> Tensor: ...


class FlashinferOperators:
    """Norms and activation by kernels: see `layers.dense` for what each computes."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if not _is_taken(x, weight):
            return dense.rms_norm(x, weight, eps)
        return self._kernels.rmsnorm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
        """The norm of x + delta, in the memory of `delta`."""
        if not (_is_taken(x, weight) and _is_taken(delta, weight)):
            return dense.add_rms_norm(x, delta, weight, eps)
        self._kernels.fused_add_rmsnorm(delta, x, weight, eps)
        return delta

    def silu_and_multiply(self, gate_up: Tensor) -> Tensor:
        half_bytes = gate_up.shape[-1] // 2 * gate_up.dtype.itemsize
        taken = gate_up.dtype in _DTYPES and len(gate_up) and gate_up.is_contiguous()
        if not taken or half_bytes % _VECTOR_BYTES:
            return dense.silu_and_multiply(gate_up)
        return self._kernels.silu_and_mul(gate_up)


def _is_taken(x: Tensor, weight: Tensor) -> bool:
    rows = x.dim() == 2 and len(x) and x.is_contiguous()
    alike = x.dtype == weight.dtype and x.dtype in _DTYPES and weight.dim() == 1
    return bool(rows and alike and x.shape[1] * x.dtype.itemsize % _VECTOR_BYTES == 0)
