"""Why a pod is not ready: ordered pure checks, each naming the pod, a reason and a message.

Reads what kubelet and scheduler left in the pod's status, and the JSON that our own processes leave
as termination message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from sluice_contract.cluster.termination import EXIT_REFUSED, TOKEN_MISSING, TerminationMessage

from sluice_operator.api.template import ENGINE_CONTAINER
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine_pool import QUEUE_LABEL
from sluice_operator.manifests.fetching import TOKEN_VOLUME

HUB_ACCESS_FIELD: Final = "spec.model.tokenSecretRef"
FILE_OPTION: Final = "--token-file: "
"""Prefix of the fetcher's messages about the token."""
IMAGE_REASONS: Final = frozenset(
    {"ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"}
)
START_REASONS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
DIED_REASONS: Final = frozenset({"EngineDied", "ApiProcessDied"})
"""A process was ended from outside, as seen by the other process; kubelet may know the cause."""
MODEL_REASONS: Final = frozenset({"ModelLoadFailed", "NotAModel"})
UNSCHEDULABLE: Final = "Unschedulable"
SCHEDULING_GATED: Final = "SchedulingGated"
"""Reason of a pod that the scheduler ignores until somebody, such as Kueue, removes its gates."""
KUEUE_GATES: Final = "kueue.x-k8s.io/"
"""How the names of Kueue's gates begin."""
ACCELERATOR_MISSING: Final = "AcceleratorMissing"
"""An engine found no GPU that it can use."""
PREEMPTION: Final = re.compile(r"[.,]? (?:no new claims to deallocate, )?preemption: .*$")
"""What the scheduler adds about preemption, which is no remedy for an engine."""
CLAIM_NOT_FOUND: Final = re.compile(r"(?<=\.) not found$")
"""Ending that the scheduler adds to a message about a pod's claims."""
LASTING_REASONS: Final = MODEL_REASONS | {
    "InvalidConfig", "OutOfMemory", "InvalidImageName", ACCELERATOR_MISSING,
}  # fmt: skip
"""Failures that no amount of waiting cures; a repeated `OOMKilled` is another. `OutOfMemory` is an
engine that cannot start; one whose step finds no memory ends that step's requests and continues."""
REPEATS: Final = 3
"""Restarts of a container after which one more `OOMKilled` is no accident. The count only grows, so
the failure does not alternate with kubelet's back-off."""


@dataclass(frozen=True)
class PodFailure:
    """Reason why one pod is not ready."""

    pod: str
    reason: str
    message: str
    repeats: bool = False
    """Another attempt will fail too: it has failed often, or the process says so."""
    restarts: int = 0
    """Restarts of the container that fails."""

    @property
    def lasting(self) -> bool:
        """Whether only a change of the spec helps."""
        return self.repeats or self.reason in LASTING_REASONS

    @property
    def halts(self) -> bool:
        """Whether a roll-out that makes such pods should stop. Nodes may still come for pods
        without a place, and a first crash may be an accident."""
        fails_to_start = self.reason in IMAGE_REASONS | START_REASONS
        return self.lasting or fails_to_start or self.restarts >= REPEATS

    def __str__(self) -> str:
        """The text for a condition, which shows the reason separately."""
        return f"pod {self.pod}: {self.message}"


def is_ready(pod: Manifest) -> bool:
    """Whether the pod is ready and not being deleted."""
    return not is_draining(pod) and pod_condition(pod, "Ready").get("status") == "True"


def is_draining(pod: Manifest) -> bool:
    """Whether the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_unschedulable(pod: Manifest) -> bool:
    """Whether the scheduler has found no place for the pod, or may not look for one."""
    return _unschedulable(pod) is not None or bool(missing_claim([pod]))


def is_gated(pod: Manifest) -> bool:
    """Whether somebody, such as Kueue, keeps the pod from the scheduler."""
    return (failure := _unschedulable(pod)) is not None and failure.reason == SCHEDULING_GATED


def is_queued(pod: Manifest) -> bool:
    """Whether Kueue keeps the pod from the scheduler, in a queue that the pod names."""
    gates = _gates(pod)
    return is_gated(pod) and bool(_queue(pod)) and any(g.startswith(KUEUE_GATES) for g in gates)


def has_left_queue_since(pod: Manifest, time: str) -> bool:
    """Whether the pod is starting, and was scheduled from its queue at `time` or later. `time`: as
    Kubernetes writes it."""
    scheduled = pod_condition(pod, "PodScheduled")
    placed = scheduled.get("status") == "True" and scheduled.get("lastTransitionTime", "") >= time
    is_starting = not is_ready(pod) and not is_draining(pod) and failure_of(pod) is None
    return placed and bool(_queue(pod)) and is_starting


def queue_of(pods: Iterable[Manifest]) -> str:
    """Kueue's queue that pods wait for; empty where none waits."""
    return next((_queue(pod) for pod in sorted(pods, key=_name) if is_queued(pod)), "")


