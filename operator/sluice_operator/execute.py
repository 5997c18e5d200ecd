"""Carries out what was planned for an object and reports on it: where all reconciles are alike.

Knows no kind: what the status says is made elsewhere, once it is known what came of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sluice_operator.apply import Applier
from sluice_operator.client import ApiClient
from sluice_operator.clock import Clock
from sluice_operator.conditions import apply_failed_event
from sluice_operator.errors import ApiError
from sluice_operator.events import EventRecorder
from sluice_operator.observed import Manifest, Plan
from sluice_operator.repairs import repair_events
from sluice_operator.report import Reporter

StatusOf = Callable[[ApiError | None], Manifest]
"""The status, given the refusal that has kept the plan from being carried out."""


@dataclass(frozen=True)
class Executor:
    """Writes the children, then the status and the events of the object they belong to."""

    applier: Applier
    reporter: Reporter

    async def execute(
        self, live: Manifest, plan: Plan, children: Iterable[Manifest], status_of: StatusOf
    ) -> None:
        """Makes `children` what the plan of `live` wants, and tells what came of it.

        Raises:
            ApiError: a child was refused; the status says so. To be tried again, more and more
                rarely.
            RequestError: interrupted half-way by what passes by itself.
        """
        outcome = await self.applier.carry_out(plan, children)
        repairs = repair_events(outcome.overwritten)
        if outcome.interrupted is not None:
            await self.reporter.tell(live, repairs)
            raise outcome.interrupted
        refused = outcome.refused
        events = plan.events if refused is None else (apply_failed_event(refused),)
        await self.reporter.report(live, status_of(refused), (*repairs, *events))
        if refused is not None:
            raise refused


def executor(client: ApiClient, clock: Clock, instance: str) -> Executor:
    """One that writes through `client`; events name `instance` as their source."""
    applier = Applier(client)
    return Executor(applier, Reporter(applier, EventRecorder(client, clock, instance)))
