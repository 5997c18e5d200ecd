"""The pods of a pool, counted as the autoscaler needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from sluice_operator.conditions.pods import (
    is_draining,
    is_finished,
    is_queued,
    is_ready,
    is_unschedulable,
    missing_claim,
    queue_of,
)
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import ENGINE, note_of
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.scaled import DELETION_COST, MOVED, VICTIM, PoolPods

LONGEST_SECONDS: Final = 1800.0
"""Longest plausible start of an engine in seconds, model download included."""


def pool_pods(observed: PoolObserved) -> PoolPods:
    """All pods of the pool, of every revision, and what is asked for."""
    spec, metadata = observed.pool["spec"], observed.pool["metadata"]
    pods = [pod for pod in observed.pods if not is_finished(pod)]
    live = [pod for pod in pods if not is_draining(pod)]
    ready = sum(map(is_ready, live))
    unschedulable = sum(map(is_unschedulable, live))
    start = median_start(live)
    placed = sum((pod.get("spec") or {}).get("nodeName") is not None for pod in live)
    return PoolPods(
        replicas=spec.get("replicas", 1),
        generation=metadata.get("generation", 0),
        ready=ready,
        starting=max(0, placed - ready),
        unschedulable=unschedulable,
        claimless=tuple(
            datetime.fromisoformat(made)
            for pod in live
            if missing_claim([pod]) and (made := pod["metadata"].get("creationTimestamp"))
        ),
        queue=queue_of(live),
        queued=sum(map(is_queued, live)),
        live=len(live),
        draining=len(pods) - len(live),
        start_seconds=start.seconds,
        start_phases=start.phases,
        start_pod=start.pod,
        planned=sum(share["replicas"] for share in spec.get("revisions") or ())
        + spec.get("podSurge", 0),
        names=frozenset(pod["metadata"]["name"] for pod in live if not is_unschedulable(pod)),
        victims=frozenset(
            pod["metadata"]["name"] for pod in live if note_of(pod, DELETION_COST) == VICTIM
        ),
    )


class PodStart(NamedTuple):
    """The start of an engine's pod, from scheduled to ready."""

    seconds: float | None = None
    phases: Mapping[str, float] = MappingProxyType({})
    """Seconds by `POD_PHASES`, as far as the pod's status has their times."""
    pod: str = ""
    """Name of the pod."""


def median_start(pods: Iterable[Manifest]) -> PodStart:
    """The start with the median duration. A pod that was ready before does not count, as far as
    restarts or an implausibly long time tell."""
    starts = (start for pod in filter(is_ready, pods) if (start := _start(pod)).seconds)
    known = sorted(starts, key=lambda start: start.seconds or 0.0)
    return known[(len(known) - 1) // 2] if known else PodStart()


def _start(pod: Manifest) -> PodStart:
    statuses = pod["status"].get("containerStatuses") or ()
    if note_of(pod, MOVED):
        return PodStart()  # ready again since it took its new role
    if any(status.get("restartCount") for status in statuses):
        return PodStart()
    times = {
        condition["type"]: datetime.fromisoformat(condition["lastTransitionTime"])
        for condition in pod["status"]["conditions"]
        if condition["status"] == "True" and condition.get("lastTransitionTime")
    }
    for status in statuses:
        running = (status.get("state") or {}).get("running") or {}
        if status.get("name") == ENGINE and running.get("startedAt"):
            times["Running"] = datetime.fromisoformat(running["startedAt"])

    def between(first: str, last: str) -> float | None:
        if first not in times or last not in times:
            return None
        return (times[last] - times[first]).total_seconds()

    seconds = between("PodScheduled", "Ready")
    if seconds is None or not 0 < seconds < LONGEST_SECONDS:
        return PodStart()
    phases = {
        "model": between("PodScheduled", "Initialized"),
        "image": between("Initialized", "Running"),
    }
    known = {name: took for name, took in phases.items() if took is not None}
    return PodStart(seconds, known, pod["metadata"]["name"])
