"""What of autoscaling contradicts itself, or would have no effect. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_operator.accelerators.wanted import gpu_count
from sluice_operator.api.scaling import AutoscalingSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.validation.refusal import INVALID, Refusal

PLACE: Final = "spec.autoscaling"


def scaling_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """A refusal for each value that could not be kept to."""
    scaling = spec.autoscaling
    if scaling is None:
        return
    if not any(spec.pool(role).autoscaling for role in spec.roles):
        places = " or ".join(f"spec.pools.{role}.autoscaling" for role in spec.roles)
        yield Refusal(
            INVALID,
            PLACE,
            f"{PLACE}: this field is not allowed, as no pool is scaled; allowed: beside {places}",
        )
    elif scaling.provider == "External":
        yield from _of_the_operator(scaling)
    elif scaling.gpu_budget is not None:
        yield from _budget(spec, scaling.gpu_budget)


def _of_the_operator(scaling: AutoscalingSpec) -> Iterator[Refusal]:
    """What only the operator's own scaling keeps to."""
    settings = {
        "gpuBudget": scaling.gpu_budget,
        "target": scaling.target and scaling.target.to_json_dict(),
        "onMetricsLoss": None if scaling.on_metrics_loss == "Hold" else scaling.on_metrics_loss,
    }
    for name, value in settings.items():
        if value is not None:
            yield _refusal(name, value, "with provider Internal alone: whoever scales decides")


def _budget(spec: InferenceServiceSpec, budget: int) -> Iterator[Refusal]:
    """The budget is one of GPUs, and enough for the least that is asked for."""
    gpus = {role: gpu_count(spec.pool(role).accelerator) for role in spec.roles}
    if not any(gpus.values()):
        yield _refusal("gpuBudget", budget, "beside pools with an accelerator")
        return
    least = sum(spec.pool(role).engines * count for role, count in gpus.items())
    if budget < least:
        counts = " + ".join(
            f"{spec.pool(role).engines} x {count} ({role})" for role, count in gpus.items()
        )
        yield _refusal("gpuBudget", budget, f"at least {least}: the fewest engines hold {counts}")


def _refusal(name: str, value: object, allowed: str) -> Refusal:
    field = f"{PLACE}.{name}"
    return Refusal(INVALID, field, f"{field}: {value} is not allowed; allowed: {allowed}")
