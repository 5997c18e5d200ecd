"""The progress of a Deployment, from its status, and what holds it up, from its pods too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sluice_operator.api.conditions import Check
from sluice_operator.clock import sooner
from sluice_operator.conditions import reasons
from sluice_operator.conditions.pods import (
    SCHEDULING_GATED,
    first_failure,
    has_left_queue_since,
    is_draining,
    is_gated,
    is_loading,
    is_ready,
    missing_claim,
)
from sluice_operator.conditions.waits import (
    late_pod,
    seconds_to_next,
    unmounted,
)
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import is_current
from sluice_operator.probes.refused_pods import REFUSED_SECONDS

DEADLINE_SECONDS: Final = 600
"""Kubernetes' own deadline of a Deployment."""


@dataclass(frozen=True)
class DeploymentProgress:
    """A Deployment's progress towards what is desired of it."""

    applied: bool
    """The live object was made from the desired one, and its controller has seen that."""
    complete: bool
    """Every replica is of the newest template and available, and no other is left."""
    deadline_exceeded: bool
    failure: str | None
    """Why no pod can even be created, e.g. a quota."""
    exceeded_since: str = ""
    """When the deadline passed, as Kubernetes writes it."""
    failing_since: str = ""
    """Time since which pods cannot be created, as Kubernetes writes it; empty while they can."""
    bound_seconds: int = 0
    """Seconds of the deadline. The operator also applies them, by its own clock, to a Deployment
    that was complete once; Kubernetes does not."""


def shortfall(
    reached: DeploymentProgress,
    pods: Iterable[Manifest],
    count: str,
    now: datetime,
    reason: str = reasons.STARTING,
    rest: str = "the others are starting",
) -> Check:
    """Why a Deployment that was applied is not complete: its pods' failures, its controller's
    message, or what the `rest` does (`reason`). `count` says how many there are."""
    current = tuple(pods)
    failure, is_late = first_failure(current), _is_late(reached, current)
    late = late_pod(current, reached.bound_seconds, now)
    is_gated_long = late is not None and is_gated(late)
    if failure and (is_gated_long or not (is_late and failure.reason == SCHEDULING_GATED)):
        return Check("False", failure.reason, f"{count}; {failure}")
    if reached.failure:
        return Check("False", reasons.REPLICA_FAILURE, f"{count}; {reached.failure}")
    if volumes := unmounted(current, now):
        return Check("False", reasons.VOLUMES_NOT_MOUNTED, f"{count}; {volumes}.")
    waits = f" {claim}" if (claim := missing_claim(current)) else ""
    if is_late or late is not None:
        name = f": pod {late['metadata']['name']}" if late is not None and not waits else ""
        text = f"{count}; no progress within the deadline{name}.{waits}"
        return Check("False", reasons.PROGRESS_DEADLINE_EXCEEDED, text)
    return Check("False", reason, f"{count}; {rest}.{waits}")


def given_up(reached: DeploymentProgress, pods: Iterable[Manifest], now: datetime) -> bool:
    """Whether a Deployment that is not complete needs a person: waiting does not cure a pod's
    failure, or the deadline has passed, by Kubernetes' clock or by ours."""
    current = tuple(pods)
    failure = first_failure(current)
    lasting = failure is not None and failure.lasting
    waits = late_pod(current, reached.bound_seconds, now) is not None
    return lasting or (reached.applied and (waits or _is_late(reached, current)))


def seconds_to_bound(
    reached: DeploymentProgress, pods: Iterable[Manifest], now: datetime
) -> float | None:
    """Seconds until pods have waited too long, or were refused for too long, which no event
    announces."""
    waits = seconds_to_next(pods, reached.bound_seconds, now)
    return sooner(waits, refused_again_seconds(reached, now))


def refused_for_long(
    reached: DeploymentProgress | None, pods: Iterable[Manifest], now: datetime
) -> bool:
    """Whether the API server has refused pods of a Deployment for `REFUSED_SECONDS`, as by a quota.
    Not while pods of any revision drain: these may hold what the refused pods need."""
    return _patience_seconds(reached, now) == 0.0 and not any(map(is_draining, pods))


