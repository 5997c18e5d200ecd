"""The accelerator table: what memory a product has, and which sizes suit that memory.

The operator finds the product; this table gives its sizes.

Sources. Chunk, graphs and reserved memory by tier of memory: SGLang 0.5.x, `server_args.py`
(`_handle_gpu_memory_settings`, generalised in its pull request 10975). Requests at once: no fewer
than vLLM 0.11's 256 (`arg_utils.py`, `get_batch_defaults`). Products: makers' data sheets; not all
were looked up again. Labels: drivers' device names from published node lists, which are incomplete;
spaces are dashes (NVIDIA's feature discovery) or underscores (AMD's labeller). Compute
capabilities: developer.nvidia.com/cuda-gpus.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from pydantic import Field

from sluice_contract.base import ContractModel


class Accelerator(ContractModel):
    """Devices that one engine runs on. A CPU has `product` None and `count` 0."""

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
        """Display text: `CPU` or `2 x NVIDIA-A100-SXM4-40GB`."""
        return "CPU" if self.is_cpu else f"{max(1, self.count)} x {self.product or 'GPU'}"


@dataclass(frozen=True)
class Sizes:
    """Chunk size in tokens, and how far decode batches are captured as CUDA graphs."""

    chunk_size: int
    cuda_graph_max_batch: int


@dataclass(frozen=True)
class MemoryTier:
    """Devices with less memory than `below_gib`, and at least the limit of the tier before. `wide`
    applies from a tensor parallel size of 4."""

    below_gib: float
    sizes: Sizes
    wide: Sizes


@dataclass(frozen=True)
class Peak:
    """Peak performance of one device."""

    tflops: float
    """Dense bfloat16 or float16 operations, in 10¹² a second."""
    terabytes: float
    """Bandwidth of the device's memory, in 10¹² bytes a second."""


@dataclass(frozen=True)
class ProductRow:
    """One family of products with the same memory, under all the names that it has."""

    name: str
    pattern: re.Pattern[str]
    memory_gib: float
    architecture: int | None = None
    """Compute capability times ten, 90 for 9.0; None: not a GPU of NVIDIA."""
    peak: Peak | None = None
    """None: not known."""
    labels: tuple[str, ...] = ()
    """Values of `nvidia.com/gpu.product` or `amd.com/gpu.product-name` on whole devices."""

    @property
    def packs(self) -> bool:
        """Whether engines keep quantised weights packed on it: on NVIDIA's GPUs from compute
        capability 8.0."""
        return self.architecture is not None and self.architecture >= BFLOAT16_FROM


WIDE_FROM: Final = 4
MIN_RUNNING_REQUESTS: Final = 256
"""Requests that run at once on CPUs; on GPUs at least as many."""
MAX_RUNNING_REQUESTS: Final = 4096
"""Most requests that run at once on GPUs, unless the user sets more."""
TYPICAL_TOKENS: Final = 1024
"""Assumed tokens of a request's prompt and answer together. With longer requests the KV pool runs
out of pages first; with shorter ones rows run out first."""
LEAST_POOL_TOKENS: Final = 4096
RUNNING_STEP: Final = 16
"""Multiple to which numbers of rows are rounded, because matrix kernels compute tiles of this
size."""

TIERS: Final = (
    MemoryTier(20, Sizes(2048, 8), Sizes(2048, 8)),
    MemoryTier(35, Sizes(2048, 16), Sizes(2048, 80)),
    MemoryTier(60, Sizes(4096, 32), Sizes(4096, 160)),
    MemoryTier(160, Sizes(8192, 256), Sizes(8192, 512)),
    MemoryTier(float("inf"), Sizes(16384, 512), Sizes(16384, 512)),
)


def _row(
    name: str,
    pattern: str,
    memory_gib: float,
    architecture: int | None = None,
    peak: Peak | None = None,
    labels: str = "",
) -> ProductRow:
    regex = re.compile(pattern, re.IGNORECASE)
    return ProductRow(name, regex, memory_gib, architecture, peak, tuple(labels.split()))


