"""How long pods have waited for something that may never come, on the operator's own clock.

Pure. Kubernetes gives a Deployment that was complete once no deadline, and its status does not show
pods that never leave. A pod that waits longer than its bound needs a person: messages name the pods
and a remedy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from sluice_operator.api.conditions import Check
from sluice_operator.conditions import reasons
from sluice_operator.conditions.pods import (
    IMAGE_REASONS,
    SCHEDULING_GATED,
    START_REASONS,
    UNSCHEDULABLE,
    is_draining,
    is_finished,
    is_gated,
    is_loading,
    is_ready,
    pod_condition,
)
from sluice_operator.kube.kinds import Manifest

GATED_SECONDS: Final = 3600
"""Patience with a pod that waits for its scheduling gates: queues are long."""
LEAVING_SECONDS: Final = 60
"""Patience with a pod that is still there when its grace period has ended."""
MOUNT_SECONDS: Final = 300
"""Patience with a pod whose volumes kubelet has not mounted: attaching a disk takes minutes."""
MAX_SHOWN: Final = 4
"""Pods that a message names."""
REMEDIES: Final = {
    UNSCHEDULABLE: "Add nodes with room, or ask for fewer or smaller engines",
    SCHEDULING_GATED: "Look at what should remove the gates, e.g. `kubectl get workloads`",
    reasons.REPLICA_FAILURE: "Raise the quota that refuses pods, or mend the webhook that does",
    **dict.fromkeys(IMAGE_REASONS, "Correct the image, or its pull secret"),
    **dict.fromkeys(START_REASONS, "Create the Secret or ConfigMap that is missing"),
}
"""Remedies for people, by reason."""


def with_remedy(updated: Check) -> str:
    """Why something is not complete, and what a person can do."""
    remedy = REMEDIES.get(updated.reason)
    return f"{updated.message.removesuffix('.')}. {remedy}." if remedy else updated.message


def late_pod(pods: Iterable[Manifest], bound_seconds: int, now: datetime) -> Manifest | None:
    """The first pod by name that has waited longer than its bound; a pod that loads its model does
    not wait."""
    late = (pod for pod, end in _ends(pods, bound_seconds) if end <= now)
    return min(late, key=lambda pod: str(pod["metadata"]["name"]), default=None)


def unmounted(pods: Iterable[Manifest], now: datetime) -> str:
    """The first pod by name whose volumes or network are not there in time, and where the cause is
    shown; empty where there is none. Kubelet reports the cause in events alone."""
    late = [pod for pod in pods if (end := _mounts_until(pod)) is not None and end <= now]
    name = min((str(pod["metadata"]["name"]) for pod in late), default="")
    look = f"`kubectl describe pod {name}`"
    text = f"the volumes of pod {name} are not mounted, or its network is not there: {look}"
    return text if name else ""


def not_leaving(pods: Iterable[Manifest], now: datetime) -> str:
    """The pods that are still there though their grace period has ended, with their nodes, and what
    a person can do; empty where there are none."""
    late = [pod for pod in pods if (end := _leaves_until(pod)) is not None and end <= now]
    if not late:
        return ""
    places = sorted(f"{pod['metadata']['name']} of node {_node(pod)}" for pod in late)
    more = f" and {len(places) - MAX_SHOWN} more" if len(places) > MAX_SHOWN else ""
    return (
        f"Pods that should have left hold their GPUs: {', '.join(places[:MAX_SHOWN])}{more}. Bring "
        "the node back; or, once it is off for good, `kubectl delete node` it, or `kubectl delete "
        "pod --force` them"
    )


def seconds_to_next(pods: Iterable[Manifest], bound_seconds: int, now: datetime) -> float | None:
    """Seconds until the next wait passes its bound, which no event announces; None where nothing
    waits."""
    there = tuple(pods)
    ends = [end for _, end in _ends(there, bound_seconds)]
    ends += [end for pod in there if (end := _leaves_until(pod)) is not None]
    ends += [end for pod in there if (end := _mounts_until(pod)) is not None]
    left = [(end - now).total_seconds() for end in ends if end > now]
    return min(left) + 1 if left else None


def _ends(pods: Iterable[Manifest], bound_seconds: int) -> Iterator[tuple[Manifest, datetime]]:
    """Each pod that waits, and the end of its bound."""
    for pod in pods:
        if is_ready(pod) or is_draining(pod) or is_finished(pod) or is_loading(pod):
            continue
        if since := _unready_since(pod):
            bound = max(bound_seconds, GATED_SECONDS) if is_gated(pod) else bound_seconds
            yield pod, _time(since) + timedelta(seconds=bound)


def _unready_since(pod: Manifest) -> str:
    """Time at which kubelet or scheduler last changed the pod's conditions, as Kubernetes writes
    it."""
    conditions = (pod_condition(pod, kind) for kind in ("Ready", "PodScheduled"))
    times = (condition.get("lastTransitionTime") for condition in conditions)
    made = pod["metadata"].get("creationTimestamp")
    return str(next((time for time in times if time), made) or "")


def _mounts_until(pod: Manifest) -> datetime | None:
    """When the volumes and network of a pod with a node should be there; None once they are."""
    starts = pod_condition(pod, "PodReadyToStartContainers")
    since = starts.get("lastTransitionTime")
    if starts.get("status") != "False" or not since or is_draining(pod) or is_finished(pod):
        return None
    return _time(since) + timedelta(seconds=MOUNT_SECONDS)


def _leaves_until(pod: Manifest) -> datetime | None:
    """When a pod that is being deleted should have gone: its deletionTimestamp has the grace period
    in it."""
    leaves = pod["metadata"].get("deletionTimestamp")
    return _time(leaves) + timedelta(seconds=LEAVING_SECONDS) if leaves else None


def _node(pod: Manifest) -> str:
    return str(pod["spec"].get("nodeName") or "none")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
