"""The batch scheduler: what runs in the next step, and what its results mean.

`next_batch` and `process` are the whole story; admission, retraction and the queue's order are
decided by pure functions beside this file. Knows no model, no device and no clock.

Every running row's next page is secured before any prompt is considered, so a prompt is never
admitted on pages that an answer needs now, and a step that retracts admits nothing new. What a
request holds is taken in `_start` and `_advance` and given back in `_release`, nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sluice_runtime.messages import FinishReason, Generate, TokenDelta
from sluice_runtime.scheduler.admission import (
    PrefillAdder,
    PrefillItem,
    PrefillPlan,
    plan_prefill,
    room_beside,
)
from sluice_runtime.scheduler.batch import (
    NO_TOKEN,
    Batch,
    ExtendRow,
    ForwardMode,
    PagesAppended,
    RowAdded,
    SampledTokens,
    forward_mode,
)
from sluice_runtime.scheduler.integrity import check_integrity
from sluice_runtime.scheduler.limits import most_new_tokens, queue_full, refusal
from sluice_runtime.scheduler.new_token_ratio import NewTokenRatio
from sluice_runtime.scheduler.pacing import Pacing
from sluice_runtime.scheduler.pages import PageAllocator, pages_for
from sluice_runtime.scheduler.policies import POLICIES, AdmissionOrder, PolicyContext
from sluice_runtime.scheduler.request import Phase, Request, outcome_of, request_from, row_of
from sluice_runtime.scheduler.retraction import opens_page, plan_retraction
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.status import Status, progress_of
from sluice_runtime.scheduler.waiting import WaitingQueue

NOT_FINITE: Final = "the model's logits are not finite, so no token can be drawn"


class Scheduler:
    """Continuous batching over one page pool. One call of `process` follows each batch."""

    def __init__(self, settings: SchedulerSettings, allocator: PageAllocator) -> None:
        self._settings = settings
        self._allocator = allocator
        self._order = AdmissionOrder(POLICIES[settings.policy], settings.seed)
        self._ratio = NewTokenRatio(settings.conservativeness)
        self._pacing = Pacing(settings)
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue()
        self._prefilling: Request | None = None
        self._running: dict[str, Request] = {}
        self._aborting: list[Request] = []
        self._free_rows = list(range(settings.max_running_requests))[::-1]
        self._dropped_rows: list[int] = []
        self._in_flight: dict[int, tuple[Request, ...]] = {}
        self._outcomes: list[TokenDelta] = []
        self._step = 0
        self._steps: Counter[str] = Counter({mode.value: 0 for mode in ForwardMode})
        self._retractions = 0
        self._chunk_cuts = 0

    def add(self, message: Generate) -> None:
        """Queues a request. One that can never run ends at once, and `process` reports it."""
        if error := self._refusal(message):
            self._outcomes.append(TokenDelta(message.request_id, [], "error", error))
            return
        if error := queue_full(self._settings, len(self._requests)):
            refused = TokenDelta(message.request_id, [], "error", error, refusal="overloaded")
            self._outcomes.append(refused)
            return
        most = most_new_tokens(self._settings.limits, len(message.prompt_ids))
        request = request_from(message, min(message.max_tokens, most))
        self._requests[request.request_id] = request
        self._waiting.append(request)

    def abort(self, request_id: str) -> None:
        """The next batch drops the request, wherever it is; unknown ids are ignored."""
        if request := self._requests.get(request_id):
            request.aborting = True
            self._aborting.append(request)

    def fail(self, request_id: str, error: str) -> None:
        """Ends a request with an error; unknown ids are ignored."""
        if request := self._requests.get(request_id):
            self._end(request, [], "error", error)

    def next_batch(self, now: float) -> Batch | None:
        """What to run now; None when there is nothing to run and nothing to report."""
        self._drop_aborted()
        retracted = self._secure_decode_pages(now)
        prefill = self._plan_prefill(now, admits=not retracted)
        decodes = self._settings.mixed or not prefill.items
        decode = list(self._running.values()) if decodes else []
        if not (prefill.items or decode or self._outcomes):
            self._ratio.reset()
            self._pacing.rest()
            return None
        return self._build(prefill.items, decode, now)

    def process(self, batch: Batch, result: SampledTokens, now: float) -> list[TokenDelta]:
        """Takes the tokens of a batch in; returns what became of requests since the last call."""
        self._pacing.landed(batch, now)
        for request, token in zip(self._in_flight.pop(batch.step), result.token_ids, strict=True):
            self._accept(request, token)
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def status(self) -> Status:
        """A frozen view for logs, metrics and the load report."""
        prefilling = self._prefilling
        uncomputed = prefilling.uncomputed_tokens if prefilling else 0
        return Status(
            queued_requests=len(self._waiting),
            queued_tokens=self._waiting.tokens + uncomputed,
            running_requests=len(self._running) + (prefilling is not None),
            pages_total=self._allocator.total_pages,
            pages_free=self._allocator.free_pages,
            new_token_ratio=self._ratio.value,
            beta=self._ratio.beta,
            prefilling=progress_of(prefilling) if prefilling else None,
            retractions=self._retractions,
            chunk_cuts=self._chunk_cuts,
            steps=dict(self._steps),
            pace=self._pacing.status(),
        )

    def check_integrity(self) -> None:
        """Asserts that pages and rows are each free or held by exactly one request."""
        check_integrity(self._requests.values(), self._allocator, self._free_rows)

    # Before a batch: who leaves.

    def _refusal(self, message: Generate) -> str | None:
        if message.request_id in self._requests:
            return f"request id {message.request_id!r} is in use"
        if message.max_tokens < 1:
            return f"max_tokens {message.max_tokens} is not allowed; allowed: at least 1"
        return refusal(self._settings.limits, len(message.prompt_ids))

    def _drop_aborted(self) -> None:
        for request in self._aborting:
            if request.phase is not Phase.ENDED:
                self._end(request, [], "abort")
        self._aborting.clear()

    def _secure_decode_pages(self, now: float) -> bool:
        """Retracts until the next decode step's pages are free; True when it had to."""
        if not self._running:
            return False
        rows, free_pages = list(self._running.values()), self._allocator.free_pages
        plan = plan_retraction(rows, self._prefilling, free_pages, self._settings.page_size)
        for victim in plan.victims:
            self._retract(victim, now)
        if plan.stuck:
            self._end(plan.stuck, [], "error", f"{plan.message}; raise kvPoolTokens")
        if not (plan.victims or plan.stuck):
            self._ratio.decay()
            return False
        running = self._running.values()
        self._ratio.raise_after_retraction(
            sum(r.output_tokens for r in running), sum(r.max_tokens for r in running), len(running)
        )
        return True

    # The batch: who joins, what each row does.

    def _plan_prefill(self, now: float, *, admits: bool) -> PrefillPlan:
        if not (self._prefilling or (admits and len(self._waiting))):
            return PrefillPlan((), "Continue", "nothing waits")
        room = room_beside(
            list(self._running.values()),
            self._prefilling,
            self._settings,
            self._ratio.value,
            self._allocator.free_pages,
            len(self._free_rows),
        )
        budget = self._pacing.budget(self._running.values(), self._prefilling)
        settings = replace(self._settings, chunk_size=budget.tokens)
        adder = PrefillAdder(settings, room, self._ratio.value)
        waiting: Sequence[Request] | WaitingQueue = self._waiting if admits else ()
        order = self._order(waiting, partial(self._policy_context, now))
        return plan_prefill(adder, self._prefilling, order)

    def _policy_context(self, now: float) -> PolicyContext:
        rows = 1 - len(self._free_rows) / self._settings.max_running_requests
        pages = 1 - self._allocator.free_pages / self._allocator.total_pages
        return PolicyContext(now, max(rows, pages), self._running.values())

    def _build(
        self, prefill: Sequence[PrefillItem], decode: Sequence[Request], now: float
    ) -> Batch:
        """Takes rows and pages, and writes the step down."""
        self._step += 1
        dropped, self._dropped_rows = tuple(self._dropped_rows), []
        starting = [item.request for item in prefill if item.request.row is None]
        added = [self._start(request, now) for request in starting]
        started = [PagesAppended(row_of(r), tuple(r.page_ids)) for r in starting]
        opened = [pages for request in decode if (pages := self._advance(request))]
        mode = forward_mode(bool(prefill), bool(decode))
        self._steps[mode.value] += 1
        self._in_flight[self._step] = (*(i.request for i in prefill if not i.cut), *decode)
        batch = Batch(
            step=self._step,
            mode=mode,
            dropped_rows=dropped,
            added_rows=tuple(added),
            appended_pages=(*started, *opened),
            extend_rows=tuple([self._extend(item) for item in prefill]),
            decode_rows=tuple([row_of(request) for request in decode]),
            decode_context_tokens=sum([request.computed_tokens for request in decode]),
        )
        self._pacing.made(batch, now)
        return batch

    def _start(self, request: Request, now: float) -> RowAdded:
        """Out of the queue: a row, and pages for all of its prompt, also when it is cut."""
        self._waiting.remove(request)
        self._order.admitted(request)
        request.row = self._free_rows.pop()
        pages = pages_for(len(request.token_ids), self._settings.page_size)
        request.page_ids = self._allocator.allocate(pages)
        request.started_seconds = request.started_seconds or now
        return RowAdded(request.row, request.request_id, request.sampling)

    def _extend(self, item: PrefillItem) -> ExtendRow:
        request = item.request
        request.computed_tokens = item.end
        self._prefilling = request if item.cut else self._prefilling
        self._chunk_cuts += item.cut
        if item.cut:
            request.phase = Phase.PREFILLING
        else:
            request.phase = Phase.RUNNING
            self._running[request.request_id] = request
            if self._prefilling is request:
                self._prefilling = None
        tokens = tuple(request.token_ids[item.start : item.end])
        return ExtendRow(row_of(request), item.start, tokens, samples=not item.cut)

    def _advance(self, request: Request) -> PagesAppended | None:
        """One token further; the page it opens, if it opens one."""
        opens = opens_page(request, self._settings.page_size)
        request.computed_tokens += 1
        if not opens:
            return None
        pages = self._allocator.allocate(1)
        request.page_ids += pages
        return PagesAppended(row_of(request), tuple(pages))

    # After a batch, and on the way out.

    def _accept(self, request: Request, token: int) -> None:
        """A sampled token; nothing of a request that ended or is about to be dropped."""
        if request.phase is Phase.ENDED or request.aborting:
            return
        if token == NO_TOKEN:
            self._end(request, [], "error", NOT_FINITE)
            return
        request.token_ids.append(token)
        if token in request.stop_token_ids:
            self._end(request, [token], "stop")
        elif len(request.token_ids) - request.prompt_tokens >= request.max_tokens:
            self._end(request, [token], "length")
        else:
            self._outcomes.append(outcome_of(request, [token]))

    def _retract(self, request: Request, now: float) -> None:
        """Back to the head of the queue; what it generated is prefilled again with its prompt."""
        self._release(request)
        request.phase = Phase.WAITING
        request.waiting_since_seconds = now
        self._waiting.put_back(request)
        self._retractions += 1

    def _end(
        self,
        request: Request,
        token_ids: list[int],
        reason: FinishReason,
        error: str | None = None,
    ) -> None:
        """The one terminal event of a request."""
        if request.phase is Phase.WAITING:
            self._waiting.remove(request)
        else:
            self._release(request)
            if not request.ignore_eos and reason in ("stop", "length"):
                self._ratio.learn(request.output_tokens, request.max_tokens)
        request.phase = Phase.ENDED
        del self._requests[request.request_id]
        self._outcomes.append(outcome_of(request, token_ids, reason, error))

    def _release(self, request: Request) -> None:
        """Row and pages go back; the runner hears of it with the next batch."""
        self._running.pop(request.request_id, None)
        if self._prefilling is request:
            self._prefilling = None
        self._allocator.free(request.page_ids)
        row = row_of(request)
        self._free_rows.append(row)
        self._dropped_rows.append(row)
        request.page_ids, request.row, request.computed_tokens = [], None, 0
