"""How many engines pools begin with, before any load was seen: for a budget of GPUs, or in place of
those that serve in another mode.

Pure. From what the accelerator can do and requests as they are assumed here; what comes later is
the autoscaler's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluice_contract.accelerators import Accelerator, product_row
from sluice_contract.labels import Role

from sluice_operator.accelerators.wanted import gpu_count
from sluice_operator.api.pools import AcceleratorSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    Manifest,
    controller_uid,
    is_being_deleted,
    of_kind,
)
from sluice_operator.service.observe import ServiceObserved

PROMPT_TOKENS: Final = 4
"""For each token of an answer: an assumption, until requests are seen."""
ANSWERS_AT_ONCE: Final = 64
"""That a decode step computes, while it reads as much of the KV cache as of the weights. With it an
A100 has 6.3 times as many prompt tokens a second as tokens of answers; its simulated engine 6.3."""
FLOP_PER_BYTE: Final = 250.0
"""Of a product whose peaks are not known: half of the table is below it."""


def first_engines(spec: InferenceServiceSpec, role: Role, accelerator: Accelerator) -> int:
    """Engines of the pool of `role` that are asked for first."""
    if not spec.chooses_split:
        return spec.pool(role).engines
    pool = spec.pool(role)
    assert pool.autoscaling is not None
    engines = (spec.gpu_budget or 0) // gpu_count(pool.accelerator)
    prefill = max(1, min(engines - 1, round(engines * prefill_share(accelerator))))
    found = prefill if role is Role.PREFILL else engines - prefill
    return min(found, pool.autoscaling.max_replicas)


def engines_instead(
    spec: InferenceServiceSpec, role: Role, accelerator: Accelerator, former: Iterable[Manifest]
) -> int:
    """Engines that the pool of `role` needs at least to take over from the `former` EnginePools of
    another mode, on as many GPUs as these have; 0 if they have no engine. `accelerator`: that of
    prefill engines."""
    total, each = _to_replace(spec, tuple(former))
    if not total:
        return 0
    if not spec.is_disaggregated:
        return max(1, total // each[role])
    most = (total - each[Role.DECODE]) // each[Role.PREFILL]
    share = total * prefill_share(accelerator) / each[Role.PREFILL]
    prefill = max(1, min(most, round(share)))
    if role is Role.PREFILL:
        return prefill
    return max(1, (total - prefill * each[Role.PREFILL]) // each[Role.DECODE])


def _to_replace(
    spec: InferenceServiceSpec, former: tuple[Manifest, ...]
) -> tuple[int, dict[Role, int]]:
    """GPUs of all `former` engines, within the budget, and of one engine of each role; where either
    run on CPUs, numbers of engines."""
    replicas = [int(pool["spec"]["replicas"]) for pool in former]
    gpus = sum(count * pool_gpus(pool) for count, pool in zip(replicas, former, strict=True))
    each = {role: gpu_count(spec.pool(role).accelerator) for role in spec.roles}
    if not gpus or not all(each.values()):
        return sum(replicas), dict.fromkeys(spec.roles, 1)
    return gpus if spec.gpu_budget is None else min(gpus, spec.gpu_budget), each


def former_pools(observed: ServiceObserved, spec: InferenceServiceSpec) -> tuple[Manifest, ...]:
    """The pools of the service that its mode does not have."""
    uid = observed.service["metadata"].get("uid")
    return tuple(
        pool
        for pool in of_kind(observed.children, ENGINE_POOL)
        if uid is not None
        and controller_uid(pool) == uid
        and pool["spec"]["role"] not in spec.roles
        and not is_being_deleted(pool)
    )


def pool_gpus(pool: Manifest) -> int:
    """GPUs of one engine of an EnginePool."""
    accelerator = pool["spec"].get("accelerator")
    return gpu_count(AcceleratorSpec.model_validate(accelerator) if accelerator else None)


def prefill_share(accelerator: Accelerator) -> float:
    """Share of the engines' time that goes to prompts. A prompt token takes 2 N operations, N the
    model's parameters; a step of answers reads 2 N bytes of weights, and as much of the cache."""
    row = product_row(accelerator.product) if accelerator.product else None
    peak = row.peak if row else None
    flop_per_byte = peak.tflops / peak.terabytes if peak else FLOP_PER_BYTE
    answers = 2 * flop_per_byte / ANSWERS_AT_ONCE / PROMPT_TOKENS
    return 1 / (1 + answers)


def split_text(spec: InferenceServiceSpec, accelerator: Accelerator) -> str:
    """For people: what the budget begins as, and why."""
    prefill, decode = (first_engines(spec, role, accelerator) for role in spec.roles)
    return (
        f"{spec.gpu_budget} GPUs begin as {prefill} prefill and {decode} decode engines, as suits "
        f"{accelerator} and {PROMPT_TOKENS} prompt tokens for each one of an answer"
    )