# fmt: off
PRODUCTS: Final = (
    _row("T4", r"\bT4\b", 16, 75, Peak(65, 0.32), "Tesla-T4"),
    _row(
        "V100-16GB", r"V100.*16GB|^nvidia-tesla-v100$", 16, 70, Peak(125, 0.9),
        "Tesla-V100-SXM2-16GB Tesla-V100-PCIE-16GB",
    ),
    _row(
        "V100-32GB", r"V100.*32GB", 32, 70, Peak(125, 0.9),
        "Tesla-V100-SXM2-32GB Tesla-V100-PCIE-32GB",
    ),
    _row("RTX 4080", r"RTX[-_ ]?4080", 16, 89, Peak(97, 0.717), "NVIDIA-GeForce-RTX-4080"),
    _row("RTX 4090", r"RTX[-_ ]?4090", 24, 89, Peak(165, 1.008), "NVIDIA-GeForce-RTX-4090"),
    _row("RTX 5090", r"RTX[-_ ]?5090", 32, 120, Peak(210, 1.792), "NVIDIA-GeForce-RTX-5090"),
    _row("L4", r"\bL4\b", 24, 89, Peak(121, 0.3), "NVIDIA-L4"),
    _row("A10", r"\bA10G?\b", 24, 86, Peak(125, 0.6), "NVIDIA-A10 NVIDIA-A10G"),
    _row("L40S", r"\bL40S?\b", 48, 89, Peak(362, 0.864), "NVIDIA-L40S NVIDIA-L40"),
    _row(
        "RTX PRO 6000", r"RTX[-_ ]PRO[-_ ]6000", 96, 120,
        labels="NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
    ),
    _row(
        "A100-40GB", r"A100.*40GB|^nvidia-tesla-a100$", 40, 80, Peak(312, 1.555),
        "NVIDIA-A100-SXM4-40GB NVIDIA-A100-PCIE-40GB",
    ),
    _row(
        "A100-80GB", r"A100.*80GB", 80, 80, Peak(312, 2.039),
        "NVIDIA-A100-SXM4-80GB NVIDIA-A100-80GB-PCIe",
    ),
    _row(
        "H100", r"\bH100\b", 80, 90, Peak(989, 3.35),
        "NVIDIA-H100-80GB-HBM3 NVIDIA-H100-PCIe NVIDIA-H100-NVL",
    ),
    _row("H200", r"\bH200\b", 141, 90, Peak(989, 4.8), "NVIDIA-H200 NVIDIA-H200-NVL"),
    _row("B200", r"\bG?B200\b", 180, 100, Peak(2250, 7.7), "NVIDIA-B200 NVIDIA-GB200"),
    _row("MI300X", r"MI300X", 192, None, Peak(1307, 5.3), "AMD_Instinct_MI300X_OAM"),
    _row("MI325X", r"MI325X", 256, None, Peak(1307, 6.0), "AMD_Instinct_MI325X_OAM"),
)
# fmt: on

SHARED: Final = re.compile(r"-SHARED$", re.IGNORECASE)
TORCH_FROM: Final = 75
"""Lowest architecture for which the engine's torch, built with CUDA 13, has code
(`torch._C._cuda_getArchFlags()` of 2.11.0+cu130)."""
BFLOAT16_FROM: Final = 80
"""Lowest architecture whose matrix instructions compute bfloat16."""
KERNEL_MAJORS: Final = (8,)
KERNEL_ARCHITECTURES: Final = (90, 100)
"""With every architecture of KERNEL_MAJORS, those for which the engine's image has kernels."""

PART: Final = re.compile(r"[- ]MIG[- ]|-SHARED$", re.IGNORECASE)
"""Pattern of a product name that means a part of a device, with less memory than the whole."""

UNKNOWN: Final = Sizes(4096, 32)
"""Sizes of a GPU whose product and memory are unknown."""
CPU: Final = Sizes(512, 0)
"""A prefill step of 512 tokens keeps the gap between decode steps modest on a few cores."""

MACHINE_GPUS: Final = 8
"""GPUs of one machine: the most that is recommended for an engine."""
GENERAL_MEMORY_PERCENT: Final = 85
"""Percent assumed if a device's memory is unknown; on CPUs, percent of the container's memory."""
FIXED_MIB: Final = 512
CHUNK_TOKEN_MIB: Final = 1.5
MIN_CHUNK_TOKENS: Final = 2048
GRAPH_ROW_MIB: Final = 2
RANK_MIB: Final = 128
LARGE_MIB: Final = 60 * 1024
LARGE_RESERVE_MIB: Final = 10 * 1024


