"""Which waiting requests join the next step: the policy's order, the step's room, the admission.

What fits is weighed by `admission`, what comes first by `policies`; here they are given what they
look at, and what they decide is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sluice_runtime.scheduler.adapter_room import AdapterRoom
from sluice_runtime.scheduler.admission import (
    AdmitResult,
    PrefillAdder,
    PrefillItem,
    PrefillPlan,
    Room,
    plan_prefill,
    room_beside,
)
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.new_token_ratio import NewTokenRatio
from sluice_runtime.scheduler.pacing import Pacing
from sluice_runtime.scheduler.policies import PolicyContext, admission_order
from sluice_runtime.scheduler.prefix_sharing import BeingComputed
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import RequestTable
from sluice_runtime.scheduler.retraction import RetractionPlan, may_preempt, plan_preemption
from sluice_runtime.scheduler.settings import SchedulerSettings

MAX_PREFILL_ONLY_STEPS: Final = 8
"""Steps in a row for prompts alone while decode requests wait, where batches are not mixed."""
MAX_PREFILL_ONLY_STEPS_MIXED: Final = 1
"""The same where they are: for prompts that are scored."""


class PrefillPlanner:
    """One engine's door."""

    def __init__(
        self,
        settings: SchedulerSettings,
        table: RequestTable,
        kv: KvAllocator,
        pacing: Pacing,
        ratio: NewTokenRatio,
    ) -> None:
        self._settings = settings
        self._table = table
        self._kv = kv
        self._pacing = pacing
        self._ratio = ratio
        self._order = admission_order(settings.policy, settings.seed)
        self._max_prefill_only_steps = (
            MAX_PREFILL_ONLY_STEPS_MIXED if settings.mixed else MAX_PREFILL_ONLY_STEPS
        )
        self._prefill_only_steps = 0
        """Steps in a row in which decode requests had to wait."""

    def plan(self, now: float, launched: Iterable[Request], *, admits: bool) -> PrefillPlan:
        """What of which prompts the next step computes; `launched`: whose prompts a step in flight
        computes. Without `admits` it is only the one that was cut."""
        prefilling = self._table.prefilling
        if not (prefilling or (admits and len(self._table.waiting))):
            return PrefillPlan()
        if self._decode_turn:
            return PrefillPlan(reason="DecodeTurn")
        order = self.in_order(now) if admits else ()
        computing = self._computing(launched)
        adapters = self._adapters(now)
        return plan_prefill(self._adder(), prefilling, order, self._kv.match, computing, adapters)

    def mix_decode(self, plan: PrefillPlan) -> bool:
        """Whether the rows that decode share the step with these prompts."""
        return not plan.items or (self._settings.mixed and not plan.scores_prompts)

    def plan_preemption(
        self, now: float, running: Sequence[Request], launched: Iterable[Request]
    ) -> RetractionPlan:
        """Who goes for the head of the order; nobody where the policy has no such thing, and where
        the head would not join this step however many go."""
        if self._decode_turn or not may_preempt(self._table.waiting, running, self._settings):
            return RetractionPlan()
        head, room = next(self.in_order(now)), self._room()
        match = self._kv.match(head)
        if self._computing(launched).covers(head, match):
            return RetractionPlan()
        if not self._adapters(now).admits(head):
            return RetractionPlan()
        settings, ratio = self._settings, self._ratio.value
        return plan_preemption(head, match, running, room, settings, ratio, self._opened)

    def start(self, plan: PrefillPlan, now: float) -> list[Request]:
        """The step that was planned is launched: its requests that waited leave the queue, with a
        row and pages. What of a prompt was cached when it first started is reported to its client.
        """
        waits = self._table.running.ready_rows > 0 and not self.mix_decode(plan)
        self._prefill_only_steps = self._prefill_only_steps + 1 if waits else 0
        matched = [(item.request, item.match) for item in plan.items if item.match is not None]
        starting = [request for request, _ in matched]
        _count_lead(plan.items)
        for request in starting:
            self._table.waiting.remove(request)
            self._order.admitted(request)
        self._kv.take(matched)
        for request in starting:
            if request.started_seconds is None:
                request.started_seconds, request.cached_tokens = now, request.computed_tokens
        return starting

    def in_order(self, now: float) -> Iterator[Request]:
        """The waiting requests, as the policy has them; nothing is done before the first is asked
        for."""
        return self._order(self._table.waiting, partial(self._policy_context, now))

    def would_admit(self, request: Request) -> bool:
        """Whether the next step had room for a request that goes first."""
        adder = self._adder()
        if adder.closed:
            return False
        return adder.add(request, self._kv.match(request)) is AdmitResult.CONTINUE

    @property
    def _decode_turn(self) -> bool:
        """Whether the next step is for those that decode alone."""
        waited = self._prefill_only_steps >= self._max_prefill_only_steps
        return waited and self._table.running.ready_rows > 0

    def _computing(self, launched: Iterable[Request]) -> BeingComputed:
        """Whose prompts are computed and will be found by others."""
        prefilling = self._table.prefilling
        requests = [*([prefilling] if prefilling else ()), *launched]
        return BeingComputed(self._settings, filter(self._kv.publishes, requests))

    def _adder(self) -> PrefillAdder:
        """With what the next step has left for prompts."""
        return self._adder_in(self._room())

    def _adder_in(self, room: Room) -> PrefillAdder:
        """The same, with so much room."""
        budget = self._pacing.budget(self._table.running, self._table.prefilling)
        return PrefillAdder(self._settings, room, self._ratio.value, budget)

    def _opened(self, room: Room) -> PrefillAdder:
        """The same, once the prompt that was cut has what it must have."""
        adder = self._adder_in(room)
        adder.make_way(self._table.prefilling)
        return adder

    def _adapters(self, now: float) -> AdapterRoom:
        """Beside those of the requests that have rows."""
        return AdapterRoom(self._settings.max_adapters, self._table.active(), now)

    def _room(self) -> Room:
        return room_beside(
            self._table.running,
            self._table.prefilling,
            self._table.preallocated.values(),
            self._settings,
            self._ratio.value,
            self._kv.available_pages,
            self._kv.free_rows,
        )

    def _policy_context(self, now: float) -> PolicyContext:
        rows = 1 - self._kv.free_rows / self._settings.max_running_requests
        pages = 1 - self._kv.available_pages / self._kv.total_pages
        view = self._with_deadlines(PolicyContext(now, max(rows, pages), self._table.running))
        if not self._settings.prefix_cache:
            return view
        tokens, path = self._kv.matched_tokens, self._kv.matched_path
        return replace(view, matched_tokens=tokens, matched_path=path)

    def _with_deadlines(self, view: PolicyContext) -> PolicyContext:
        if self._settings.ttft_seconds is None:
            return view
        token, cut = self._pacing.token_seconds(), self._table.prefilling
        ahead = cut.uncomputed_tokens * token if cut else 0.0
        ttft = self._settings.ttft_seconds
        return replace(view, ttft_seconds=ttft, token_seconds=token, ahead_seconds=ahead)


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
