"""Carries out the plan for an object and reports on it, in the same way for every kind.

Knows no kind: what the status says is made elsewhere, once it is known what came of the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice_operator.apply.applier import Applier, Outcome
from sluice_operator.apply.drift_events import repair_events
from sluice_operator.apply.events import EventRecorder
from sluice_operator.apply.lasting_failures import LastingFailures
from sluice_operator.apply.plan import Event, Plan
from sluice_operator.apply.status import Reporter, StatusGauges
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import FailedApplyError
from sluice_operator.kube.kinds import Manifest


@dataclass(frozen=True)
class Report:
    """The status and the events of an object after its plan was carried out."""

    status: Manifest
    events: tuple[Event, ...]
    """What was done: recorded in any case."""
    status_events: tuple[Event, ...]
    """About the change of status: recorded only when the status was written."""


@dataclass(frozen=True)
class Executor:
    """Writes the children, then the status and the events of the object they belong to."""

    applier: Applier
    reporter: Reporter
    failures: LastingFailures

    async def carry_out(self, live: Manifest, plan: Plan, children: Iterable[Manifest]) -> Outcome:
        """Makes `children` what the plan of `live` wants.

        Raises:
            RequestError: interrupted half-way by something temporary.
        """
        outcome = self._judged(live, await self.applier.carry_out(plan, children))
        if outcome.interrupted is not None:
            await self.reporter.record(live, repair_events(outcome.overwritten))
            raise outcome.interrupted
        return outcome

    def _judged(self, live: Manifest, outcome: Outcome) -> Outcome:
        """The outcome, in which failures of the API server that last are a refusal."""
        uid, error = live["metadata"]["uid"], outcome.interrupted
        if error is None:
            self.failures.forget(uid)
        if not isinstance(error, FailedApplyError):
            return outcome
        self.failures.note(uid)
        if not self.failures.have_lasted(uid):
            return outcome
        return replace(outcome, refused=error.refusal, interrupted=None)

    async def report(self, live: Manifest, outcome: Outcome, report: Report) -> None:
        """Writes the status of `live` and its events.

        Raises:
            ApiError: a child was refused; the status says so. To be tried again with a growing
                delay.
        """
        repairs = repair_events(outcome.overwritten)
        await self.reporter.report(
            live, report.status, (*repairs, *report.events), report.status_events
        )
        if outcome.refused is not None:
            raise outcome.refused

    def forget(self, key: Key) -> None:
        """Removes the metrics of an object that is gone."""
        self.reporter.gauges.forget(key)


def executor(client: ApiClient, clock: Clock, instance: str, gauges: StatusGauges) -> Executor:
    """An executor that writes through `client`; events name `instance` as their source."""
    applier = Applier(client)
    reporter = Reporter(applier, EventRecorder(client, clock, instance), gauges)
    return Executor(applier, reporter, LastingFailures(clock))
