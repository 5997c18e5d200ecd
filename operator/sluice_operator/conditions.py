"""Conditions: pure checks make them, and the time of their last transition is carried along.

Knows the form of conditions and what Ready and Updated mean; not what they are said of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from sluice_operator import reasons
from sluice_operator.errors import ApiError
from sluice_operator.observed import Event, Manifest

READY: Final = "Ready"
"""It serves: as many engines and routers answer as are asked for, of whatever revision."""
UPDATED: Final = "Updated"
"""It is what the spec asks for now, all of it. Says why not, also where Ready is False."""
PROGRESSING: Final = "Progressing"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"


@dataclass(frozen=True)
class Check:
    """The outcome of one check: the content of a condition."""

    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str

    @property
    def is_true(self) -> bool:
        return self.status == "True"


def conditions(
    before: Iterable[Mapping[str, Any]], checks: Mapping[str, Check], generation: int, now: datetime
) -> list[Manifest]:
    """The conditions that say what `checks` found, in their order. A condition whose status is
    the same as in `before` keeps its lastTransitionTime."""
    known = {condition["type"]: condition for condition in before}
    return [
        {
            "type": kind,
            "status": check.status,
            "observedGeneration": generation,
            "reason": check.reason,
            "message": check.message,
            "lastTransitionTime": _transition(known.get(kind), check, now),
        }
        for kind, check in checks.items()
    ]


def _transition(before: Mapping[str, Any] | None, check: Check, now: datetime) -> str:
    if before is not None and before["status"] == check.status:
        return str(before["lastTransitionTime"])
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def answering(ready: int, asked: int, what: str, updated: Check) -> Check:
    """Ready, of `what` there are several of. `updated` says why there are fewer than asked for, or
    that none is."""
    if 0 < asked <= ready:
        return Check("True", reasons.SERVING, f"As many {what} answer as are asked for.")
    return replace(updated, status="False")


def not_stalled(checks: Mapping[str, Check]) -> Check:
    """What Stalled says as long as nothing is given up: that nothing needs a person only where none
    of `checks`, by condition, has a reason that is no part of an ordinary life."""
    for kind, check in checks.items():
        if not check.is_true and check.reason not in reasons.HEALTHY:
            text = f"Not given up yet, but {check.reason} may need a person: see {kind}."
            return Check("False", "NotStalled", text)
    return Check("False", "NotStalled", "Nothing needs a person.")


def find(status: Mapping[str, Any] | None, kind: str) -> Manifest | None:
    """The condition of one type in a status."""
    found = (status or {}).get("conditions") or ()
    return next((dict(c) for c in found if c["type"] == kind), None)


def apply_failed(error: ApiError, before: Manifest | None, generation: int) -> Check:
    """What Updated and Stalled say when a child is refused.

    The words of the status `before` stay while the same request is refused for the same spec: some
    webhooks number theirs, and each change of status is a cause to try again at once."""
    told = find(before, UPDATED) or {}
    same = (told.get("reason"), told.get("observedGeneration")) == (
        reasons.APPLY_FAILED,
        generation,
    )
    if same and told["message"].startswith(error.summary):
        return Check("False", reasons.APPLY_FAILED, told["message"])
    return Check("False", reasons.APPLY_FAILED, str(error))


def apply_failed_event(error: ApiError) -> Event:
    """The refusal in the server's latest words, for a person."""
    return Event("Warning", reasons.APPLY_FAILED, str(error))


def status_events(before: Manifest | None, after: Manifest) -> tuple[Event, ...]:
    """What a person should hear about a change of status: that Updated has another cause now."""
    was, now = find(before, UPDATED), find(after, UPDATED)
    if now is None or (was and (was["status"], was["reason"]) == (now["status"], now["reason"])):
        return ()
    healthy = now["status"] == "True" or now["reason"] in reasons.HEALTHY
    if healthy and now["status"] != "True":
        return ()
    return (Event("Normal" if healthy else "Warning", now["reason"], now["message"]),)
