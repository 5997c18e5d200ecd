"""What a refused spec leaves in place, and how that is doing.

Pure. There is no plan to compare with, so it looks at what is there: the pools and routers that
the service controls. What only the plan of the applied generation knew is kept from its status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sluice_contract import labels
from sluice_contract.labels import ROUTER_ROLE

from sluice_operator.api.conditions import MODEL_AVAILABLE, ROUTER_READY, Check
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import (
    DEPLOYMENT,
    ENGINE_POOL,
    SERVICE,
    Manifest,
    controller_uid,
    of_kind,
)
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.pairs import paired
from sluice_operator.service.parts import (
    Part,
    Pools,
    model_available,
    pool_part,
    pool_summary,
    pool_updated,
    ready_of,
    router_part,
)

MISSING: Final = Check("False", "Missing", "gone, and not made again while the spec is refused.")
WAITING: Final = Check("False", reasons.APPLYING, "it has not said yet how it is doing.")


def facts_in_place(observed: ServiceObserved) -> Manifest:
    """What the status says besides conditions."""
    before = _before(observed)
    known = before.get("pools") or {}
    pools = {role: _summary(live, known.get(role) or {}) for role, live in _pools(observed).items()}
    if not pools:
        return _kept(before, "mode", "url")
    return _kept(before, "mode", "url", "resolved") | {"pools": pools}


def parts_in_place(observed: ServiceObserved) -> dict[str, Part]:
    """How the parts are doing, by the condition that says so."""
    parts = {ready_of(role): _pool(role, live) for role, live in _pools(observed).items()}
    if router := _router(observed):
        parts[ROUTER_READY] = router_part(router, router, observed.pods, WAITING)
    elif "appliedGeneration" in _before(observed):
        gone = Check("False", MISSING.reason, f"Routers: {MISSING.message}")
        parts[ROUTER_READY] = Part(gone, gone)
    return parts


def paired_in_place(observed: ServiceObserved) -> Check:
    """Whether engines of the pools work together."""
    pools = (pool for pool in _pools(observed).values() if pool is not None)
    return paired(pools, observed.children, WAITING)


def other_checks_in_place(observed: ServiceObserved, kept: tuple[str, ...]) -> dict[str, Check]:
    """Further conditions; `kept`: those that only a plan can judge stay as they were."""
    pools, before = _pools(observed), _before(observed)
    checks = {MODEL_AVAILABLE: model_available(pools)} if pools else {}
    told = ((kind, find(before, kind)) for kind in kept)
    return checks | {kind: _check(found) for kind, found in told if found}


def front_in_place(observed: ServiceObserved) -> Check:
    """Whether there is the Service of our own at which the routers are found."""
    name = observed.service["metadata"]["name"]
    for item in of_kind(observed.children, SERVICE):
        if item["metadata"]["name"] == name and _is_ours(observed, item):
            return Check("True", reasons.SERVING, f"There is the Service {name}.")
    return Check("False", MISSING.reason, f"Service {name}: not there, and not made as things are.")


def still_in_use(observed: ServiceObserved, applied: int | None) -> str:
    """Which generation's settings a refusal has left as they were, if another's."""
    if applied is None or applied == observed.service["metadata"].get("generation", 0):
        return ""
    statuses = ((live or {}).get("status") or {} for live in _pools(observed).values())
    serves = any(status.get("ready") for status in statuses)
    verb = "keep serving" if serves else "stay in place"
    return f"; the settings of generation {applied} {verb}"


def _kept(before: Manifest, *keys: str) -> Manifest:
    return {key: before[key] for key in keys if key in before}


def _before(observed: ServiceObserved) -> Manifest:
    found: Manifest = observed.service.get("status") or {}
    return found


def _pools(observed: ServiceObserved) -> Pools:
    """By role; None for one that was made for the applied generation and is gone."""
    before = _before(observed)
    made = before.get("pools") or {} if "appliedGeneration" in before else {}
    known: dict[str, Manifest | None] = dict.fromkeys(made)
    return known | {
        pool["spec"]["role"]: pool
        for pool in of_kind(observed.children, ENGINE_POOL)
        if _is_ours(observed, pool)
    }


def _router(observed: ServiceObserved) -> Manifest | None:
    for item in of_kind(observed.children, DEPLOYMENT):
        role = (item["metadata"].get("labels") or {}).get(labels.ROLE)
        if role == ROUTER_ROLE and _is_ours(observed, item):
            return item
    return None


def _is_ours(observed: ServiceObserved, child: Manifest) -> bool:
    uid: str = observed.service["metadata"]["uid"]
    return controller_uid(child) == uid


def _pool(role: str, live: Manifest | None) -> Part:
    updated = pool_updated(role, live, WAITING if live else MISSING)
    return pool_part(role, live, live["spec"].get("replicas", 1) if live else 1, updated)


def _summary(live: Manifest | None, known: Mapping[str, Any]) -> Manifest:
    desired = live["spec"].get("replicas", 1) if live else known["desired"]
    return pool_summary(live, desired, known.get("accelerator"))


def _check(condition: Manifest) -> Check:
    return Check(condition["status"], condition["reason"], condition["message"])
