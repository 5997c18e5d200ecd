"""How many engines a pool begins with, who decides afterwards, and how that ownership changes.

Pure. The first number is the spec's. It is estimated if the operator splits a budget, or if a pool
takes over from pools of another mode: from the accelerator's capacity and assumed requests. Later
numbers are the autoscaler's.

The number is `spec.replicas` of the EnginePool. It has one owner at a time: the InferenceService,
whose manifest then contains it; the operator's autoscaler; or another writer of the pool's scale
subresource. The next owner takes the live value before the former one releases it, because a field
without an owner falls back to its default. Until somebody has scaled the pool, the operator holds
the value in their place, under a field manager of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sluice_contract.cluster.labels import FIELD_MANAGER, Role
from sluice_contract.config.accelerators import Accelerator, product_row

from sluice_operator.api.pools import AcceleratorSpec, gpu_count
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    Manifest,
    controller_uid,
    is_being_deleted,
    of_kind,
)
from sluice_operator.manifests.ownership import is_free, pool_role
from sluice_operator.service.observe import Children

PROMPT_TOKENS: Final = 4
"""Prompt tokens for each token of an answer: an assumption, until requests are seen."""
ANSWERS_AT_ONCE: Final = 64
"""Answers in a decode step that reads as much of the KV cache as of the weights. By this, an A100
computes 6.3 prompt tokens in the time of one token of an answer; its simulated engine also 6.3."""
FLOP_PER_BYTE: Final = 250.0
"""FLOP per byte, assumed of a product with unknown peaks: half of the products in the table have
less."""


class ReplicasOwner(StrEnum):
    """Who decides how many engines a pool has."""

    SPEC = "Spec"
    """The InferenceService."""
    OPERATOR = "Operator"
    """The operator's autoscaler."""
    EXTERNAL = "External"
    """Somebody else: a HorizontalPodAutoscaler, KEDA or a person scales the EnginePool."""


@dataclass(frozen=True)
class Replicas:
    """The number of engines of a pool, and how it reaches the EnginePool."""

    count: int
    is_applied: bool = True
    """Whether the number is a part of what the InferenceService applies."""
    take_over: bool = False
    """Whether `REPLICAS_MANAGER` takes the number over before the InferenceService releases it."""
    let_go: bool = False
    """Whether `REPLICAS_MANAGER` releases the number once the InferenceService has applied it."""


def replicas_owner(spec: InferenceServiceSpec, role: Role) -> ReplicasOwner:
    """Who decides how many engines the pool of `role` has."""
    if spec.pool(role).autoscaling is None:
        return ReplicasOwner.SPEC
    external = spec.autoscaling is not None and spec.autoscaling.provider == "External"
    return ReplicasOwner.EXTERNAL if external else ReplicasOwner.OPERATOR


def plan_replicas(
    spec: InferenceServiceSpec, role: Role, live: Manifest | None, first: int
) -> Replicas:
    """The replicas of the pool of `role`; `live` is its EnginePool. A new pool, and one that the
    InferenceService had stopped, first gets the number `first`. Its owner takes over from there,
    because a HorizontalPodAutoscaler never scales a pool up from 0."""
    owner = replicas_owner(spec, role)
    managers = managers_of(live, "replicas") if live else frozenset()
    is_stopped = live is not None and not live["spec"]["replicas"] and FIELD_MANAGER in managers
    if live is None or owner is ReplicasOwner.SPEC or (is_stopped and first):
        return Replicas(first, let_go=REPLICAS_MANAGER in managers)
    holders = managers - {FIELD_MANAGER}
    is_held = REPLICAS_MANAGER in holders if owner is ReplicasOwner.OPERATOR else bool(holders)
    return Replicas(live["spec"]["replicas"], is_applied=False, take_over=not is_held)


def first_engines(spec: InferenceServiceSpec, role: Role, accelerator: Accelerator) -> int:
    """Engines of the pool of `role` that are asked for first."""
    pool = spec.pool(role)
    if not spec.chooses_split or pool.autoscaling is None:
        return pool.engines
    gpus_of = {each: gpu_count(spec.pool(each).accelerator) for each in spec.roles}
    first = _split(spec.gpu_budget or 0, gpus_of, prefill_share(accelerator))[role]
    return min(first, pool.autoscaling.max_replicas)