def refused_again_seconds(reached: DeploymentProgress | None, now: datetime) -> float | None:
    """Seconds until `refused_for_long`, which no event announces; None: it has passed, or no pod is
    refused."""
    return _patience_seconds(reached, now) or None


def _patience_seconds(reached: DeploymentProgress | None, now: datetime) -> float | None:
    if reached is None or not reached.failure or not reached.failing_since:
        return None
    passed = (now - datetime.fromisoformat(reached.failing_since)).total_seconds()
    return min(REFUSED_SECONDS, max(0.0, REFUSED_SECONDS - passed))


def _is_late(reached: DeploymentProgress, pods: Iterable[Manifest]) -> bool:
    """Whether the deadline has passed and counts. It does not count if all unready pods load their
    model, wait in a queue, or have just left one: a Deployment does not see that progress."""
    unready = [pod for pod in pods if not is_ready(pod) and not is_draining(pod)]
    since = reached.exceeded_since
    waits = bool(unready) and all(is_gated(pod) or makes_progress(pod, since) for pod in unready)
    return reached.deadline_exceeded and not waits


def makes_progress(pod: Manifest, exceeded_since: str) -> bool:
    """Whether a pod makes progress that its Deployment does not see. Either its engine loads its
    model, or the pod is starting and left its queue after the deadline passed
    (`exceeded_since`)."""
    return is_loading(pod) or (exceeded_since != "" and has_left_queue_since(pod, exceeded_since))


def exceeded_since(live: Manifest) -> str:
    """When a Deployment's deadline passed, as Kubernetes writes it; empty where it has not."""
    moving = _condition(live.get("status") or {}, "Progressing")
    is_exceeded = moving.get("reason") == reasons.PROGRESS_DEADLINE_EXCEEDED
    return str(moving.get("lastTransitionTime", "")) if is_exceeded else ""


def progress(desired: Manifest, live: Manifest | None) -> DeploymentProgress:
    """The progress of `live` towards `desired`; both stamped."""
    if live is None or not is_current(desired, live):
        return DeploymentProgress(
            applied=False, complete=False, deadline_exceeded=False, failure=None
        )
    status = live.get("status") or {}
    seen = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    replicas = desired["spec"]["replicas"]
    counts = [status.get(k, 0) for k in ("replicas", "updatedReplicas", "availableReplicas")]
    failure, moving = _condition(status, "ReplicaFailure"), _condition(status, "Progressing")
    return DeploymentProgress(
        applied=seen,
        complete=seen and all(count == replicas for count in counts),
        deadline_exceeded=seen and moving.get("reason") == reasons.PROGRESS_DEADLINE_EXCEEDED,
        failure=failure.get("message") if failure.get("status") == "True" else None,
        exceeded_since=exceeded_since(live),
        failing_since=failure.get("lastTransitionTime", "")
        if failure.get("status") == "True"
        else "",
        bound_seconds=desired["spec"].get("progressDeadlineSeconds", DEADLINE_SECONDS),
    )


def has_stopped(live: Manifest, waiting: int) -> bool:
    """Whether a Deployment's controller has given up: its deadline has passed (see
    `has_passed_deadline`), or its pods are refused."""
    failure = _condition(live.get("status") or {}, "ReplicaFailure")
    return has_passed_deadline(live, waiting) or failure.get("status") == "True"


def has_passed_deadline(live: Manifest, waiting: int) -> bool:
    """Whether a Deployment's controller has said that its deadline has passed. The deadline does
    not count while all pods that are not ready load their model or wait in a queue (`waiting`)."""
    status = live.get("status") or {}
    moving = _condition(status, "Progressing")
    unready = status.get("replicas", 0) - status.get("readyReplicas", 0)
    waits = 0 < waiting >= unready
    return moving.get("reason") == reasons.PROGRESS_DEADLINE_EXCEEDED and not waits


def _condition(status: Manifest, kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})
