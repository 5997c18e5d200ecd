"""The progress of a Deployment, from its status, and what holds it up, from its pods too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sluice_operator.api.conditions import Check
from sluice_operator.conditions import reasons
from sluice_operator.conditions.pods import first_failure, is_gated, is_loading, missing_claim
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import is_current


@dataclass(frozen=True)
class Progress:
    """A Deployment's progress towards what is desired of it."""

    applied: bool
    """The live object was made from the desired one, and its controller has seen that."""
    complete: bool
    """Every replica is of the newest template and available, and no other is left."""
    deadline_exceeded: bool
    failure: str | None
    """Why no pod can even be created, e.g. a quota."""


def shortfall(
    reached: Progress,
    pods: Iterable[Manifest],
    count: str,
    reason: str = reasons.STARTING,
    rest: str = "the others are starting",
) -> Check:
    """Why a Deployment that was applied is not complete: its pods' failures, its controller's
    message, or what the `rest` does (`reason`). `count` says how many there are."""
    current = tuple(pods)
    if failure := first_failure(current):
        return Check("False", failure.reason, f"{count}; {failure}")
    if reached.failure:
        return Check("False", "ReplicaFailure", f"{count}; {reached.failure}")
    waits = f" {claim}" if (claim := missing_claim(current)) else ""
    if _is_late(reached, current):
        text = f"{count}; no progress within the deadline.{waits}"
        return Check("False", reasons.PROGRESS_DEADLINE_EXCEEDED, text)
    return Check("False", reason, f"{count}; {rest}.{waits}")


def given_up(reached: Progress, pods: Iterable[Manifest]) -> bool:
    """Whether a Deployment that is not complete needs a person: waiting does not cure a pod's
    failure, or the Deployment's own deadline has passed."""
    current = tuple(pods)
    failure = first_failure(current)
    lasting = failure is not None and failure.lasting
    return lasting or (reached.applied and _is_late(reached, current))


def _is_late(reached: Progress, pods: Iterable[Manifest]) -> bool:
    """Whether the deadline counts. A Deployment does not see the progress of an engine that loads
    its model, nor that of a queue that a pod waits in."""
    waits = any(is_loading(pod) or is_gated(pod) for pod in pods)
    return reached.deadline_exceeded and not waits


def progress(desired: Manifest, live: Manifest | None) -> Progress:
    """The progress of `live` towards `desired`; both stamped."""
    if live is None or not is_current(desired, live):
        return Progress(applied=False, complete=False, deadline_exceeded=False, failure=None)
    status = live.get("status") or {}
    seen = status.get("observedGeneration", 0) >= live["metadata"].get("generation", 0)
    replicas = desired["spec"]["replicas"]
    counts = [status.get(k, 0) for k in ("replicas", "updatedReplicas", "availableReplicas")]
    failure, moving = _condition(status, "ReplicaFailure"), _condition(status, "Progressing")
    return Progress(
        applied=seen,
        complete=seen and all(count == replicas for count in counts),
        deadline_exceeded=seen and moving.get("reason") == reasons.PROGRESS_DEADLINE_EXCEEDED,
        failure=failure.get("message") if failure.get("status") == "True" else None,
    )


def has_stopped(live: Manifest, *, loads: bool) -> bool:
    """Whether a Deployment's controller has said that it comes no further; `loads`: an engine of it
    loads its model, so that the deadline does not count."""
    failure = _condition(live.get("status") or {}, "ReplicaFailure")
    return is_late(live, loads=loads) or failure.get("status") == "True"


def is_late(live: Manifest, *, loads: bool) -> bool:
    """Whether a Deployment's controller has said that its deadline has passed; `loads` as above."""
    moving = _condition(live.get("status") or {}, "Progressing")
    return moving.get("reason") == reasons.PROGRESS_DEADLINE_EXCEEDED and not loads


def _condition(status: Manifest, kind: str) -> dict[str, Any]:
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})
