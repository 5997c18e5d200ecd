"""The pods of a pool, counted as the autoscaler needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from statistics import median_low
from typing import Final

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
from sluice_operator.manifests.metadata import note_of
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
        start_seconds=_start_seconds(live),
        planned=sum(share["replicas"] for share in spec.get("revisions") or ())
        + spec.get("podSurge", 0),
        names=frozenset(pod["metadata"]["name"] for pod in live if not is_unschedulable(pod)),
        victims=frozenset(
            pod["metadata"]["name"] for pod in live if note_of(pod, DELETION_COST) == VICTIM
        ),
    )


def _start_seconds(pods: Iterable[Manifest]) -> float | None:
    """Median seconds of an engine's start, from scheduled to ready. A pod that was ready before
    does not count, as far as restarts or an implausibly long time tell."""
    starts = []
    for pod in filter(is_ready, pods):
        status = pod["status"]
        if note_of(pod, MOVED):
            continue  # ready again since it took its new role
        if any(each.get("restartCount") for each in status.get("containerStatuses") or ()):
            continue
        since = {
            condition["type"]: datetime.fromisoformat(condition["lastTransitionTime"])
            for condition in status["conditions"]
            if condition["status"] == "True" and condition.get("lastTransitionTime")
        }
        if "Ready" in since and "PodScheduled" in since:
            starts.append((since["Ready"] - since["PodScheduled"]).total_seconds())
    return median_low(known) if (known := [s for s in starts if 0 < s < LONGEST_SECONDS]) else None
