"""Results of a decision as users see them: the condition, `status.scaling`, and an event for each
change.

Pure. Decides also when a status is worth another write. Numbers in messages are not, because they
differ at each tick.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple

from sluice_autoscaler.decision import Answered, Decision
from sluice_autoscaler.history import Tick
from sluice_autoscaler.pool_plan import start_message
from sluice_contract.cluster.labels import Role

from sluice_operator.api.conditions import Check
from sluice_operator.api.status import ScalingStatus
from sluice_operator.apply.plan import Event
from sluice_operator.kube.errors import RequestError
from sluice_operator.scaled import MoveInProgress, Scaling

SCALED: Final = "Scaled"
FAILED: Final = "ScaleFailed"
CONTESTED: Final = "ScaledByAnother"
UNSEEN: Final = "Metrics"
"""Beginning of reasons for missing, old or impossible load reports."""
AGAIN_SECONDS: Final = 30.0
"""Least time between two writes that report only a new reason or a new start."""
SHARE_SECONDS: Final = 60.0
"""Least time between two writes that report only a new share of answers in time."""
SHARE_PERCENT: Final = 1.0
"""Least change of that share, in percentage points, that is worth a write."""
_FRACTION: Final = re.compile(r"\.\d+(?= s)")
"""Fraction of a second in `status.scaling.start`."""


class Written(NamedTuple):
    """A pool that was asked for another number of engines."""

    role: Role
    replicas: int
    generation: int
    move: MoveInProgress | None = None
    """The move that began with this write."""


@dataclass(frozen=True)
class ScalingOutcome:
    """Writes of a decision that succeeded, and why others did not."""

    written: tuple[Written, ...] = ()
    failed: RequestError | None = None
    """Error that stopped the remaining writes; the next tick decides again."""
    rivals: tuple[str, ...] = ()
    """Nothing was written, because these field managers scale a pool too."""
    events: tuple[Event, ...] | None = None
    """Events of a move in progress. None: the decision was carried out, so each pool has its own
    event."""

    def and_written(self, written: Written) -> ScalingOutcome:
        return replace(self, written=(*self.written, written))

    def and_events(self, *events: Event) -> ScalingOutcome:
        return replace(self, events=(*(self.events or ()), *events))

    def after(self, failed: RequestError) -> ScalingOutcome:
        return replace(self, failed=failed)


def scaling_of(tick: Tick, outcome: ScalingOutcome, now: datetime, answered: Answered) -> Scaling:
    """Status of the service after a tick. `answered`: requests of the last minutes."""
    sample, decision = tick.sample, tick.decision
    percent = answered.in_time_percent
    status = ScalingStatus(
        reason=decision.reason,
        message=decision.message,
        time=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        in_time_percent=None if percent is None else f"{percent:.2f}".rstrip("0").rstrip("."),
        in_time_requests=answered.requests or None,
        start="; ".join(
            f"{role}: {start_message(pool.measured, sample.pools[role])}"
            for role, pool in decision.pools.items()
        )
        or None,
    )
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
    before: Scaling | None, after: Scaling, decision: Decision, since_report_seconds: float
) -> bool:
    """Whether the status is worth a write. If replicas do not change, a new reason, share of
    answers in time, or start in whole seconds is written only after some seconds."""
    if before is None or before.check.status != after.check.status:
        return True
    other = before.check.reason != after.check.reason
    again = since_report_seconds >= AGAIN_SECONDS
    if again and _whole_seconds(before) != _whole_seconds(after):
        return True
    if after.check.status == "True":
        shifted = since_report_seconds >= SHARE_SECONDS and _share_shifted(before, after)
        return bool(decision.changes) or (other and again) or shifted
    return other


def _whole_seconds(scaling: Scaling) -> str:
    """The start of each pool without fractions of a second, which differ from pod to pod."""
    return _FRACTION.sub("", (scaling.status and scaling.status.start) or "")


def _share_shifted(before: Scaling, after: Scaling) -> bool:
    old = before.status.in_time_percent if before.status else None
    new = after.status.in_time_percent if after.status else None
    if old is None or new is None:
        return old is not new
    return abs(float(new) - float(old)) >= SHARE_PERCENT


def scale_events(decision: Decision, outcome: ScalingOutcome) -> tuple[Event, ...]:
    """An event for each pool that was asked for another number of engines; during a move, the
    events of the move."""
    if outcome.events is not None:
        return outcome.events
    return tuple(_event(decision, written) for written in outcome.written)


def _event(decision: Decision, written: Written) -> Event:
    pool = decision.pools[written.role]
    head = f"Pool {pool.role}: replicas from {pool.current} to {pool.desired}"
    return Event("Normal", SCALED, f"{head} ({pool.reason}): {pool.message}")
