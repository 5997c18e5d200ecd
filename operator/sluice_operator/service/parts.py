"""What each part of a service contributes to its status: its pools, and its routers.

Pure. Knows live objects, whether a plan wants them or they are only left in place. What is below
a pool it takes from the EnginePool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sluice_operator.api.status import PoolSummary
from sluice_operator.conditions import READY, Check, find
from sluice_operator.deployments import progress, shortfall
from sluice_operator.observed import Manifest
from sluice_operator.pod_checks import is_ready
from sluice_operator.pool.status import MODEL_AVAILABLE

Pools = Mapping[str, Manifest | None]
"""The live EnginePool of each role, if there is one."""

APPLYING: Final = Check("False", "Applying", "the new spec is being applied.")


def pool_summary(live: Manifest | None, desired: int, accelerator: str | None) -> Manifest:
    """One pool in numbers."""
    status = (live or {}).get("status") or {}
    ready = status.get("ready", 0)
    return PoolSummary(
        desired=desired,
        ready=ready,
        draining=status.get("draining", 0),
        summary=f"{ready}/{desired}",
        accelerator=accelerator,
    ).to_json_dict()


def pool_ready(role: str, live: Manifest | None, waiting: Check) -> Check:
    """Whether a pool has all its engines; `waiting`, as long as it does not say so itself."""
    check = lifted(role, live, READY) if is_reported(live) else None
    return check or prefixed(waiting, f"Pool {role}")


def is_reported(live: Manifest | None) -> bool:
    """Whether the status of an EnginePool is about its spec."""
    if live is None:
        return False
    seen = (live.get("status") or {}).get("observedGeneration")
    return bool(seen == live["metadata"].get("generation"))


def lifted(role: str, live: Mapping[str, Any] | None, kind: str) -> Check | None:
    """A condition of the pool of `role`, as one of its service."""
    found = find((live or {}).get("status"), kind)
    if found is None:
        return None
    return Check(found["status"], found["reason"], f"Pool {role}: {found['message']}")


def router_ready(
    desired: Manifest, live: Manifest | None, pods: Iterable[Manifest], waiting: Check
) -> Check:
    """Whether all routers answer; `waiting`, as long as the Deployment is not the desired one."""
    found, reached = tuple(pods), progress(desired, live)
    count = f"{sum(map(is_ready, found))} of {desired['spec']['replicas']} routers ready"
    if not reached.applied:
        return prefixed(waiting, count)
    if reached.complete:
        return Check("True", "AllReady", f"{count}.")
    return shortfall(reached, found, count)


def model_available(pools: Pools) -> Check:
    """Whether every pool has an engine that has loaded the model."""
    for role, live in pools.items():
        check = lifted(role, live, MODEL_AVAILABLE)
        if check is None:
            return Check("Unknown", "NotLoadedYet", "No engine has loaded the model yet.")
        if not check.is_true:
            return check
    return Check("True", "Loaded", "Every pool has an engine that has loaded the model.")


def prefixed(check: Check, what: str) -> Check:
    """`check`, said of `what`."""
    return Check(check.status, check.reason, f"{what}: {check.message}")
