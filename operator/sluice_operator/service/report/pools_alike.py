"""Whether an engine of one pool can continue in the other one. Pure.

A moved engine keeps its pod, settings and image; only its role changes. So the pools must be alike,
and made by this release: engines of another release may not know a change of roles.
"""

from __future__ import annotations

import json
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.service.plan import ServicePlan
from sluice_operator.service.rollout.planned_rollout import PlannedPool

OF_A_POOL: Final = frozenset({"role", "replicas", "revisions", "configRef", "bootstrapPort"})
"""Fields of an EnginePool in which pools that are alike may differ. A port is open even if no
container names it."""


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