def missing_claim(pods: Iterable[Manifest]) -> str:
    """Text about the first pod that the scheduler ignores because its ResourceClaim is missing;
    empty: there is none. Kubernetes makes a claim within a second, or reports the obstacle only in
    an event."""
    for pod in sorted(pods, key=_name):
        made = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
        names = {entry["name"] for entry in made if entry.get("resourceClaimName")}
        for claim, template in _claims(pod):
            if claim not in names and not pod_condition(pod, "PodScheduled"):
                text = f"pod {_name(pod)} has no ResourceClaim of ResourceClaimTemplate {template}"
                return f"{text} yet: is there one of this name?"
    return ""


def is_loading(pod: Manifest) -> bool:
    """Whether the pod's engine loads its model and makes progress. Then its startup probe has
    passed, and its liveness probe has not ended it."""
    engines = (container for container in _containers(pod) if container["name"] == ENGINE_CONTAINER)
    engine = next(engines, {})
    runs = engine.get("started") and "running" in (engine.get("state") or {})
    starts = bool(runs) and not engine.get("ready") and not is_draining(pod)
    return starts and failure_of(pod) is None


def is_finished(pod: Manifest) -> bool:
    """Whether the pod ended for good, e.g. evicted; its controller makes another."""
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def first_failure(pods: Iterable[Manifest]) -> PodFailure | None:
    """The most important failure: a lasting one, else that of the first pod by name. A pod that
    waits for its gates comes last: a queue may be long."""
    failures = [failure for pod in sorted(pods, key=_name) if (failure := failure_of(pod))]
    return min(
        failures,
        key=lambda failure: (not failure.lasting, failure.reason == SCHEDULING_GATED),
        default=None,
    )


def halting_failure(pods: Iterable[Manifest]) -> PodFailure | None:
    """The most important failure for which a roll-out stops."""
    failures = (failure_of(pod) for pod in sorted(pods, key=_name))
    halting = [failure for failure in failures if failure is not None and failure.halts]
    return next((failure for failure in halting if failure.lasting), next(iter(halting), None))


def failure_of(pod: Manifest) -> PodFailure | None:
    """Reason why the pod is not ready; None when it is ready, starting or going away."""
    if is_ready(pod) or is_draining(pod) or is_finished(pod):
        return None
    return next((failure for check in CHECKS if (failure := check(pod))), None)


def _unschedulable(pod: Manifest) -> PodFailure | None:
    scheduled = pod_condition(pod, "PodScheduled")
    if scheduled.get("status") != "False":
        return None
    if scheduled.get("reason") == SCHEDULING_GATED:
        gates, name = _gates(pod), _queue(pod)
        is_kueue = name and any(gate.startswith(KUEUE_GATES) for gate in gates)
        text = f"waits for its scheduling gates: {', '.join(gates)}"
        text += f" (queue {name})" if is_kueue else ""
        return PodFailure(_name(pod), SCHEDULING_GATED, text)
    if scheduled.get("reason") == UNSCHEDULABLE:
        cause = CLAIM_NOT_FOUND.sub("", PREEMPTION.sub("", _line(scheduled.get("message"))))
        text = "no node takes it"
        if templates := [template for _, template in _claims(pod)]:
            text += f", with devices of ResourceClaimTemplate {', '.join(templates)}"
        return PodFailure(_name(pod), UNSCHEDULABLE, f"{text} ({cause.removesuffix('.')})")
    return None


def _image(pod: Manifest) -> PodFailure | None:
    return _waiting(pod, IMAGE_REASONS, "ImagePullBackOff")


def _start(pod: Manifest) -> PodFailure | None:
    return _waiting(pod, START_REASONS, None)


def _termination(pod: Manifest) -> PodFailure | None:
    """The reason in the process's termination message, unless kubelet knows a better one."""
    for container, ended in _terminations(pod):
        if message := _termination_message(ended):
            if message.reason in DIED_REASONS and ended.get("reason") == "OOMKilled":
                continue
            text = _line(name_secret(pod, message).message)
            restarts = _restarts(pod, container)
            repeats = ended.get("exitCode") == EXIT_REFUSED
            return PodFailure(_name(pod), message.reason, text, repeats, restarts)
    return None


