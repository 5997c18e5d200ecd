"""What people hear of a decision: the condition, `status.scaling`, and an event for each change.

Pure. Says when a status is worth another write: not for numbers alone, which differ each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from sluice_autoscaler.decision import Decision
from sluice_autoscaler.sample import Sample

from sluice_operator.api.conditions import Check
from sluice_operator.api.status import ScalingStatus
from sluice_operator.apply.plan import Event
from sluice_operator.autoscale.carry_out import Outcome, Written
from sluice_operator.scaled import Scaling

SCALED: Final = "Scaled"
FAILED: Final = "ScaleFailed"


def scaling_of(sample: Sample, decision: Decision, outcome: Outcome, now: datetime) -> Scaling:
    """What the service's status says of a tick."""
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    status = ScalingStatus(reason=decision.reason, message=decision.message, time=time)
    if outcome.failed is not None:
        check = Check("False", FAILED, f"{decision.message}; {outcome.failed}")
    else:
        seen = sample.engines is not None
        check = Check("True" if seen else "False", decision.reason, decision.message)
    return Scaling(check, status)


def is_news(before: Scaling | None, after: Scaling, decision: Decision) -> bool:
    """Whether the status is to be written anew."""
    if before is None or decision.changes:
        return True
    told, now = before.check, after.check
    return (told.status, told.reason) != (now.status, now.reason)


def scale_events(decision: Decision, written: Iterable[Written]) -> tuple[Event, ...]:
    """An event for each pool that was asked for another number of engines."""
    return tuple(_event(decision, each) for each in written)


def _event(decision: Decision, written: Written) -> Event:
    pool = decision.pools[written.role]
    head = f"Pool {pool.role}: replicas from {pool.current} to {pool.desired}"
    return Event("Normal", SCALED, f"{head} ({pool.reason}): {pool.message}")
