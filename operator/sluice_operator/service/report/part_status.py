"""Contribution of each part of a service to its status: its pools, and its routers.

Pure. Reads live objects, planned ones and others left in place. The state below a pool is read from
the EnginePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from sluice_contract.cluster.labels import Role

from sluice_operator.api.conditions import ADAPTERS_LOADED, MODEL_AVAILABLE, UPDATED, Check
from sluice_operator.api.status import PoolSummary
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import answering, find
from sluice_operator.conditions.deployments import (
    DeploymentProgress,
    given_up,
    progress,
    refused_for_long,
    shortfall,
)
from sluice_operator.conditions.pods import is_ready
from sluice_operator.kube.kinds import ENGINE_POOL, Kind, Manifest, of_kind
from sluice_operator.manifests.metadata import is_current
from sluice_operator.service.observe import Children
from sluice_operator.service.rollout.mode_switch import Former
from sluice_operator.service.rollout.planned_rollout import PlannedPool
from sluice_operator.service.rollout.revisions import engines_ready

Pools = Mapping[str, Manifest | None]
"""The live EnginePool of each role, if there is one."""

APPLYING: Final = Check("False", reasons.APPLYING, "the new spec is being applied.")

MISSING: Final = "Missing"
UNWRITTEN: Final = frozenset({MISSING, reasons.APPLYING})
"""Reasons of parts that serve nobody because they were not written."""


class StatusPart(NamedTuple):
    """The state of one part of a service."""

    ready: Check
    """Whether the part serves."""
    updated: Check
    """Whether the part is as the spec asks for."""
    given_up: bool = False
    """Whether a person has to act on `updated`; never set for a pool, whose own status says it."""


def live_child(children: Children, kind: Kind, desired: Manifest) -> Manifest | None:
    """The live object of the name of a desired one."""
    name = desired["metadata"]["name"]
    items = of_kind(children, kind)
    return next((item for item in items if item["metadata"]["name"] == name), None)


def current_pool(children: Children, pool: PlannedPool) -> Manifest | None:
    """The live pool, if it is as planned."""
    live = live_child(children, ENGINE_POOL, pool.manifest)
    return live if is_current(pool.manifest, live) else None


def serves(checks: Iterable[Check], obstacle: Check | None) -> Check:
    """Whether every necessary part answers. `obstacle`: why nothing is written, if so; it replaces
    the reason of a part that waits to be written."""
    all_checks = tuple(checks)
    idle = next((check for check in all_checks if not check.is_true), None)
    if idle is not None:
        return obstacle if obstacle and idle.reason in UNWRITTEN else idle
    asleep = next((check for check in all_checks if check.reason == reasons.SCALED_TO_ZERO), None)
    text = "Every pool has an engine that answers, and so do the routers."
    return asleep or Check("True", reasons.SERVING, text)


def up_to_date(parts: Iterable[StatusPart]) -> Check:
    """Whether every part is what the spec asks for. A part that does not serve is reported
    first."""
    checks = [part.updated for part in sorted(parts, key=lambda part: part.ready.is_true)]
    done = Check(
        "True", reasons.ALL_READY, "Every pool and the routers are as the spec asks, and ready."
    )
    behind = (check for check in checks if not check.is_true)
    special = (check for check in checks if check.reason != reasons.ALL_READY)
    return next(behind, None) or next(special, done)


def pool_summary(live: Manifest | None, desired: int, accelerator: str | None) -> Manifest:
    """One pool in numbers."""
    status = (live or {}).get("status") or {}
    ready = status.get("readyReplicas", 0)
    return PoolSummary(
        desired_replicas=desired,
        replicas=status.get("replicas", 0),
        ready_replicas=ready,
        updated_replicas=status.get("updatedReplicas", 0),
        draining_replicas=status.get("drainingReplicas", 0),
        summary=f"{ready}/{desired}",
        accelerator=accelerator,
    ).to_json_dict()


def former_summaries(former: Former) -> dict[Role, Manifest]:
    """The pools of the former mode in numbers, by role; empty once they no longer serve."""
    if not former.is_served:
        return {}
    return {
        role: pool_summary(pool, pool["spec"]["replicas"], None)
        for role in Role
        for pool in former.pools
        if pool["spec"]["role"] == role
    }


def engines_text(pools: Mapping[Role, Manifest]) -> str:
    """The column ENGINES: `3/3`, or `P 2/2 D 4/4`."""
    if len(pools) == 1:
        return "".join(summary["summary"] for summary in pools.values())
    return " ".join(f"{role.value[0].upper()} {pool['summary']}" for role, pool in pools.items())


def pool_part(role: str, live: Manifest | None, desired: int, updated: Check) -> StatusPart:
    """The state of a pool with `desired` engines."""
    ready = engines_ready(live)
    return StatusPart(answering(ready, desired, f"engines of pool {role}", updated), updated)


def pool_updated(role: str, live: Manifest | None, waiting: Check) -> Check:
    """Whether a pool is as the spec asks for, by the pool's status; `waiting` without a current
    status."""
    reported = lifted(role, live, UPDATED) if is_reported(live) else None
    return reported or prefixed(waiting, f"Pool {role}")


def ready_of(role: str) -> str:
    """The condition in which a service says whether a pool serves."""
    return f"{role.capitalize()}Ready"


def is_reported(live: Manifest | None) -> bool:
    """Whether the status of an EnginePool is about its spec."""
    if live is None:
        return False
    seen = (live.get("status") or {}).get("observedGeneration")
    return bool(seen == live["metadata"].get("generation"))


def lifted(role: str, live: Mapping[str, Any] | None, kind: str) -> Check | None:
    """A condition of the pool of `role`, as a check of its service."""
    condition = find((live or {}).get("status"), kind)
    if condition is None:
        return None
    return Check(condition["status"], condition["reason"], f"Pool {role}: {condition['message']}")


def router_part(
    desired: Manifest,
    live: Manifest | None,
    pods: Iterable[Manifest],
    waiting: Check,
    now: datetime,
) -> StatusPart:
    """The state of the routers. `waiting`: the check while the Deployment is not the desired
    one."""
    router_pods = tuple(pods)
    reached = progress(desired, live)
    updated = _router_updated(desired, reached, router_pods, waiting, now)
    ready = answering(*_ready_and_desired(desired, router_pods), "routers", updated)
    troubled = not updated.is_true and updated.reason not in reasons.HEALTHY
    hopeless = given_up(reached, router_pods, now) or refused_for_long(reached, router_pods, now)
    return StatusPart(ready, updated, troubled and hopeless)


def _router_updated(
    desired: Manifest,
    reached: DeploymentProgress,
    pods: tuple[Manifest, ...],
    waiting: Check,
    now: datetime,
) -> Check:
    ready, replicas = _ready_and_desired(desired, pods)
    count = f"{ready} of {replicas} routers ready"
    if not reached.applied:
        return prefixed(waiting, count)
    if reached.complete and ready >= replicas:
        return Check("True", reasons.ALL_READY, f"{count}.")
    return shortfall(reached, pods, count, now)


def _ready_and_desired(desired: Manifest, pods: Iterable[Manifest]) -> tuple[int, int]:
    return sum(map(is_ready, pods)), desired["spec"]["replicas"]


def model_available(pools: Pools) -> Check:
    """Whether every pool has an engine that has loaded the model."""
    for role, live in pools.items():
        check = lifted(role, live, MODEL_AVAILABLE)
        if check is None:
            return Check("Unknown", "NotLoadedYet", "No engine has loaded the model yet.")
        if not check.is_true:
            return check
    return Check("True", "Loaded", "Every pool has an engine that has loaded the model.")


def adapters_loaded(pools: Pools) -> Check:
    """Whether the engines of every pool have the adapters that they should."""
    for role, live in pools.items():
        check = lifted(role, live, ADAPTERS_LOADED) if is_reported(live) else None
        if check is None or not check.is_true:
            return check or Check("Unknown", "NotReportedYet", f"Pool {role} has not reported yet.")
    return Check("True", "Loaded", "All ready engines have the adapters that are asked for.")


def prefixed(check: Check, what: str) -> Check:
    """`check` with `what` in front of its message."""
    return Check(check.status, check.reason, f"{what}: {check.message}")