def _out_of_memory(pod: Manifest) -> PodFailure | None:
    for container, ended in _terminations(pod):
        if ended.get("reason") == "OOMKilled":
            repeats = _restarts(pod, container) >= REPEATS
            limit = _memory_limit(pod, container)
            text = f"container {container} used more memory than its limit"
            text += f" of {limit}" if limit else ""
            return PodFailure(_name(pod), "OOMKilled", text, repeats)
    return None


def _crash(pod: Manifest) -> PodFailure | None:
    for container, ended in _terminations(pod):
        if ended.get("exitCode", 0) != 0:
            text = f"container {container} exited with code {ended['exitCode']}"
            last = _line(ended.get("message"))
            text = f"{text}: {last}" if last else text
            restarts = _restarts(pod, container)
            return PodFailure(_name(pod), "CrashLoopBackOff", text, restarts=restarts)
    return None


CHECKS: Final[tuple[Callable[[Manifest], PodFailure | None], ...]] = (
    _unschedulable, _image, _start, _termination, _out_of_memory, _crash,
)  # fmt: skip
"""Checks in the order of a pod's start."""


def _waiting(pod: Manifest, reasons: frozenset[str], shown: str | None) -> PodFailure | None:
    for container in _containers(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = waiting.get("reason")
        if reason in reasons:
            name = "InvalidImageName" if reason == "InvalidImageName" else shown or reason
            cause = _line(waiting.get("message")) or f"image {container.get('image')}"
            what = (
                "its image cannot be pulled" if reason in IMAGE_REASONS else "it cannot be started"
            )
            return PodFailure(_name(pod), name, f"{what}: {cause}")
    return None


def _terminations(pod: Manifest) -> Iterator[tuple[str, dict[str, Any]]]:
    """How each container that is not ready ended last."""
    for container in _containers(pod):
        if container.get("ready"):
            continue
        for state in (container.get("state"), container.get("lastState")):
            if ended := (state or {}).get("terminated"):
                yield container["name"], ended
                break


def _restarts(pod: Manifest, container: str) -> int:
    counts = (
        status.get("restartCount", 0) for status in _containers(pod) if status["name"] == container
    )
    return next(counts, 0)


def _memory_limit(pod: Manifest, container: str) -> str | None:
    containers = (pod.get("spec") or {}).get("containers") or ()
    limits = ((spec.get("resources") or {}).get("limits") or {}
              for spec in containers if spec["name"] == container)  # fmt: skip
    return next((str(limit["memory"]) for limit in limits if "memory" in limit), None)


def _termination_message(ended: dict[str, Any]) -> TerminationMessage | None:
    try:
        return TerminationMessage.model_validate_json(ended.get("message") or "")
    except ValidationError:
        return None


def _containers(pod: Manifest) -> list[dict[str, Any]]:
    """Statuses of the containers in the order in which they run: the others start when the init
    containers have ended."""
    status = pod.get("status") or {}
    first, then = status.get("initContainerStatuses"), status.get("containerStatuses")
    return [*(first or ()), *(then or ())]


def pod_condition(pod: Manifest, kind: str) -> dict[str, Any]:
    """The condition of one type in a pod's status; empty where there is none."""
    entries = (pod.get("status") or {}).get("conditions") or ()
    return next((c for c in entries if c["type"] == kind), {})


def _claims(pod: Manifest) -> list[tuple[str, str]]:
    """Each claim of the pod that is made from a template: its name and the template's."""
    claims = (pod.get("spec") or {}).get("resourceClaims") or ()
    key = "resourceClaimTemplateName"
    return [(claim["name"], claim[key]) for claim in claims if key in claim]


def _gates(pod: Manifest) -> list[str]:
    return [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]


def _queue(pod: Manifest) -> str:
    return str((pod["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])


def _line(text: str | None) -> str:
    """One line, without what changes on every attempt."""
    return " ".join((text or "").split())[:1024]


def name_secret(pod: Manifest, termination: TerminationMessage) -> TerminationMessage:
    """A container's termination message; a message about the hub's token gets the pod's Secret and
    key, which the fetcher does not know."""
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    source = next((volume["secret"] for volume in volumes if volume["name"] == TOKEN_VOLUME), None)
    if source is None or not termination.message.startswith(FILE_OPTION):
        return termination
    secret, key = source["secretName"], source["items"][0]["key"]
    if termination.reason == TOKEN_MISSING:
        message = f"{HUB_ACCESS_FIELD}: there is no Secret {secret} with the key {key}"
    else:
        problem = termination.message.removeprefix(FILE_OPTION)
        message = f"{HUB_ACCESS_FIELD}: Secret {secret}, key {key}: {problem}"
    return termination.model_copy(update={"message": message})
