"""The accelerator table: which chunk size and CUDA-graph batch suit a device.

Chunk sizes by product and memory as published by SGLang (server_args, 0.5.x), for throughput.
Knows nothing of nodes: the operator finds the product, this table says what follows from it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pydantic import Field

from sluice_contract.base import ContractModel


class Accelerator(ContractModel):
    """What one engine runs on. `product` None and `count` 0: a CPU."""

    product: str | None = Field(
        default=None,
        max_length=128,
        description="As the node's label spells it, e.g. NVIDIA-A100-SXM4-40GB.",
    )
    memory_mib: int | None = Field(default=None, ge=1, description="Memory of one device, in MiB.")
    count: int = Field(
        default=0,
        ge=0,
        le=64,
        description="Devices of one engine, which is its tensor parallel size.",
    )

    @property
    def is_cpu(self) -> bool:
        return self.product is None and self.count == 0

    def __str__(self) -> str:
        """For display: `CPU` or `2 x NVIDIA-A100-SXM4-40GB`."""
        return "CPU" if self.is_cpu else f"{self.count} x {self.product or 'GPU'}"


@dataclass(frozen=True)
class Sizes:
    """Chunk size in tokens, and how far decode batches are captured as CUDA graphs."""

    chunk_size: int
    cuda_graph_max_batch: int


@dataclass(frozen=True)
class ProductRow:
    """One family of products; `wide` applies from a tensor parallel size of 4."""

    name: str
    pattern: re.Pattern[str]
    sizes: Sizes
    wide: Sizes


def _row(name: str, pattern: str, sizes: Sizes, wide: Sizes | None = None) -> ProductRow:
    return ProductRow(name, re.compile(pattern, re.IGNORECASE), sizes, wide or sizes)


WIDE_FROM: Final = 4

PRODUCTS: Final = (
    _row("T4", r"\bT4\b", Sizes(2048, 8)),
    _row("RTX 4080", r"RTX[-_ ]?4080", Sizes(2048, 8)),
    _row("RTX 4090", r"RTX[-_ ]?4090", Sizes(2048, 16), Sizes(2048, 80)),
    _row("A100-40GB", r"A100.*40GB", Sizes(4096, 32), Sizes(4096, 160)),
    _row("A100-80GB", r"A100.*80GB", Sizes(8192, 256), Sizes(8192, 512)),
    _row("H100", r"\bH100\b", Sizes(8192, 256), Sizes(8192, 512)),
    _row("H200", r"\bH200\b", Sizes(8192, 256), Sizes(8192, 512)),
    _row("B200", r"\bG?B200\b", Sizes(16384, 512)),
    _row("MI300X", r"MI300X", Sizes(16384, 512)),
)


@dataclass(frozen=True)
class MemoryRow:
    """Used when the product is unknown: the first row whose limit is above the memory."""

    below_gib: float
    sizes: Sizes
    wide: Sizes


MEMORY: Final = (
    MemoryRow(20, Sizes(2048, 8), Sizes(2048, 8)),
    MemoryRow(35, Sizes(2048, 16), Sizes(2048, 80)),
    MemoryRow(60, Sizes(4096, 32), Sizes(4096, 160)),
    MemoryRow(160, Sizes(8192, 256), Sizes(8192, 512)),
    MemoryRow(float("inf"), Sizes(16384, 512), Sizes(16384, 512)),
)

UNKNOWN: Final = Sizes(4096, 32)
"""A GPU of which neither product nor memory is known."""
CPU: Final = Sizes(512, 0)
"""A prefill step of 512 tokens keeps the gap between decode steps modest on a few cores."""


def product_row(product: str) -> ProductRow | None:
    """The row of the table that a product name falls under."""
    return next((row for row in PRODUCTS if row.pattern.search(product)), None)