def _split(gpus: int, gpus_of: Mapping[Role, int], share: float) -> dict[Role, int]:
    """Engines of either pool on `gpus`, at least one each; `share` of the GPUs is for prefill."""
    most = (gpus - gpus_of[Role.DECODE]) // gpus_of[Role.PREFILL]
    prefill = max(1, min(most, round(gpus * share / gpus_of[Role.PREFILL])))
    left = gpus - prefill * gpus_of[Role.PREFILL]
    return {Role.PREFILL: prefill, Role.DECODE: max(1, left // gpus_of[Role.DECODE])}


def engines_instead(
    spec: InferenceServiceSpec, role: Role, accelerator: Accelerator, former: Iterable[Manifest]
) -> int:
    """Fewest engines with which the pool of `role` can replace the `former` EnginePools of another
    mode, on as many GPUs; 0 if these have no engine. `accelerator`: that of prefill engines."""
    total, gpus_of = _to_replace(spec, tuple(former))
    if not total:
        return 0
    if not spec.is_disaggregated:
        return max(1, total // gpus_of[role])
    return _split(total, gpus_of, prefill_share(accelerator))[role]


def _to_replace(
    spec: InferenceServiceSpec, former: tuple[Manifest, ...]
) -> tuple[int, dict[Role, int]]:
    """GPUs of all `former` engines, within the budget, and GPUs of one new engine of each role. If
    former or new engines run on CPUs, both are numbers of engines."""
    replicas = [int(pool["spec"]["replicas"]) for pool in former]
    gpus = sum(count * pool_gpus(pool) for count, pool in zip(replicas, former, strict=True))
    gpus_of = {role: gpu_count(spec.pool(role).accelerator) for role in spec.roles}
    if not gpus or not all(gpus_of.values()):
        return sum(replicas), dict.fromkeys(spec.roles, 1)
    return gpus if spec.gpu_budget is None else min(gpus, spec.gpu_budget), gpus_of


def engines_left(children: Children, service: str, role: Role) -> int:
    """Most engines that a Deployment of a deleted pool of `role` is asked for. They are not added
    up, because each of two revisions may have had all engines in turn."""
    pools = {pool["metadata"]["uid"] for pool in of_kind(children, ENGINE_POOL)}
    counts = (
        int(item["spec"].get("replicas", 1))
        for item in of_kind(children, DEPLOYMENT)
        if pool_role(item) == role and is_free(item, service, pools)
    )
    return max(counts, default=0)


def former_pools(
    service: Manifest, children: Children, spec: InferenceServiceSpec
) -> tuple[Manifest, ...]:
    """The pools of the service that its mode does not have."""
    name, uid = service["metadata"]["name"], service["metadata"].get("uid")
    return tuple(
        pool
        for pool in of_kind(children, ENGINE_POOL)
        if uid is not None
        and (controller_uid(pool) == uid or is_free(pool, name, {uid}))
        and pool["spec"]["role"] not in spec.roles
        and not is_being_deleted(pool)
    )


def pool_gpus(pool: Manifest) -> int:
    """GPUs of one engine of an EnginePool."""
    spec = pool["spec"].get("accelerator")
    return gpu_count(None if spec is None else AcceleratorSpec.model_validate(spec))


def prefill_share(accelerator: Accelerator) -> float:
    """Share of the engines' time that goes to prompts. A prompt token takes 2 N operations, N the
    model's parameters; a step of answers reads 2 N bytes of weights, and as much of the cache."""
    row = product_row(accelerator.product) if accelerator.product else None
    peak = row.peak if row else None
    flop_per_byte = peak.tflops / peak.terabytes if peak else FLOP_PER_BYTE
    answers = 2 * flop_per_byte / ANSWERS_AT_ONCE / PROMPT_TOKENS
    return 1 / (1 + answers)


def split_text(spec: InferenceServiceSpec, accelerator: Accelerator) -> str:
    """The first split of the budget and its reason, as text."""
    prefill, decode = (first_engines(spec, role, accelerator) for role in spec.roles)
    return (
        f"{spec.gpu_budget} GPUs begin as {prefill} prefill and {decode} decode engines, as suits "
        f"{accelerator} and {PROMPT_TOKENS} prompt tokens for each one of an answer"
    )
