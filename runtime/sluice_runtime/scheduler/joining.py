"""Which waiting requests join the next step: the policy's order, the step's room, the admission.

What fits is weighed by `admission`, what comes first by `policies`; here they are given what they
look at, and what they decide is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sluice_runtime.scheduler.admission import (
    AdmitResult,
    PrefillAdder,
    PrefillItem,
    PrefillPlan,
    Room,
    plan_prefill,
    room_beside,
)
from sluice_runtime.scheduler.holdings import Holdings
from sluice_runtime.scheduler.new_token_ratio import NewTokenRatio
from sluice_runtime.scheduler.pacing import Pacing
from sluice_runtime.scheduler.policies import PolicyContext, admission_order
from sluice_runtime.scheduler.preemption import may_preempt, plan_preemption
from sluice_runtime.scheduler.prefix_sharing import BeingComputed
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.retraction import RetractionPlan
from sluice_runtime.scheduler.roster import Roster
from sluice_runtime.scheduler.settings import SchedulerSettings

MOST_APART: Final = 8
"""Steps in a row for prompts alone while answers wait, where batches are not mixed."""
MOST_APART_MIXED: Final = 1
"""The same where they are: for prompts that are scored."""


class Joining:
    """One engine's door."""

    def __init__(
        self,
        settings: SchedulerSettings,
        roster: Roster,
        holdings: Holdings,
        pacing: Pacing,
        ratio: NewTokenRatio,
    ) -> None:
        self._settings = settings
        self._roster = roster
        self._holdings = holdings
        self._pacing = pacing
        self._ratio = ratio
        self._order = admission_order(settings.policy, settings.seed)
        self._most_apart = MOST_APART_MIXED if settings.mixed else MOST_APART
        self._apart = 0
        """Steps in a row for which answers have waited."""

    def plan(self, now: float, launched: Iterable[Request], *, admits: bool) -> PrefillPlan:
        """What of which prompts the next step computes; `launched`: whose prompts a step in flight
        computes. Without `admits` it is only the one that was cut."""
        prefilling = self._roster.prefilling
        if not (prefilling or (admits and len(self._roster.waiting))):
            return PrefillPlan((), "Continue", "nothing waits")
        if self._answers_turn:
            return PrefillPlan((), "AnswersTurn", f"answers have waited for {self._apart} steps")
        order = self.in_order(now) if admits else ()
        computing = self._computing(launched)
        return plan_prefill(self._adder(), prefilling, order, self._holdings.match, computing)

    def answers_join(self, plan: PrefillPlan) -> bool:
        """Whether those that decode share the step with these prompts; asked once a step, for it
        counts how long they have waited."""
        join = not plan.items or (self._settings.mixed and not plan.scores_prompts)
        wait = not join and self._roster.running.ready_rows
        self._apart = self._apart + 1 if wait else 0
        return join

    def plan_preemption(
        self, now: float, running: Sequence[Request], launched: Iterable[Request]
    ) -> RetractionPlan:
        """Who goes for the head of the order; nobody where the policy has no such thing, and where
        the head would not join this step however many go."""
        if self._answers_turn or not may_preempt(self._roster.waiting, running, self._settings):
            return RetractionPlan()
        head, room = next(self.in_order(now)), self._room()
        match = self._holdings.match(head)
        if self._computing(launched).covers(head, match):
            return RetractionPlan()
        settings, ratio = self._settings, self._ratio.value
        return plan_preemption(head, match, running, room, settings, ratio, self._opened)

    def start(self, items: Sequence[PrefillItem], now: float) -> list[Request]:
        """Those of them that waited leave the queue and get what they need. What of a prompt was
        cached when it first started is what its client is told."""
        matched = [(item.request, item.match) for item in items if item.match is not None]
        starting = [request for request, _ in matched]
        _count_lead(items)
        for request in starting:
            self._roster.waiting.remove(request)
            self._order.admitted(request)
        self._holdings.take(matched)
        for request in starting:
            if request.started_seconds is None:
                request.started_seconds, request.cached_tokens = now, request.computed_tokens
        return starting

    def in_order(self, now: float) -> Iterator[Request]:
        """The waiting requests, as the policy has them; nothing is done before the first is asked
        for."""
        return self._order(self._roster.waiting, partial(self._policy_context, now))

    def would_admit(self, request: Request) -> bool:
        """Whether the next step had room for a request that goes first."""
        adder = self._adder()
        if adder.closed:
            return False
        return adder.add(request, self._holdings.match(request)) is AdmitResult.CONTINUE

    @property
    def _answers_turn(self) -> bool:
        """Whether the next step is for those that decode alone."""
        return self._apart >= self._most_apart and self._roster.running.ready_rows > 0

    def _computing(self, launched: Iterable[Request]) -> BeingComputed:
        """Whose prompts are computed and will be found by others."""
        prefilling = self._roster.prefilling
        requests = [*([prefilling] if prefilling else ()), *launched]
        return BeingComputed(self._settings, filter(self._holdings.publishes, requests))

    def _adder(self) -> PrefillAdder:
        """With what the next step has left for prompts."""
        return self._adder_in(self._room())

    def _adder_in(self, room: Room) -> PrefillAdder:
        """The same, with so much room."""
        budget = self._pacing.budget(self._roster.running, self._roster.prefilling)
        return PrefillAdder(self._settings, room, self._ratio.value, budget)

    def _opened(self, room: Room) -> PrefillAdder:
        """The same, once the prompt that was cut has what it must have."""
        adder = self._adder_in(room)
        adder.make_way(self._roster.prefilling)
        return adder

    def _room(self) -> Room:
        return room_beside(
            self._roster.running,
            self._roster.prefilling,
            self._settings,
            self._ratio.value,
            self._holdings.available_pages,
            self._holdings.free_rows,
        )

    def _policy_context(self, now: float) -> PolicyContext:
        rows = 1 - self._holdings.free_rows / self._settings.max_running_requests
        pages = 1 - self._holdings.available_pages / self._holdings.total_pages
        view = PolicyContext(now, max(rows, pages), self._roster.running)
        if not self._settings.prefix_cache:
            return view
        tokens, path = self._holdings.matched_tokens, self._holdings.matched_path
        return replace(view, matched_tokens=tokens, matched_path=path)


def _count_lead(items: Sequence[PrefillItem]) -> None:
    """What the prompt that is cut had of the step counts for it; what others had beside it counts
    against it, but not in its first step, where they came before it."""
    cut = next((item for item in items if item.cut), None)
    if cut is None:
        return
    own = cut.end - cut.start
    if cut.match is not None:
        cut.request.lead_tokens = own
    else:
        cut.request.lead_tokens += 2 * own - sum(item.end - item.start for item in items)
