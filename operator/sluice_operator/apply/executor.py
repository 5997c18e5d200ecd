"""Carries out the plan for an object and reports on it, in the same way for every kind.

The status is computed elsewhere, after the outcome of the plan is known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from sluice_operator.apply.applier import Applier, ApplyOutcome, Refused
from sluice_operator.apply.drift_events import repair_events
from sluice_operator.apply.events import EventRecorder
from sluice_operator.apply.plan import Event, Identity, Plan
from sluice_operator.apply.status import Reporter, StatusGauges, WritePace
from sluice_operator.clock import Clock, sooner
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import Manifest

LASTING_SECONDS: Final = 30.0
LASTING_TRIES: Final = 3
"""A 5xx or a conflict may pass by itself, as when etcd elects a leader.

If it lasts this long, it is a refusal: a webhook is down, or server-side apply itself fails for the
object.
"""
REMEMBERED_OBJECTS: Final = 10_000


@dataclass(frozen=True)
class Report:
    """The status and the events of an object after its plan was carried out."""

    status: Manifest
    events: tuple[Event, ...]
    """Events about writes and refusals, recorded in any case."""
    status_events: tuple[Event, ...]
    """Events about the change of status, recorded only when the status was written."""


@dataclass(frozen=True)
class _Refusal:
    """The refusals of one write in a row."""

    refused: Refused
    """The first one for this generation: some webhooks number their answers. A new text would be a
    new event and a new status, and so cause an immediate retry."""
    generation: int
    since: float
    """Seconds of the monotonic clock."""
    tries: int

    def then(self, refused: Refused, generation: int) -> _Refusal:
        """The record after one more refusal."""
        same = refused.error.summary == self.refused.error.summary and generation == self.generation
        latest = refused._replace(error=self.refused.error) if same else refused
        return _Refusal(latest, generation, self.since, self.tries + 1)

    def has_lasted(self, now: float) -> bool:
        """Whether the refusals have lasted so long that a person should know."""
        lasts = self.tries >= LASTING_TRIES and now - self.since >= LASTING_SECONDS
        return self.refused.passing is None or lasts


@dataclass(frozen=True)
class Executor:
    """Writes the children, then the status and the events of the object they belong to. Remembers
    since when each write is refused; a restart forgets it."""

    applier: Applier
    reporter: Reporter
    clock: Clock
    _refusals: OrderedDict[str, dict[Identity, _Refusal]] = field(default_factory=OrderedDict)
    """Refused writes by the uid of the owning object, and by the refused child."""

    async def carry_out(
        self, live: Manifest, plan: Plan, children: Iterable[Manifest]
    ) -> ApplyOutcome:
        """Makes `children` what the plan of `live` contains.

        Raises:
            RequestError: interrupted by something temporary, or the namespace is being deleted.
        """
        outcome = self._judged(live, await self.applier.carry_out(plan, children))
        if outcome.is_decided:
            await self.reporter.record(live, plan.decision_events)
        if outcome.interrupted is not None:
            await self.reporter.record(live, repair_events(outcome.overwritten))
            raise outcome.interrupted
        return outcome

    def _judged(self, live: Manifest, outcome: ApplyOutcome) -> ApplyOutcome:
        """The outcome without refusals that may still pass, which are only retried. While only
        these block what is needed, nothing is reported yet."""
        now = self.clock.monotonic()
        refusals = self._noted(live, outcome, now)
        lasting = tuple(refusal.refused for refusal in refusals if refusal.has_lasted(now))
        passing = [refusal.refused for refusal in refusals if not refusal.has_lasted(now)]
        again = next((refusal.passing for refusal in passing), None)
        needed = next((refusal.passing for refusal in passing if not refusal.is_optional), None)
        interrupted = outcome.interrupted
        if interrupted is None and all(refusal.is_optional for refusal in lasting):
            interrupted = needed
        if again is None and lasting:
            again = lasting[0].error
        refused = lasting + outcome.rewritten
        return replace(outcome, refused=refused, interrupted=interrupted, again=again)

    def _noted(self, live: Manifest, outcome: ApplyOutcome, now: float) -> list[_Refusal]:
        uid, generation = live["metadata"]["uid"], live["metadata"].get("generation", 0)
        before = self._refusals.pop(uid, {})
        current = {
            refusal.of: before.get(refusal.of, _Refusal(refusal, generation, now, 0)).then(
                refusal, generation
            )
            for refusal in outcome.refused
        }
        # Objects that were not tried keep their earlier refusals.
        kept = before | current if outcome.interrupted else current
        if kept:
            self._refusals[uid] = kept
            if len(self._refusals) > REMEMBERED_OBJECTS:
                self._refusals.popitem(last=False)
        return list(current.values())

    async def report(self, live: Manifest, outcome: ApplyOutcome, report: Report) -> float | None:
        """Writes the status of `live` and its events. Returns the seconds until the next reconcile,
        where others write the same fields or new counts wait.

        Raises:
            RequestError: a child was refused; the status says so. To be tried again with a growing
                delay.
        """
        repairs = repair_events(outcome.overwritten)
        seconds = await self.reporter.report(
            live,
            report.status,
            (*repairs, *report.events),
            report.status_events,
            counts_may_wait=outcome.again is None,
        )
        if outcome.again is not None:
            raise outcome.again
        return sooner(seconds, outcome.look_again_seconds)

    def forget(self, key: Key) -> None:
        """Removes the metrics of an object that is gone."""
        self.reporter.gauges.forget(key)


def executor(client: ApiClient, clock: Clock, instance: str, gauges: StatusGauges) -> Executor:
    """An executor that writes through `client`; events name `instance` as their source."""
    applier = Applier(client, clock)
    reporter = Reporter(applier, EventRecorder(client, clock, instance), gauges, WritePace(clock))
    return Executor(applier, reporter, clock)
