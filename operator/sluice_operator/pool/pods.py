"""The pods of a pool, counted as the autoscaler needs them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from sluice_operator.conditions.pods import is_draining, is_finished, is_ready, is_unschedulable
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import note_of
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.scaled import DELETION_COST, VICTIM, PoolPods


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
    """From its place to ready, of the engine that was fastest: a pod may have been ready before."""
    found = []
    for pod in filter(is_ready, pods):
        since = {
            condition["type"]: datetime.fromisoformat(condition["lastTransitionTime"])
            for condition in pod["status"]["conditions"]
            if condition["status"] == "True" and condition.get("lastTransitionTime")
        }
        if "Ready" in since and "PodScheduled" in since:
            found.append((since["Ready"] - since["PodScheduled"]).total_seconds())
    return min((seconds for seconds in found if seconds > 0), default=None)
