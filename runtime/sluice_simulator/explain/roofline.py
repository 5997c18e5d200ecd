"""A cost model from limits: what a device could do at most, and the share of it that is reached.

The share is what the preset of the H200 has, 81 %; with each doubling of GPUs a tenth goes to what
they tell each other. Peak figures (dense bfloat16 or float16, memory bandwidth) are those of the
makers' data sheets, not all of them looked up anew. Nothing here was measured with this engine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from sluice_contract.accelerators import Accelerator, product_row

from sluice_simulator.costs import Coefficients, Cost
from sluice_simulator.explain.models import ModelShape

REACHED: Final = 0.81
DOUBLING: Final = 0.9
STEP_SECONDS: Final = 0.0005


@dataclass(frozen=True)
class Peak:
    """Of one GPU."""

    tflops: float
    terabytes: float
    """A second, of its memory."""


PEAKS: Final = {
    "T4": Peak(65, 0.32),
    "V100-16GB": Peak(125, 0.9),
    "V100-32GB": Peak(125, 0.9),
    "RTX 4080": Peak(97, 0.717),
    "RTX 4090": Peak(165, 1.008),
    "RTX 5090": Peak(210, 1.792),
    "L4": Peak(121, 0.3),
    "A10": Peak(125, 0.6),
    "L40S": Peak(362, 0.864),
    "A100-40GB": Peak(312, 1.555),
    "A100-80GB": Peak(312, 2.039),
    "H100": Peak(989, 3.35),
    "H200": Peak(989, 4.8),
    "B200": Peak(2250, 7.7),
    "MI300X": Peak(1307, 5.3),
    "MI325X": Peak(1307, 6.0),
}
"""By the name of the accelerator table's row."""


class NoCostError(ValueError):
    """There is no cost model; `str()` says why and what helps."""


def roofline(model: ModelShape, accelerator: Accelerator, memory_fraction: float) -> Cost:
    """The cost of a step of `model` on the GPUs of one engine.

    Raises:
        NoCostError: the product is not known, or the model does not fit.
    """
    row = product_row(accelerator.product) if accelerator.product else None
    if row is None or row.name not in PEAKS:
        named = accelerator.product or "no product"
        allowed = ", ".join(PEAKS)
        raise NoCostError(f"no figures for {named}: they are there for {allowed}")
    peak, count = PEAKS[row.name], max(1, accelerator.count)
    scale = REACHED * count * DOUBLING ** math.log2(count)
    flops, bandwidth = peak.tflops * 1e12 * scale, peak.terabytes * 1e12 * scale
    memory = (accelerator.memory_mib or row.memory_gib * 1024) * 2**20 * count
    tokens = int((memory * memory_fraction - model.weight_bytes) // model.kv_bytes)
    if tokens < min(model.context_tokens, 4096):
        wanted = math.ceil(model.weight_bytes / 2**30)
        raise NoCostError(
            f"{model.name} does not fit: its weights are {wanted} GiB, and {count} x {row.name} "
            f"leave {memory * memory_fraction / 2**30:.0f} GiB; more accelerator.count, or a "
            "larger product"
        )
    return Cost(
        name=f"{model.name} on {count} x {row.name}",
        source=f"{REACHED:.0%} of {peak.tflops:g} TFLOP/s and {peak.terabytes:g} TB/s"
        + (f", {1 - DOUBLING:.0%} less with each doubling of GPUs" if count > 1 else ""),
        accelerator=accelerator,
        context_length=model.context_tokens,
        kv_pool_tokens=tokens,
        coefficients=Coefficients(
            step=STEP_SECONDS,
            weights=model.weight_bytes / bandwidth,
            token=model.token_flop / flops,
            row=model.token_flop / flops,
            product=model.pair_flop / flops,
            context=model.kv_bytes / bandwidth,
        ),
    )
