"""What users see of a decision: the condition, `status.scaling`, and an event for each change.

Pure. It also decides when a status is worth another write: numbers alone are not, as they differ at
each tick.
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
CONTESTED: Final = "ScaledByAnother"
UNSEEN: Final = "Metrics"
"""How reasons begin where load reports are missing, old or impossible."""
AGAIN_SECONDS: Final = 30.0


def scaling_of(sample: Sample, decision: Decision, outcome: Outcome, now: datetime) -> Scaling:
    """What the service's status says of a tick."""
    time = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    status = ScalingStatus(reason=decision.reason, message=decision.message, time=time)
    if outcome.rivals:
        who = f"{', '.join(outcome.rivals)} writes spec.replicas of an EnginePool, too"
        what = "delete what does, or set spec.autoscaling.provider to External"
        check = Check("False", CONTESTED, f"{who}; nothing is scaled meanwhile: {what}")
    elif outcome.failed is not None:
        check = Check("False", FAILED, f"{decision.message}; {outcome.failed}")
    else:
        unseen = sample.engines is None or decision.reason.startswith(UNSEEN)
        check = Check("False" if unseen else "True", decision.reason, decision.message)
    return Scaling(check, status)


def is_news(
    before: Scaling | None, after: Scaling, decision: Decision, since_told_seconds: float
) -> bool:
    """Whether the status is worth a write. A mere change of reason without a change of replicas is
    not written each time."""
    if before is None or before.check.status != after.check.status:
        return True
    if after.check.status == "True":
        other = before.check.reason != after.check.reason
        return bool(decision.changes) or (other and since_told_seconds >= AGAIN_SECONDS)
    return before.check.reason != after.check.reason


def scale_events(decision: Decision, written: Iterable[Written]) -> tuple[Event, ...]:
    """An event for each pool that was asked for another number of engines."""
    return tuple(_event(decision, role) for role in written)


def _event(decision: Decision, written: Written) -> Event:
    pool = decision.pools[written.role]
    head = f"Pool {pool.role}: replicas from {pool.current} to {pool.desired}"
    return Event("Normal", SCALED, f"{head} ({pool.reason}): {pool.message}")
