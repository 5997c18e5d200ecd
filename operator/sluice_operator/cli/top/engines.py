"""The engines of a service for people: what each one does, and why it goes.

Pure. Joins pods with the rows of a router's load; either may be missing, as rights may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, NamedTuple

from sluice_contract.cluster.labels import ROUTER_ROLE, Role
from sluice_contract.wire.load import EngineLoad, LoadReport

from sluice_operator.cli.top.snapshot import Key, Snapshot, key_of, role_of
from sluice_operator.conditions.pods import (
    failure_of,
    is_draining,
    is_finished,
    is_loading,
    is_ready,
)
from sluice_operator.kube.kinds import Manifest, is_being_deleted
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import note_of
from sluice_operator.scaled import DELETION_COST, MOVED, VICTIM, move_to

ROLES: Final = (Role.PREFILL, Role.DECODE, Role.MIXED)
"""Roles in the order in which a request passes them."""
DISRUPTION: Final = "DisruptionTarget"
"""Condition of a pod that Kubernetes evicts or preempts."""

Level = Literal["well", "busy", "bad"]


class EngineRow(NamedTuple):
    """One engine."""

    name: str
    state: str
    level: Level
    """Severity of `state`: the engine serves, is on its way, or needs a look."""
    report: LoadReport | None


class PoolRow(NamedTuple):
    """The engines of one role, with what the service's status says of them."""

    role: Role
    name: str
    """Name of the EnginePool."""
    summary: Manifest
    """`status.pools` of the service; empty for a role that the spec no longer has."""
    pool: Manifest | None
    """The EnginePool, where it could be read."""
    engines: tuple[EngineRow, ...]


class _Facts(NamedTuple):
    """Inputs of the states of a pool's engines."""

    service: Manifest
    pool: Manifest | None
    now: datetime
    is_loaded: bool
    """Whether a router has reported its engines."""

    @property
    def current(self) -> str | None:
        """The revision that the spec asks for; None: unknown."""
        revisions = ((self.pool or {}).get("status") or {}).get("revisions") or ()
        return next((revision["name"] for revision in revisions if revision["current"]), None)


def pool_rows(service: Manifest, snapshot: Snapshot) -> tuple[PoolRow, ...]:
    """Every pool that the status names, or that has engines."""
    key = key_of(service)
    summaries = (service.get("status") or {}).get("pools") or {}
    pools = {pool["spec"].get("role"): pool for pool in snapshot.pools if key_of(pool) == key}
    of_router = snapshot.loads.get(key)
    rows = []
    for role in ROLES:
        facts = _Facts(service, pools.get(role), snapshot.now, of_router is not None)
        pods = [pod for pod in _pods(snapshot, key) if role_of(pod) == role]
        loads = [] if of_router is None else _loads(of_router.load.engines, role, snapshot, key)
        if role in summaries or role in pools or pods or loads:
            name, summary = f"{key[1]}-{role}", summaries.get(role) or {}
            rows.append(PoolRow(role, name, summary, facts.pool, _engines(pods, loads, facts)))
    return tuple(rows)


def routers(service: Manifest, snapshot: Snapshot) -> tuple[int, int]:
    """How many routers are ready, and how many there are."""
    pods = [pod for pod in _pods(snapshot, key_of(service)) if role_of(pod) == ROUTER_ROLE]
    return sum(map(is_ready, pods)), len(pods)


def _pods(snapshot: Snapshot, key: Key) -> list[Manifest]:
    return [pod for pod in snapshot.pods if key_of(pod) == key and not is_finished(pod)]


def _loads(
    engines: Iterable[EngineLoad], role: Role, snapshot: Snapshot, key: Key
) -> list[EngineLoad]:
    """Rows of a router that are of a role: by the pod's label, else as the engine reports."""
    roles = {pod["metadata"]["name"]: role_of(pod) for pod in _pods(snapshot, key)}

    def is_of_role(engine: EngineLoad) -> bool:
        reported = engine.report.role if engine.report is not None else None
        return roles.get(engine.name, reported) == role

    return [engine for engine in engines if is_of_role(engine)]


def _engines(
    pods: Iterable[Manifest], loads: Iterable[EngineLoad], facts: _Facts
) -> tuple[EngineRow, ...]:
    by_pod = {str(pod["metadata"]["name"]): pod for pod in pods}
    by_load = {load.name: load for load in loads}
    rows = []
    for name in sorted(by_pod.keys() | by_load.keys()):
        pod, load = by_pod.get(name), by_load.get(name)
        state, level = _state(pod, load, facts)
        rows.append(EngineRow(name, state, level, load.report if load is not None else None))
    return tuple(rows)


def _state(pod: Manifest | None, load: EngineLoad | None, facts: _Facts) -> tuple[str, Level]:
    if pod is None:
        assert load is not None
        return load.condition, "well" if load.condition == "ready" else "busy"
    if is_draining(pod):
        return f"draining{_left(pod, facts.now)}: {_why(pod, facts)}", "busy"
    if load is not None and load.condition == "draining":
        move = move_to(facts.pool) if facts.pool is not None and note_of(pod, MOVED) else None
        why = f"moves here from pool {move.source}" if move is not None else "was told to"
        return f"draining: {why}", "busy"
    if failure := failure_of(pod):
        return failure.reason, "bad"
    if not is_ready(pod):
        return "loads its model" if is_loading(pod) else "starting", "busy"
    if load is not None and load.condition != "ready":
        return f"{load.condition} at the router", "bad"
    if load is None and facts.is_loaded:
        return "not yet at the router", "busy"
    if facts.current is not None and revision_of(pod) != facts.current:
        return "ready, former", "well"
    return "ready", "well"


def _why(pod: Manifest, facts: _Facts) -> str:
    """Why a pod is being deleted; the first that is known."""
    status, service = pod.get("status") or {}, facts.service
    conditions = status.get("conditions") or ()
    for condition in conditions:
        if condition["type"] == DISRUPTION and condition["status"] == "True":
            return str(condition.get("reason") or DISRUPTION)
    if is_being_deleted(service):
        return "service deleted"
    if facts.pool is not None and is_being_deleted(facts.pool):
        return "pool removed"
    if facts.current is not None and revision_of(pod) != facts.current:
        return "former revision"
    if note_of(pod, DELETION_COST) == VICTIM:
        reason = ((service.get("status") or {}).get("scaling") or {}).get("reason")
        return f"scaled down ({reason})" if reason else "scaled down"
    return "scaled down or deleted"


def _left(pod: Manifest, now: datetime) -> str:
    """Text of the time until kubelet kills the pod, even if it still answers requests."""
    end = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"])
    seconds = math.ceil((end - now).total_seconds())
    return f", {seconds} s left" if seconds > 0 else ""
