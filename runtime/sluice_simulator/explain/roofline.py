"""A cost model from limits: what a device could do at most, times the share that is reached.

The share is that of the H200 preset, 81 %. Each doubling of GPUs costs a tenth for communication.
Nothing here was measured with this engine.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from sluice_contract.config.accelerators import (
    PRODUCTS,
    Accelerator,
    least_tokens,
    product_row,
)
from sluice_contract.config.packing import rank_counts

from sluice_simulator.costs import Coefficients, Cost
from sluice_simulator.explain.models import ExplainedModel

REACHED: Final = 0.81
DOUBLING: Final = 0.9
STEP_SECONDS: Final = 0.0005


class NoCostError(ValueError):
    """There is no cost model; `str()` says why and what helps."""


def roofline(model: ExplainedModel, accelerator: Accelerator, memory_percent: int) -> Cost:
    """The cost of a step of `model` on the GPUs of one engine.

    Raises:
        NoCostError: the product is not known, or the model does not fit.
    """
    row = product_row(accelerator.product) if accelerator.product else None
    if row is None or row.peak is None:
        named = accelerator.product or "no product"
        allowed = ", ".join(product.name for product in PRODUCTS if product.peak)
        raise NoCostError(f"no figures for {named}: they are there for {allowed}")
    peak, count = row.peak, max(1, accelerator.count)
    if count not in (counts := model.shape.rank_counts):
        allowed = ", ".join(map(str, counts))
        sizes = ", ".join(f"{key} {size}" for key, size in model.shape.shared_sizes.items())
        raise NoCostError(
            f"{count} GPUs cannot share each layer of {model.name} ({sizes}); allowed: {allowed}"
        )
    model = model if row.packs else replace(model, packing=None)
    if count not in (counts := rank_counts(model.shape, model.packing)):
        raise NoCostError(
            f"{count} GPUs cannot share each layer of {model.name} in whole groups of packed "
            f"weights; allowed: {', '.join(map(str, counts))}"
        )
    kv_bytes = model.kv_bytes * model.shape.key_copies(count)
    scale = REACHED * count * DOUBLING ** math.log2(count)
    flops, bandwidth = peak.tflops * 1e12 * scale, peak.terabytes * 1e12 * scale
    memory = (accelerator.memory_mib or row.memory_gib * 1024) * 2**20 * count
    share = memory * memory_percent / 100
    held_bytes = model.held_bytes(count)
    tokens = int((share - held_bytes) // kv_bytes)
    if tokens < least_tokens(model.shape.context_length_tokens):
        weights = math.ceil(held_bytes / 2**30)
        raise NoCostError(
            f"{model.name} does not fit: its weights are {weights} GiB, and {count} x {row.name} "
            f"leave {share / 2**30:.0f} GiB; more accelerator.count, or a "
            "larger product"
        )
    return Cost(
        name=f"{model.name} on {count} x {row.name}",
        source=f"{REACHED:.0%} of {peak.tflops:g} TFLOP/s and {peak.terabytes:g} TB/s"
        + (f", {1 - DOUBLING:.0%} less with each doubling of GPUs" if count > 1 else ""),
        accelerator=accelerator,
        context_length=model.shape.context_length_tokens,
        kv_pool_tokens=tokens,
        coefficients=Coefficients(
            step=STEP_SECONDS,
            weights=model.weight_bytes(count) / bandwidth,
            token=model.token_flop / flops,
            row=model.token_flop / flops,
            product=model.pair_flop / flops,
            context=kv_bytes / bandwidth,
        ),
    )