def memory_mib_of(accelerator: Accelerator) -> int | None:
    """Memory of one device, in MiB: from its node, else from the product's row; None: neither is
    known."""
    if accelerator.memory_mib is not None:
        return accelerator.memory_mib
    row = product_row(accelerator.product) if accelerator.product else None
    return int(row.memory_gib * 1024) if row else None


def product_row(product: str) -> ProductRow | None:
    """The table's row for a product name; None if there is none, and for a part of a device, whose
    memory is smaller."""
    if PART.search(product):
        return None
    return next((row for row in PRODUCTS if row.pattern.search(product)), None)


def has_kernels(architecture: int) -> bool:
    """Whether the engine's image has attention kernels for an architecture. On others plain torch
    computes attention, several times slower."""
    return architecture // 10 in KERNEL_MAJORS or architecture in KERNEL_ARCHITECTURES


def packs_weights(accelerator: Accelerator) -> bool:
    """Whether engines keep quantised weights packed; parts of a device do as the whole, and unknown
    products are taken to do so."""
    if accelerator.is_cpu:
        return False
    name = PART.split(accelerator.product or "")[0]
    row = next((row for row in PRODUCTS if row.pattern.search(name)), None)
    return row is None or row.packs


def labels_near(product: str) -> tuple[str, ...]:
    """Labels that a user may have meant by `product`, if it is not a known label: the labels of its
    row, else labels with all its words, else similar labels. Empty for a known label. The name may
    be of a part of a device."""
    whole = PART.split(product)[0]
    labels = {_letters(label): label for row in PRODUCTS for label in row.labels}
    if whole in labels.values():
        return ()
    if (row := product_row(whole)) is not None:
        return row.labels
    parts = set(re.findall(r"[a-z0-9]+", whole.casefold())) - {"nvidia"}
    matching = [letters for letters in labels if all(word in letters for word in parts)]
    return tuple(
        labels[letters] for letters in matching or get_close_matches(_letters(whole), labels)
    )


def same_product(name: str, other: str) -> bool:
    """Whether two names mean one product, which labels, drivers and clouds spell differently. The
    suffix for a shared GPU is ignored, because drivers do not report it."""
    name, other = SHARED.sub("", name), SHARED.sub("", other)
    rows = product_row(name), product_row(other)
    if rows[0] is not None or rows[1] is not None:
        return rows[0] == rows[1]
    return _letters(name) == _letters(other)


def _letters(product: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", product.casefold())
    return plain.removeprefix("nvidia")


def tier_sizes(memory_gib: float, *, wide: bool) -> Sizes:
    """Sizes for a device with this much memory."""
    tier = next(tier for tier in TIERS if memory_gib < tier.below_gib)
    return tier.wide if wide else tier.sizes


def requests_in_pool(pool_tokens: int, cuda_graph_max_batch: int) -> int:
    """Default number of requests that run at once on a GPU: as many of typical length as the KV
    pool holds, but at least as many as CUDA graphs are captured for."""
    requests = min(pool_tokens // TYPICAL_TOKENS, MAX_RUNNING_REQUESTS)
    least = max(MIN_RUNNING_REQUESTS, cuda_graph_max_batch)
    return max(requests // RUNNING_STEP * RUNNING_STEP, least)


def least_tokens(context_tokens: int) -> int:
    """Tokens of the smallest KV pool with which a model counts as fitting."""
    return min(context_tokens, LEAST_POOL_TOKENS)


def memory_percent(memory_mib: int, sizes: Sizes, tensor_parallel: int) -> int:
    """Percent of a device's memory for weights and KV pool, at least 50. The rest is for
    activations of a whole chunk, CUDA graphs and buffers of each rank."""
    reserved = (
        FIXED_MIB
        + max(sizes.chunk_size, MIN_CHUNK_TOKENS) * CHUNK_TOKEN_MIB
        + sizes.cuda_graph_max_batch * GRAPH_ROW_MIB
        + tensor_parallel * RANK_MIB
    )
    if memory_mib > LARGE_MIB:
        reserved = max(reserved, LARGE_RESERVE_MIB)
    return max(50, int((1 - reserved / memory_mib) * 100))
