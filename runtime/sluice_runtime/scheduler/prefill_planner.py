"""Decides which waiting requests join the next step, and writes the step down as a `Batch`.

Gathers the inputs of the decision: the policy's order, the step's budget and headroom, cached
prefixes, prefixes in flight, adapter slots. `admission` decides what fits, `policies` who comes
first; `start` carries the plan out. `BatchWriter` decides nothing: it writes the batch for the
runner, and updates requests to their state after the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple, cast

from sluice_runtime.scheduler.admission import (
    AdmitResult,
    PrefillAdder,
    PrefillItem,
    PrefillPlan,
    plan_prefill,
)
from sluice_runtime.scheduler.admission_bounds import (
    AdapterSlots,
    PrefillHeadroom,
    PrefixesInFlight,
    headroom_beside,
)
from sluice_runtime.scheduler.batch import (
    Batch,
    ExtendRow,
    LayerGroup,
    PagesAppended,
    VerifyRow,
    forward_mode,
)
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.pacing import ChunkBudget, LayerSplit, Pacing
from sluice_runtime.scheduler.policies import PREEMPTING, PolicyContext, admission_order
from sluice_runtime.scheduler.request import Request, row_added, row_of
from sluice_runtime.scheduler.request_table import NewTokenRatio, RequestTable
from sluice_runtime.scheduler.retraction import (
    NO_RETRACTION,
    RetractionPlan,
    may_preempt,
    plan_preemption,
)
from sluice_runtime.scheduler.settings import SchedulerSettings

MAX_PREFILL_ONLY_STEPS: Final = 8
"""Maximum consecutive steps for prompts alone while decode requests wait, if batches are not
mixed."""
MAX_PREFILL_ONLY_STEPS_MIXED: Final = 1
"""Maximum consecutive steps for prompts alone if batches are mixed; such steps are for prompts that
are scored."""


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A launched step whose results have not arrived."""

    prefill: tuple[PrefillItem, ...]
    decode: Sequence[Request]
    verify: Sequence[Request] = ()


