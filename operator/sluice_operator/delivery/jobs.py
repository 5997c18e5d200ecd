"""The outcome of a Job that resolves or downloads a model, read from its pods.

Pure. The pods' termination messages hold the result; the Job only says whether it has given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from sluice_contract.cluster.termination import EXIT_REFUSED, TerminationMessage

from sluice_operator.api.template import FETCH_CONTAINER
from sluice_operator.conditions.pods import first_failure, name_secret
from sluice_operator.conditions.reasons import POD_REFUSED
from sluice_operator.kube.kinds import JOB, Manifest, controller_uid, of_kind

BACKOFF: Final = "10 minutes"
"""Longest time between two attempts of a Job, whose controller doubles it with each."""
HUB_UNREACHABLE: Final = "HubUnreachable"
HUB_SETTINGS: Final = (
    "The operator's SLUICE_HUB_ENDPOINT, SLUICE_HTTPS_PROXY and SLUICE_NO_PROXY say how the hub is "
    "reached."
)
SUSPENDED: Final = "JobSuspended"
"""Somebody else holds the Job back, say Kueue in a queue."""


@dataclass(frozen=True)
class Done:
    """A Job that succeeded."""

    message: str
    """Result that the Job was to find out."""


@dataclass(frozen=True)
class Failed:
    """A Job that has failed and will not be tried again."""

    reason: str
    message: str


@dataclass(frozen=True)
class Running:
    """A Job that runs, or will be tried again."""

    reason: str = ""
    """Cause of a delay; empty: nothing known."""
    message: str = ""
    has_pod: bool = True


@dataclass(frozen=True)
class Lost:
    """A Job that succeeded, but whose result is lost."""


Outcome = Done | Failed | Running | Lost


def outcome_in(
    children: Iterable[Manifest],
    pods: Iterable[Manifest],
    job: Manifest,
    succeeds_with: str,
    refusals: Mapping[str, str],
) -> Outcome:
    """The outcome of the planned `job`, as the live one among `children` has it. `refusals`: why
    the API server makes no pod of a live Job, by its uid."""
    name = job["metadata"]["name"]
    jobs = of_kind(tuple(children), JOB)
    live = next((item for item in jobs if item["metadata"]["name"] == name), None)
    outcome = outcome_of(live, pods, succeeds_with)
    if live is None or not isinstance(outcome, Running):
        return outcome
    if refusal := refusals.get(str(live["metadata"].get("uid"))):
        return Running(POD_REFUSED, f"Job {name} gets no pod: {refusal}", has_pod=False)
    if live["spec"].get("suspend"):
        return Running(SUSPENDED, f"Job {name} is suspended, and has no pod.", has_pod=False)
    return outcome


def outcome_of(job: Manifest | None, pods: Iterable[Manifest], succeeds_with: str) -> Outcome:
    """The outcome of the live `job`. `pods`: pods that may be its own; `succeeds_with`: the reason
    in its termination message."""
    if job is None:
        return Running()
    own = [pod for pod in pods if controller_uid(pod) == job["metadata"].get("uid")]
    ended = sorted(_ended(own), key=lambda item: str(item[1].get("finishedAt") or ""))
    messages = [(state.get("exitCode"), name_secret(pod, _message(state))) for pod, state in ended]
    for code, message in messages:
        if code == 0 and message.reason == succeeds_with:
            return Done(message.message)
    if any(code == EXIT_REFUSED for code, _ in messages):
        message = next(message for code, message in messages if code == EXIT_REFUSED)
        return Failed(message.reason, message.message)
    last = messages[-1][1] if messages else None
    if _has(job, "Failed"):
        return Failed(last.reason, f"{last.message}; given up") if last else _given_up(job)
    if _has(job, "Complete"):
        return Lost()
    if failure := first_failure(own):
        return Running(failure.reason, str(failure))
    if not own:
        return Running(has_pod=False)
    if last:
        times = "once" if len(messages) == 1 else f"{len(messages)} times"
        hub = f" {HUB_SETTINGS}" if last.reason == HUB_UNREACHABLE else ""
        again = f"{last.message}; failed {times}, tried again within {BACKOFF}.{hub}"
        return Running(last.reason, again)
    return Running()


def _given_up(job: Manifest) -> Failed:
    condition = _condition(job, "Failed")
    return Failed(str(condition.get("reason", "JobFailed")), str(condition.get("message", "")))


def _ended(pods: Iterable[Manifest]) -> Iterator[tuple[Manifest, dict[str, Any]]]:
    for pod in pods:
        for container in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (container.get("state") or {}).get("terminated")
            if container["name"] == FETCH_CONTAINER and ended:
                yield pod, ended


def _message(ended: dict[str, Any]) -> TerminationMessage:
    text = str(ended.get("message") or "")
    try:
        return TerminationMessage.model_validate_json(text)
    except ValidationError:
        line = " ".join(text.split())[-1024:]
        code = f"exited with code {ended.get('exitCode')}"
        reason = str(ended.get("reason") or "Error")
        return TerminationMessage(reason=reason, message=f"{code}: {line}" if line else code)


def _has(job: Manifest, kind: str) -> bool:
    return _condition(job, kind).get("status") == "True"


def _condition(job: Manifest, kind: str) -> dict[str, Any]:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})
