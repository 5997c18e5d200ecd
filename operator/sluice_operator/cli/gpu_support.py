"""Which GPUs of the table engines run on, and how well. Pure.

Judges whole devices by their product. An image of the user's own (`engine.image`) may have other
kernels, so nothing is said of its engines.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice_contract.config.accelerators import (
    BFLOAT16_FROM,
    TORCH_FROM,
    has_kernels,
    product_row,
)

from sluice_operator.api.findings import Finding
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.cli.model_fit import ModelSizes
from sluice_operator.service.rollout.planned_rollout import PlannedPool


def unsupported_gpu(spec: InferenceServiceSpec, pool: PlannedPool) -> Finding | None:
    """The finding of a GPU for which torch has no code; None: it has, or that is unknown."""
    architecture = _architecture(spec, pool)
    if architecture is None or architecture >= TORCH_FROM:
        return None
    return Finding(
        f"{spec.pool(pool.role).accelerator_section}.accelerator.product",
        f"{pool.accelerator.accelerator.product} has compute capability {_capability(architecture)}"
        f", for which CUDA 13 has no code; allowed: {_capability(TORCH_FROM)} and later",
    )


def gpu_advice(
    spec: InferenceServiceSpec, sizes: ModelSizes | None, pool: PlannedPool
) -> Iterator[str]:
    """Advice for a GPU on which engines run slowly."""
    architecture = _architecture(spec, pool)
    if architecture is None or has_kernels(architecture):
        return
    product = pool.accelerator.accelerator.product
    yield (
        f"the engine's image has no attention kernels for compute capability "
        f"{_capability(architecture)} ({product}), only for 8.x, 9.0 and 10.0: plain torch "
        "computes attention, several times slower"
    )
    dtype = pool.settings["dtype"].value
    if dtype == "auto":
        dtype = (sizes and sizes.facts.dtype) or "bfloat16"
    if dtype == "bfloat16" and architecture < BFLOAT16_FROM:
        field = f"{spec.engine_place(pool.role, 'dtype')}.dtype"
        yield f"{product} has no fast bfloat16: set {field} to float16"


def _architecture(spec: InferenceServiceSpec, pool: PlannedPool) -> int | None:
    product = pool.accelerator.accelerator.product
    if product is None or spec.engine_of(pool.role).image is not None:
        return None
    row = product_row(product)
    return row.architecture if row else None


def _capability(architecture: int) -> str:
    return f"{architecture // 10}.{architecture % 10}"