class PrefillPlanner:
    """Admission of one engine."""

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
        """Consecutive steps in which decode requests had to wait."""
        self._split: PrefillPlan | None = None
        """Plan of the last step with prompts, if more layers of its chunk follow."""

    def plan(self, now: float, launched: Iterable[Request], *, admits: bool) -> PrefillPlan:
        """Plans the prompt tokens of the next step. `launched`: requests whose prompts a step in
        flight computes. If `admits` is false, only a cut prompt is continued."""
        prefilling = self._table.prefilling
        if not (prefilling or (admits and len(self._table.waiting))):
            return PrefillPlan()
        if self._decode_turn:
            return PrefillPlan(reason="DecodeTurn")
        if (split := self._split_chunk) is not None:
            return self._next_layers(split)
        if self._kv.available_pages < 0:
            return PrefillPlan(reason=AdmitResult.NO_TOKEN.value)
        adder, match, host = self._adder(), self._kv.match, self._kv.host
        if host:
            host.now = now
        if prefilling is None and (closed := adder.closed):
            return adder.plan(closed)
        order = self.in_order(now) if admits else ()
        prefixes = self._prefixes_in_flight(launched)
        adapters = self._adapters(now)
        plan = plan_prefill(adder, prefilling, order, match, prefixes, adapters, host)
        return self._paced(plan)

    def mix_decode(self, plan: PrefillPlan) -> bool:
        """Whether decode rows share the step with these prompts."""
        return not plan.items or (self._settings.mixed and not plan.scores_prompts)

    def plan_preemption(self, now: float, launched: Iterable[Request]) -> RetractionPlan:
        """Plans which running requests go back to the queue to make room for the first waiting one.
        Empty if the policy does not preempt, or if even then the waiting request could not join
        this step."""
        if self._settings.policy not in PREEMPTING:
            return NO_RETRACTION
        if self._decode_turn or self._split_chunk is not None:
            return NO_RETRACTION
        running = self._table.running.ready()
        if not may_preempt(self._table.waiting, running, self._settings):
            return NO_RETRACTION
        head, headroom = next(self.in_order(now)), self._headroom()
        match, host = self._kv.match(head), self._kv.host
        if self._prefixes_in_flight(launched).covers(head, match):
            return NO_RETRACTION
        if host and (host.arriving(head, match) or host.returning(head, match)):
            return NO_RETRACTION
        if not self._adapters(now).admits(head):
            return NO_RETRACTION
        settings, ratio = self._settings, self._ratio.value
        adder_in = self._shared_adder
        running = [r for r in running if not (r.transfers and self._kv.in_transfer(r))]
        return plan_preemption(head, match, running, headroom, settings, ratio, adder_in)

    def start(self, plan: PrefillPlan, now: float) -> list[Request]:
        """Carries out a plan when its step is launched. Waiting requests of the plan leave the
        queue and get a row and pages; returns these requests. For the client, each remembers how
        much of its prompt was cached at its first start."""
        waits = self._table.running.ready_rows > 0 and not self.mix_decode(plan)
        self._prefill_only_steps = self._prefill_only_steps + 1 if waits else 0
        if plan.items:  # includes a prompt's first step after a retraction
            self._split = None if all(item.completes for item in plan.items) else plan
        matched = [
            (item.request, item.match, item.end)
            for item in plan.items
            if item.match is not None and not (item.layers and item.layers.first)
        ]
        starting = [request for request, _, _ in matched]
        _count_lead(plan.items)
        for request in starting:
            self._table.waiting.remove(request)
            self._order.admitted(request)
        self._kv.take(matched, plan.returning)
        for request in starting:
            if request.started_seconds is None:
                request.started_seconds, request.cached_tokens = now, request.computed_tokens
        return starting

    def in_order(self, now: float) -> Iterator[Request]:
        """The waiting requests in the policy's order; sorted only when the first is asked for."""
        return self._order(self._table.waiting, partial(self._policy_context, now))

    def would_admit(self, request: Request) -> bool:
        """Whether the next step has headroom for a request that goes first."""
        adder = self._adder()
        if adder.closed:
            return False
        return adder.add(request, self._kv.match(request)) is AdmitResult.CONTINUE

    @property
    def _decode_turn(self) -> bool:
        """Whether the next step is for decode rows alone."""
        waited = self._prefill_only_steps >= self._max_prefill_only_steps
        return waited and self._table.running.ready_rows > 0

    @property
    def _split_chunk(self) -> PrefillPlan | None:
        """Plan of the chunk whose remaining layers follow; None if there is none, or if its request
        has ended or was retracted."""
        split, prefilling = self._split, self._table.prefilling
        return split if split and split.items[0].request is prefilling else None

    def _paced(self, plan: PrefillPlan) -> PrefillPlan:
        """The plan, adjusted by the pacing if it has a single prompt: fewer tokens after a cached
        prefix, or a chunk in some of the layers."""
        if plan.budget is None or len(plan.items) != 1:
            return plan
        (item,), budget = plan.items, plan.budget
        if item.match is not None and item.start and self._settings.target:
            budget = self._pacing.budget_behind(self._table.running, item.start)
            item = self._within(item, budget)
        split, left = budget.split, len(item.request.token_ids) - item.start
        if split is not None and left > split.fits and not item.request.scores_prompt:
            item, budget = self._in_layers(item, budget, split)
        return replace(plan, items=(item,), budget=budget)

    def _within(self, item: PrefillItem, budget: ChunkBudget) -> PrefillItem:
        """The item cut to the tokens that the decode rows leave of the budget, but to no less than
        one page."""
        assert budget.tokens is not None, "a target needs chunking"
        size = self._settings.page_size
        tokens = budget.tokens - (self._table.running.ready_rows if self._settings.mixed else 0)
        end = item.start + max(tokens // size, 1) * size
        return item if item.end <= end else item._replace(end=end, cut=True)

    def _in_layers(
        self, item: PrefillItem, budget: ChunkBudget, split: LayerSplit
    ) -> tuple[PrefillItem, ChunkBudget]:
        """The item as the first layers of the chunk that `split` describes."""
        whole, end = len(item.request.token_ids), item.start + split.tokens
        layers = LayerGroup(0, split.layers, self._settings.layers)
        message = f"{split.tokens} prompt tokens in {split.layers} of {layers.of} layers a step"
        return (
            item._replace(end=min(end, whole), cut=end < whole, layers=layers),
            replace(budget, reason="LayerGroups", message=message),
        )

    def _next_layers(self, plan: PrefillPlan) -> PrefillPlan:
        """The plan for the next group of the chunk; all remaining layers if nothing decodes any
        more."""
        (item,) = plan.items
        assert item.layers is not None
        begin, end, of = item.layers.first, item.layers.end, item.layers.of
        next_end = min(end + end - begin, of) if self._table.running.ready_rows else of
        item = item._replace(layers=LayerGroup(end, next_end, of))
        return replace(plan, items=(item,), reason="LayerGroups", returning=())

    def _prefixes_in_flight(self, launched: Iterable[Request]) -> PrefixesInFlight:
        """Prompts that are being computed and that others will find in the cache."""
        prefilling = self._table.prefilling
        requests = [*([prefilling] if prefilling else ()), *launched]
        return PrefixesInFlight(self._settings, filter(self._kv.publishes, requests))

    def _adder(self) -> PrefillAdder:
        """An adder for everything that the next step has left for prompts."""
        return self._adder_in(self._headroom())

    def _adder_in(self, headroom: PrefillHeadroom) -> PrefillAdder:
        """An adder with this headroom."""
        budget = self._pacing.budget(self._table.running, self._table.prefilling)
        return PrefillAdder(self._settings, headroom, self._ratio.value, budget)

    def _shared_adder(self, headroom: PrefillHeadroom) -> PrefillAdder:
        """An adder with this headroom, less the share of the cut prompt."""
        adder = self._adder_in(headroom)
        adder.make_way(self._table.prefilling)
        return adder

    def _adapters(self, now: float) -> AdapterSlots:
        """Adapter slots left by the adapters of requests that have rows."""
        return AdapterSlots(self._settings.max_adapters, self._table.active(), now)

    def _headroom(self) -> PrefillHeadroom:
        return headroom_beside(
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
    """Updates the lead of the cut prompt: adds its own tokens of the step, and subtracts those of
    others. In its first step nothing is subtracted, because the others came before it."""
    cut = next((item for item in items if item.cut and item.completes), None)
    if cut is None:
        return
    own = cut.end - cut.start
    if cut.match is not None:
        cut.request.lead_tokens = own
    else:
        cut.request.lead_tokens += 2 * own - sum(item.end - item.start for item in items)


class Drafts(NamedTuple):
    """Drafts of one step."""

    verified: Mapping[Request, tuple[int, ...]]
    """Drafts that a row verifies, by request; requests that verify nothing are missing."""
    catching_up: Mapping[Request, int]
    """Tokens that the draft model catches up on, by request that verifies nothing yet."""


NO_DRAFTS: Final = Drafts({}, {})


class BatchWriter:
    """Makes every batch."""

    def __init__(self, settings: SchedulerSettings, table: RequestTable, kv: KvAllocator) -> None:
        self._settings = settings
        self._draft_lags = settings.draft_lags
        self._table = table
        self._kv = kv

    def write(
        self,
        step: int,
        starting: Sequence[Request],
        prefill: Sequence[PrefillItem],
        decode: Sequence[Request],
        drafts: Drafts = NO_DRAFTS,
    ) -> Batch:
        """Writes the batch of a step. `starting`: requests new to the runner, from `prefill` or
        resumed. `decode`: no requests, or all that are ready. `drafts`: for those of `decode` whose
        rows are verified instead."""
        added = tuple([row_added(request) for request in starting])
        started = [PagesAppended(row_of(r), tuple(r.page_ids)) for r in starting]
        for request in starting:
            request.row_announced = True
        opened, context_tokens = self._advance(decode) if decode else ([], 0)
        for item in prefill:
            if pages := self._kv.append_chunk_pages(item.request, item.end):
                opened.append(PagesAppended(row_of(item.request), tuple(pages)))
        verified = drafts.verified
        verify = [self._verify(request, drafted, opened) for request, drafted in verified.items()]
        layers = prefill[0].layers if prefill else None
        lagging = [_draft_lacks(request) for request in verified] if self._draft_lags else []
        lagging += [_catch_up(request, tokens) for request, tokens in drafts.catching_up.items()]
        plain = [request for request in decode if request not in verified] if verified else decode
        rows = tuple([request.row for request in plain])  # a running request always has one
        return Batch(
            step=step,
            mode=forward_mode(bool(prefill), bool(decode), bool(verified), splits=bool(layers)),
            replaced_pages=self._kv.take_replaced_pages(),
            trimmed_rows=self._kv.take_trimmed_rows(),
            dropped_rows=self._kv.take_dropped_rows(),
            added_rows=added,
            appended_pages=(*started, *opened),
            extend_rows=tuple([self._extend(item) for item in prefill]),
            layers=layers,
            verify_rows=tuple(verify),
            draft_rows=tuple([row for row in lagging if row.token_ids]),
            decode_rows=cast("tuple[int, ...]", rows),
            decode_context_tokens=context_tokens,
            host_copies=self._kv.host.take_copies(step) if self._kv.host else None,
        )

    def _advance(self, decode: Sequence[Request]) -> tuple[list[PagesAppended], int]:
        """Advances each request by one token. Returns the pages that this opened, and the tokens
        that the rows attend to in total."""
        running = self._table.running
        requests = running.rows_needing_page()
        pages = self._kv.append_pages(requests)
        context_tokens = running.context_tokens + len(decode)
        running.advance(decode)
        opened = [
            PagesAppended(row_of(request), (page,))
            for request, page in zip(requests, pages, strict=True)
        ]
        return opened, context_tokens

    def _verify(
        self, request: Request, drafted: tuple[int, ...], opened: list[PagesAppended]
    ) -> VerifyRow:
        """The row that verifies a request's drafts, after its last token. The request was advanced
        before, so that token is known. Adds new pages for the drafts to `opened`."""
        if pages := self._kv.append_draft_pages(request, len(drafted)):
            opened.append(PagesAppended(row_of(request), tuple(pages)))
        last = request.computed_tokens - 1
        return VerifyRow(row_of(request), last, (request.token_ids[last], *drafted))

    def _extend(self, item: PrefillItem) -> ExtendRow:
        ends = item.completes and not item.cut
        self._table.prefill(item.request, item.end if item.completes else item.start, cut=not ends)
        ids = item.request.token_ids
        tokens = tuple(ids[item.start : item.end])
        if self._settings.draft_head and not ends:
            return ExtendRow(row_of(item.request), item.start, tokens, False, ids[item.end])
        return ExtendRow(row_of(item.request), item.start, tokens, samples=ends)


def _catch_up(request: Request, tokens: int) -> ExtendRow:
    """Row for the first `tokens` tokens of a request that the draft model has not computed."""
    first = request.draft_computed_tokens
    last = request.draft_computed_tokens = first + tokens
    return ExtendRow(row_of(request), first, tuple(request.token_ids[first:last]), samples=False)


def _draft_lacks(request: Request) -> ExtendRow:
    """Row for all tokens of an advanced request that the draft model has not computed, except the
    last."""
    first, last = request.draft_computed_tokens, request.computed_tokens - 1
    return ExtendRow(row_of(request), first, tuple(request.token_ids[first:last]), samples=False)
