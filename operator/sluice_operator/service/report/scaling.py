"""Which pools of a service the operator scales, within which limits, and what the status says about
it. Pure.

An engine that moves to the other pool keeps all that it was started with but its role: pod,
settings, image. So the pools must be alike, and as this release makes them: those of another
release may know no change of roles.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Final

from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import FIELD_MANAGER, Role

from sluice_operator.accelerators.find import find_accelerator
from sluice_operator.api.conditions import SCALING_ACTIVE, Check
from sluice_operator.api.pools import gpu_count
from sluice_operator.api.scaling import AutoscalingSpec, AutoscalingTarget, Slo
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, is_being_deleted, of_kind
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.scaled import ScaledPool, ScaledService, Scaling, move_to
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.plan import ServicePlan
from sluice_operator.service.resolve.replicas import ReplicasOwner, replicas_owner, split_text
from sluice_operator.service.revisions.revision import revisions_of
from sluice_operator.service.rollout.gpu_budget import other_mode_gpus
from sluice_operator.service.rollout.mode_switch import Former
from sluice_operator.service.rollout.planned_rollout import PlannedPool

NOT_DECIDED = Check("Unknown", "NotDecidedYet", "The operator has not looked at the load yet.")
OF_A_POOL: Final = frozenset({"role", "replicas", "revisions", "configRef", "bootstrapPort"})
"""Fields of an EnginePool in which pools that are alike may differ. A port is open even if no
container names it."""


def scaled_service(observed: ServiceObserved, plan: ServicePlan) -> ScaledService | None:
    """The input of the autoscaler for a service; None: it scales nothing. While pools of a former
    mode serve, these are scaled."""
    spec, former_gpus = plan.spec, plan.former_gpus
    if spec is None or plan.paused:
        return None
    settings = replace(scaling_settings(spec), engines_move=engines_move(plan))
    if plan.former.is_served:
        budget = settings.gpu_budget
        if (spec := _former_spec(observed.children, plan.former)) is None:
            return None
        settings = replace(scaling_settings(spec), gpu_budget=budget)
        former_gpus = other_mode_gpus(observed, spec)
    texts = {pool.role: pool.accelerator.text for pool in plan.pools}
    scaled = {
        role: pool
        for role in spec.roles
        if replicas_owner(spec, role) is ReplicasOwner.OPERATOR
        and (pool := _scaled_pool(observed, spec, role, texts.get(role)))
    }
    if not scaled or scaled.keys() != settings.pools.keys():
        return None
    return ScaledService(
        live=observed.service,
        settings=settings,
        pools=scaled,
        routers=router_addresses(observed.pods),
        fixed_gpus={
            role: gpu_count(spec.pool(role).accelerator)
            for role in spec.roles
            if spec.pool(role).autoscaling is None
        },
        former_gpus=former_gpus,
    )


def _former_spec(children: Children, former: Former) -> InferenceServiceSpec | None:
    """The last spec with the `former` pools; None: their scaling is unknown."""
    roles = {pool["spec"]["role"] for pool in former.pools}
    return revisions_of(children).spec_with(roles)


def scaling_settings(spec: InferenceServiceSpec) -> ScalingSettings:
    """Scaling settings of the spec; `pools` has those with limits."""
    scaling, slo = spec.autoscaling or AutoscalingSpec(), spec.slo or Slo()
    target = scaling.target or AutoscalingTarget()
    return ScalingSettings(
        pools={role: limits for role in spec.roles if (limits := _limits(spec, role))},
        gpu_budget=scaling.gpu_budget,
        queue_seconds=_seconds(target.queue_milliseconds),
        prefill_queue=target.prefill_queue,
        decode_queue=target.decode_queue,
        ttft_seconds=_seconds(slo.ttft_milliseconds),
        itl_seconds=_seconds(slo.itl_milliseconds),
        percentile=float(slo.percentile),
        on_metrics_loss=scaling.on_metrics_loss,
    )


def scaling_check(service: Manifest, plan: ServicePlan, scaling: Scaling | None) -> Check | None:
    """The condition ScalingActive; None where every pool has a fixed number of engines. Until this
    operator process has looked, the condition of an earlier process holds, if the spec is
    unchanged."""
    spec = plan.spec
    assert spec is not None
    owners = {role: replicas_owner(spec, role) for role in spec.roles}
    internal = [role for role, owner in owners.items() if owner is ReplicasOwner.OPERATOR]
    if internal:
        if plan.paused:
            return Check("False", reasons.PAUSED, "spec.paused is true: nothing is scaled.")
        return scaling.check if scaling else _before(service) or _not_decided(plan)
    external = [role for role, owner in owners.items() if owner is ReplicasOwner.EXTERNAL]
    if external:
        text = f"Pool {', '.join(external)}: whoever writes the EnginePool's scale decides."
        return Check("Unknown", "ScaledFromOutside", text)
    if any(map(spec.limits_when_started, spec.roles)):
        text = "spec.replicas is 0, which stops every pool: none is scaled."
        return Check("False", "FixedReplicas", text)
    return None


def scaling_status(before: Manifest, plan: ServicePlan, scaling: Scaling | None) -> Manifest:
    """The part `scaling` of a status: the last decision, possibly of an earlier operator
    process."""
    spec = plan.spec
    if spec and not any(spec.pool(role).autoscaling for role in spec.roles):
        return {}
    if scaling is not None and scaling.status is not None:
        return {"scaling": scaling.status.to_json_dict()}
    return {"scaling": before["scaling"]} if "scaling" in before else {}


def _not_decided(plan: ServicePlan) -> Check:
    if plan.spec is None or not plan.spec.chooses_split or not plan.pools:
        return NOT_DECIDED
    split = split_text(plan.spec, plan.pools[0].accelerator.accelerator)
    return replace(NOT_DECIDED, message=f"{NOT_DECIDED.message[:-1]}; {split}.")


def _before(service: Manifest) -> Check | None:
    """Check that the status already has for the present generation; None without one."""
    condition = find(service.get("status") or {}, SCALING_ACTIVE)
    if not condition or condition["observedGeneration"] != service["metadata"].get("generation", 0):
        return None
    return Check(condition["status"], condition["reason"], condition["message"])


def _limits(spec: InferenceServiceSpec, role: Role) -> PoolLimits | None:
    pool = spec.pool(role)
    if pool.autoscaling is None:
        return None
    scaling, gpus = pool.autoscaling, gpu_count(pool.accelerator)
    return PoolLimits(scaling.min_replicas, scaling.max_replicas, gpus)


def _scaled_pool(
    observed: ServiceObserved, spec: InferenceServiceSpec, role: Role, accelerator: str | None
) -> ScaledPool | None:
    """The live EnginePool; None while there is none. `accelerator`: for people, where known."""
    name = f"{observed.service['metadata']['name']}-{role}"
    for pool in of_kind(observed.children, ENGINE_POOL):
        metadata = pool["metadata"]
        if metadata["name"] == name and not is_being_deleted(pool):
            if accelerator is None:
                accelerator = find_accelerator(spec.pool(role), observed.nodes).text
            return ScaledPool(
                name=name,
                uid=metadata["uid"],
                replicas=pool["spec"]["replicas"],
                generation=metadata.get("generation", 0),
                accelerator=accelerator,
                others=_others(pool),
                move=move_to(pool),
            )
    return None


def _others(pool: Manifest) -> frozenset[tuple[str, str]]:
    """Other owners of the replicas, and when each has written last."""
    names = managers_of(pool, "replicas") - {FIELD_MANAGER, REPLICAS_MANAGER}
    entries = pool["metadata"].get("managedFields") or ()
    times = ((entry["manager"], entry.get("time", "")) for entry in entries)
    return frozenset((manager, time) for manager, time in times if manager in names)


def router_addresses(pods: tuple[Manifest, ...]) -> tuple[str, ...]:
    """Addresses of routers' pods that run."""
    statuses = ((pod.get("status") or {}) for pod in pods)
    running = (status.get("podIP") for status in statuses if status.get("phase") == "Running")
    return tuple(sorted(address for address in running if address))


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def engines_move(plan: ServicePlan) -> bool:
    """Whether engines of both pools are alike, take roles, and no roll-out is under way."""
    pools = {pool.role: pool for pool in plan.pools}
    if pools.keys() != {Role.PREFILL, Role.DECODE} or plan.upgrade or plan.former.is_served:
        return False
    prefill, decode = pools[Role.PREFILL], pools[Role.DECODE]
    if any(len(pool.manifest["spec"]["revisions"]) > 1 for pool in (prefill, decode)):
        return False
    file = _file(prefill)
    return _takes_roles(file) and file == _file(decode) and _spec(prefill) == _spec(decode)


def _takes_roles(file: Manifest) -> bool:
    """Whether engines with this file accept another role by `POST /role`; repeats the engine's own
    rule."""
    backend = (file.get("kvTransfer") or {}).get("backend")
    return backend == "TCP" and file.get("tensorParallelSize", 1) == 1


def _file(pool: PlannedPool) -> Manifest:
    """A pool's engine file without parts that a role decides: the role itself, and the promised
    time between tokens, which only decode engines get."""
    file: Manifest = json.loads(pool.config_map["data"][ENGINE_FILE])
    ttft = (file.get("slo") or {}).get("ttftMilliseconds")
    return {k: v for k, v in file.items() if k not in ("role", "slo")} | {"slo": ttft}


def _spec(pool: PlannedPool) -> Manifest:
    return {key: value for key, value in pool.manifest["spec"].items() if key not in OF_A_POOL}
