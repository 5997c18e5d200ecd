"""Engines of a canary that end, or lose readiness, by their pods: reason enough without statistics.

Pure. Pods that are being deleted, and their successors, do not count: nodes drain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sluice_operator.conditions.pods import (
    failure_of,
    is_draining,
    is_finished,
    is_ready,
    pod_condition,
)
from sluice_operator.kube.kinds import Manifest

TWICE: Final = 2


class PodSeen(NamedTuple):
    """One engine's pod since a step began."""

    restarts: int = 0
    """Restarts of its containers before."""
    losses: int = 0
    """How often it was ready no longer."""
    ready_since: str = ""
    """Time since which it is ready, as Kubernetes writes it; empty while it is not."""


def pods_seen(before: Mapping[str, PodSeen] | None, pods: Iterable[Manifest]) -> dict[str, PodSeen]:
    """The pods with what their statuses show now. `before`: None where a step begins, so that
    earlier restarts do not count; those of pods that come later do."""
    seen = {}
    for pod in pods:
        if is_draining(pod) or is_finished(pod):
            continue
        name = pod["metadata"]["name"]
        last = PodSeen(_restarts(pod)) if before is None else before.get(name, PodSeen())
        ready = pod_condition(pod, "Ready").get("lastTransitionTime", "") if is_ready(pod) else ""
        is_lost = last.ready_since not in ("", ready)
        seen[name] = PodSeen(last.restarts, last.losses + is_lost, ready)
    return seen


def often_ended(seen: Mapping[str, PodSeen], pods: Iterable[Manifest]) -> str:
    """Text about the first pod that has ended, or lost readiness, twice; empty: none has."""
    for pod in pods:
        name = pod["metadata"]["name"]
        if (last := seen.get(name)) is None:
            continue
        failure = failure_of(pod)
        why = f" ({failure.reason}: {failure.message})" if failure else ""
        if (ends := _restarts(pod) - last.restarts) >= TWICE:
            return f"pod {name} has ended {ends} times{why}"
        if last.losses >= TWICE:
            return f"pod {name} has lost readiness {last.losses} times{why}"
    return ""


def _restarts(pod: Manifest) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(status.get("restartCount", 0) for status in statuses)
