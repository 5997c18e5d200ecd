"""Reads experts in MXFP4, as gpt-oss has them.

Format: OCP Microscaling Formats (MX) 1.0. Each weight has 4 bits (e2m1); 32 inputs of an output
share one scale, a power of two (e8m0). A tensor [experts, in, out] is stored as NAME_blocks
[experts, out, blocks, 16], with the first number of a byte in its low bits, and NAME_scales
[experts, out, blocks].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from sluice_contract.config.packing import PACKED_INPUTS
from sluice_kernels.packed import Kind, PackedMatrix, mxfp4_values, packed_4_bits
from torch import Tensor

from sluice_runtime.errors import ModelLoadError
from sluice_runtime.model.shard import TensorPart


class Files(Protocol):
    """The part of `QuantisedWeights` that is used here."""

    def read_stored(self, name: str, part: TensorPart, dtype: torch.dtype) -> Tensor: ...


@dataclass(frozen=True)
class Mxfp4:
    """See `model.quantised.Format`."""

    def __str__(self) -> str:
        return "MXFP4"

    def module(self, name: str) -> str:
        return "" if name.endswith((".weight", "bias")) else name

    @property
    def tensor(self) -> str:
        return "_blocks"

    def units(self, part: TensorPart) -> tuple[int, ...]:
        return 1, PACKED_INPUTS, 1

    def read(self, files: Files, name: str, part: TensorPart) -> Callable[[Tensor], None]:
        numbers, scales = self._stored(files, name, part)

        def fill(target: Tensor) -> None:
            for expert, own, exponents in zip(target, numbers, scales, strict=True):
                expert.copy_(mxfp4_values(_by_input(own).flatten(1), exponents).T)

        return fill

    def pack(
        self, files: Files, name: str, part: TensorPart
    ) -> tuple[PackedMatrix, Callable[[], None]]:
        stored, scales = self._stored(files, name, part)
        numbers = torch.empty_like(stored.flatten(2))

        def complete() -> None:
            for packed, blocks in zip(numbers, stored, strict=True):
                packed.copy_(packed_4_bits(_by_input(blocks).flatten(1)))

        return PackedMatrix(Kind.MXFP4, numbers, scales), complete

    def _stored(self, files: Files, name: str, part: TensorPart) -> tuple[Tensor, Tensor]:
        """Numbers [experts, out, blocks, 16] and scales [experts, out, blocks]."""
        experts, width, out = part.whole
        if width % PACKED_INPUTS:
            raise ModelLoadError(
                f"config.json: intermediate_size, hidden_size: {width} inputs of {name} are not "
                f"allowed; allowed: multiples of {PACKED_INPUTS} with quant_method 'mxfp4'"
            )
        blocks = width // PACKED_INPUTS
        unit = PACKED_INPUTS if part.dim == 1 else 1
        dim, begin, length = (0, 2, 1)[part.dim], part.begin // unit, part.length // unit
        stored = TensorPart((experts, out, blocks, PACKED_INPUTS // 2), dim, begin, length)
        scaled = TensorPart((experts, out, blocks), dim, begin, length)
        numbers = files.read_stored(f"{name}_blocks", stored, torch.uint8)
        return numbers, files.read_stored(f"{name}_scales", scaled, torch.uint8)


def _by_input(blocks: Tensor) -> Tensor:
    """Unpacks uint8: [out, n, 16] → [out, n, 32]."""
    return torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
