"""The batch scheduler: what runs in the next step, and what its results mean.

`next_batch` and `process` are the main path; pure functions in this package decide admission,
retraction and the queue's order. Knows no model, no device and no clock.

Every running row's next page is secured before any prompt is considered. So no prompt is admitted
on pages that a decode row needs now, and a step that retracts admits nothing new. `kv_allocator`
keeps what requests hold.

The next batch may be made while one is in flight. Its rows then have one token that is not known
yet, and work that needs this token waits for the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, zip_longest
from typing import Final

import msgspec

from sluice_runtime.scheduler.admission import PrefillItem, PrefillPlan
from sluice_runtime.scheduler.admission_bounds import Refusals
from sluice_runtime.scheduler.batch import (
    NO_TOKEN,
    Batch,
    FinishedChunk,
    Preallocated,
    SampledRow,
    SampledTokens,
    StepOutcome,
)
from sluice_runtime.scheduler.hand_back import HANDED_BACK, Costs, leaving
from sluice_runtime.scheduler.kv_allocator import KvAllocator, PageAllocator, pages_for
from sluice_runtime.scheduler.limits import max_new_tokens
from sluice_runtime.scheduler.pacing import Pacing
from sluice_runtime.scheduler.preallocation import Preallocations
from sluice_runtime.scheduler.prefill_planner import (
    NO_DRAFTS,
    BatchWriter,
    PrefillPlanner,
    StepInFlight,
)
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.scheduler.request import (
    Fence,
    Phase,
    Request,
    end_of_resumed,
    outcome_of,
    request_from,
    row_of,
)
from sluice_runtime.scheduler.request_table import NewTokenRatio, RequestTable
from sluice_runtime.scheduler.retraction import RetractionPlan, plan_retraction
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.speculation import Speculation
from sluice_runtime.scheduler.status import Counts, Status, status_of
from sluice_runtime.wire.messages import FinishReason, Generate, PlainTokens, Refusal, TokenDelta

NOT_FINITE: Final = "the model's logits are not finite, so no token can be drawn"


class Scheduler:
    """Continuous batching over one page pool. `process` is called for each batch, in order; at most
    one more batch may be made before that."""

    def __init__(self, settings: SchedulerSettings, allocator: PageAllocator) -> None:
        self._settings = settings
        self._pacing = Pacing(settings)
        self._kv = KvAllocator(settings, allocator, self._pacing.token_seconds)
        self._ratio = NewTokenRatio(settings.conservativeness)
        self._table = RequestTable(settings.page_size)
        self._refusals = Refusals(settings, self._table, self._kv)
        self._planner = PrefillPlanner(settings, self._table, self._kv, self._pacing, self._ratio)
        drafts = settings.draft_tokens
        self._speculation = Speculation(settings, self._table, self._kv) if drafts else None
        self._preallocations = Preallocations(settings, self._table, self._kv)
        self._writer = BatchWriter(settings, self._table, self._kv)
        self._aborting: list[Request] = []
        self._resumed: list[Request] = []
        """Resumed requests that the runner does not know yet."""
        self._pending: dict[int, StepInFlight] = {}
        self._deltas: list[TokenDelta] = []
        self._adapters: Mapping[str, str] = {}
        self._finished_chunks: list[FinishedChunk] = []
        self._step = 0
        self._counts = Counts()

    def add(self, message: Generate, transfer: Fence | None = None) -> None:
        """Queues a request. If it can never run it ends at once, and `process` reports that. Pages
        of a `transfer` are reused only after `end_transfer`, even if the request has ended."""
        request = self._request_from(message)
        if transfer is not None:
            self._kv.begin_transfer(request, transfer)
        if not self._settled(message, request):
            self._table.add(request)
            if not message.prompt_counted:
                self._counts.received(request, self._kv.matched_tokens(request))

    def add_remote(self, message: Generate) -> None:
        """Queues a request whose prompt another engine computes. It can be aborted at any time."""
        request = self._request_from(message)
        if not self._settled(message, request):
            self._table.add_remote(request)

    def next_preallocations(self, now: float) -> list[Preallocated]:
        """Gives rows and pages to requests of `add_remote` that fit; each then awaits `resume`."""
        self._drop_aborted()
        return self._preallocations.take(now)

    def take_adapters(self, folders: Mapping[str, str]) -> None:
        """Sets the adapters that requests may have, replacing earlier ones; `folders`: by key."""
        self._adapters = folders

    def has_adapter(self, key: str) -> bool:
        """Whether a request that has not ended has this adapter."""
        return any(request.adapter == key for request in self._table.requests)

    def abort(self, request_id: str) -> None:
        """Marks a request that the next batch drops, wherever it is; unknown ids are ignored."""
        if request := self._table.get(request_id):
            request.aborting, request.fast_path_until_tokens = True, 0
            self._aborting.append(request)

    def fail(self, request_id: str, error: str, refusal: Refusal | None = None) -> None:
        """Ends a request with an error, `refusal` for its kind; unknown ids are ignored."""
        if request := self._table.get(request_id):
            self._fail(request, error, refusal)

    def hand_back(self, groups: Iterable[Sequence[str]], most: int, now: float) -> int:
        """Ends the requests of the groups that `leaving` chooses; returns the number of groups."""
        costs = Costs(self._pacing.token_seconds(), self._settings.page_size)
        chosen = leaving(groups, most, self._table, self._kv, costs, now)
        for request in dict.fromkeys(chain.from_iterable(chosen)):
            self._fail(request, HANDED_BACK, "handed_back")
        return len(chosen)

    def resume(
        self, request_id: str, first: SampledRow, cached_tokens: int, started_seconds: float
    ) -> None:
        """Starts decoding a preallocated request from the next step on: its prompt is in its pages,
        and its first token was drawn. `cached_tokens` and `started_seconds` are those of the engine
        that computed the prompt."""
        request = self._table.get(request_id)
        assert request is not None, f"{request_id} has ended"
        assert request.phase is Phase.PREALLOCATED, f"{request_id} is {request.phase}"
        request.computed_tokens = request.prefilled_tokens = len(request.token_ids)
        request.started_seconds, request.cached_tokens = started_seconds, cached_tokens
        self._accept(request, first)
        if not request.ended:
            self._table.resume(request)
            self._kv.cache_unfinished(request)
            self._resumed.append(request)

    def take_first_tokens(self) -> list[TokenDelta]:
        """First tokens of resumed requests that have not run yet, so that clients need not wait for
        the step. Returns all other pending deltas too."""
        if not self._resumed:
            return []
        deltas, self._deltas = self._deltas, []
        return deltas

    def begin_transfer(self, request_id: str, transfer: Fence) -> None:
        """Protects the pages of a started request until `end_transfer`, even after the request's
        end."""
        request = self._table.get(request_id)
        assert request is not None, f"{request_id} holds no pages"
        self._kv.begin_transfer(request, transfer)

    def end_transfer(self, transfer: Fence) -> None:
        """Ends the protection of a transfer's pages; it reads and writes nothing any more."""
        self._kv.end_transfer(transfer)

    def retire(self, page_ids: Sequence[int]) -> int:
        """Removes held pages from the pool for good. Waiting requests that need more than what is
        left end. Returns how many pages are retired so far."""
        self._kv.retire(page_ids)
        for request in (*self._table.waiting, *self._table.awaiting_pages.values()):
            self._fit(request)
        return self._kv.retired_pages

    def flush_cache(self) -> None:
        """Removes all cached prefixes: requests that start from now on find none of them."""
        self._kv.flush()

    def next_batch(self, now: float) -> Batch | None:
        """The next batch to run. None if there is nothing to run or report, or if nothing can run
        before the results of the batch in flight arrive."""
        self._drop_aborted()
        if self._pending and self._speculation and self._awaits_tokens(self._speculation):
            return None
        launched = [item.request for step in self._pending.values() for item in step.prefill]
        leaving = self._plan_retraction(now, launched)
        if leaving.needed and self._pending:
            return None
        self._carry_out(leaving, now)
        prefill = self._planner.plan(now, launched, admits=not leaving.short)
        decode = self._table.running.ready() if self._planner.mix_decode(prefill) else []
        if prefill.has_work or decode or (not self._pending and (self._deltas or self._kv.loading)):
            return self._launch(prefill, decode, now)
        if not self._pending:
            self._ratio.reset()
            self._pacing.rest()
        return None

    def process(self, batch: Batch, result: SampledTokens, now: float) -> StepOutcome:
        """Processes the tokens of a batch; returns the results for requests since the last call."""
        pending = self._pending.pop(batch.step)
        self._kv.landed(batch.step, result.copied)
        self._pacing.landed(batch, now)
        accepted_tokens, plain = 0, PlainTokens([], [])
        if result.error:
            self._step_failed(pending, result.error)
        else:
            accepted_tokens, plain = self._take_in(batch, pending, result)
        if self._speculation:
            self._speculation.landed(batch, self._pacing.step_seconds)
        chunks = tuple(self._finished_chunks)
        outcome = StepOutcome(self._deltas, plain, chunks, accepted_tokens)
        self._deltas, self._finished_chunks = [], []
        return outcome

    def status(self) -> Status:
        """A frozen view for logs, metrics and the load report."""
        return status_of(
            self._counts, self._table, self._kv, self._ratio, self._pacing, self._speculation
        )

    def check_integrity(self) -> None:
        """Asserts that pages and rows are each free, cached or held by exactly one request."""
        self._kv.check_integrity(self._table.requests)
        self._table.running.check_integrity()

    # Before a batch.

    def _request_from(self, message: Generate) -> Request:
        longest = max_new_tokens(self._refusals.limits, len(message.prompt_ids))
        folder = self._adapters.get(message.adapter, "")
        return request_from(message, min(message.max_tokens, longest), folder)

    def _settled(self, message: Generate, request: Request) -> bool:
        """Whether the request is refused or has ended already; then `process` reports it."""
        if refused := self._refusals.refused(message, self._adapters):
            self._deltas.append(refused)
            return True
        if reason := end_of_resumed(request):
            self._deltas.append(TokenDelta(request.request_id, (), reason))
        return reason is not None

    def _fit(self, request: Request) -> None:
        """Ends a waiting request that no longer fits since pages were retired, or lowers the limit
        of its answer."""
        if error := self._refusals.shrunk(len(request.token_ids), request.max_tokens):
            self._fail(request, error, "unavailable")
        else:
            most = self._refusals.limits.request_tokens
            request.max_total_tokens = min(request.max_total_tokens, most)
            request.fast_path_until_tokens = min(request.fast_path_until_tokens, most - 1)

    def _drop_aborted(self) -> None:
        for request in self._aborting:
            if not request.ended:
                self._end(request, "abort")
        self._aborting.clear()

    def _plan_retraction(self, now: float, launched: Sequence[Request]) -> RetractionPlan:
        """Plans victims for missing pages of the next decode step, else for a far more urgent
        request."""
        table, kv, size = self._table, self._kv, self._settings.page_size
        needed, pages = len(table.running.rows_needing_page()), kv.available_pages
        if needed <= max(0, pages):
            return self._planner.plan_preemption(now, launched)
        running, cut = table.running.ready(), table.prefilling
        hold = bool(table.preallocated) or kv.has_leases
        return plan_retraction(running, cut, needed, pages, size, kv.in_transfer, others_hold=hold)

    def _carry_out(self, plan: RetractionPlan, now: float) -> None:
        """Sends requests back to the queue."""
        for victim in plan.victims:
            victim.preempted = victim.preempted or not plan.short
            self._retract(victim, now)
        if plan.stuck:
            self._end(plan.stuck, "error", f"{plan.message}; raise kvPoolTokens")
        if plan.short and self._table.running:
            self._ratio.raise_after_retraction(self._table.running)
        elif self._table.running:
            self._ratio.decay()

    def _launch(self, plan: PrefillPlan, decode: list[Request], now: float) -> Batch:
        self._step += 1
        starting = self._planner.start(plan, now)
        starting += self._newly_resumed()
        drafts = NO_DRAFTS
        if self._speculation and decode and not self._pending:
            drafts = self._speculation.plan(decode, plan.items)
        batch = self._writer.write(self._step, starting, plan.items, decode, drafts)
        if verified := drafts.verified:
            decode = [request for request in decode if request not in verified]
        self._pending[self._step] = StepInFlight(plan.items, decode, tuple(verified))
        self._kv.launched(self._step)
        self._pacing.launched(batch, plan.budget, now)
        self._counts.admission_reason = plan.reason
        self._counts.steps[batch.mode] += 1
        self._counts.chunk_cuts += sum(item.cut and item.completes for item in plan.items)
        return batch

    def _awaits_tokens(self, speculation: Speculation) -> bool:
        """Whether the next step depends on drafts in flight, or will probably have drafts."""
        verifies = any(step.verify for step in self._pending.values())
        return verifies or speculation.worth_waiting()

    def _newly_resumed(self) -> list[Request]:
        """Resumed requests that were not retracted and have not ended since."""
        resumed, self._resumed = self._resumed, []
        return [r for r in resumed if r.phase is Phase.RUNNING and not r.row_announced]

    # After a batch, and at a request's end.

    def _take_in(
        self, batch: Batch, pending: StepInFlight, result: SampledTokens
    ) -> tuple[int, PlainTokens]:
        """Processes the tokens of a step; returns how many drafts answers keep, and plain
        tokens."""
        rows = result.rows()
        for item, extend in zip(pending.prefill, batch.extend_rows, strict=True):
            self._prefilled(item, extend.token_ids, next(rows) if extend.samples else None)
        accepted_tokens = sum(
            self._verified(request, drafts, rows)
            for request, drafts in zip(pending.verify, result.drafts_of(batch), strict=True)
        )
        if result.logprobs:
            for request, sampled in zip(pending.decode, rows, strict=True):
                self._accept(request, sampled)
            return accepted_tokens, PlainTokens([], [])
        first = len(result.token_ids) - len(pending.decode)
        return accepted_tokens, self._decoded(pending.decode, result.token_ids[first:])

    def _step_failed(self, pending: StepInFlight, error: str) -> None:
        """Ends all requests of the step; nothing that the step computed is shared."""
        prefilling = [item.request for item in pending.prefill]
        for request in (*prefilling, *pending.decode, *pending.verify):
            if not request.ended:
                self._fail(request, error, "out_of_memory", trusted=False)

    def _prefilled(
        self, item: PrefillItem, token_ids: tuple[int, ...], sampled: SampledRow | None
    ) -> None:
        """Processes a computed prompt or chunk. Unless more layers follow, it is complete in the
        pool, and others can find it. `token_ids`: tokens that the runner computed."""
        request = item.request
        if request.ended or not item.completes:
            return
        request.prefilled_tokens = item.end
        page_ids, row = request.page_ids, row_of(request)
        if sampled is not None:
            self._accept(request, sampled)
        if not request.ended:
            self._kv.cache_unfinished(request)
        failed = sampled is not None and sampled[0] == NO_TOKEN
        if self._settings.report_chunks and not (request.aborting or failed):
            self._report_chunk(item, token_ids, row, page_ids)

    def _report_chunk(
        self, item: PrefillItem, token_ids: tuple[int, ...], row: int, page_ids: Sequence[int]
    ) -> None:
        """Reports a finished chunk; `page_ids`: the request's pages, even if this step ended the
        request."""
        size, start = self._settings.page_size, item.start if item.match is None else 0
        pages = tuple(page_ids[start // size : pages_for(item.end, size)])
        tokens = item.request.key_of(start, item.start) + key_of(token_ids)
        chunk = FinishedChunk(item.request.request_id, row, start, item.end, pages, tokens)
        self._finished_chunks.append(chunk)

    def _verified(
        self, request: Request, drafts: tuple[int, ...], rows: Iterator[SampledRow]
    ) -> int:
        """Accepts drawn tokens while they equal the drafts, and the first that differs. If no token
        was drawn after a draft, the next step draws one. Returns how many drafts are kept."""
        drawn, before = list(islice(rows, len(drafts) + 1)), len(request.token_ids)
        for sampled, draft in zip_longest(drawn, drafts):
            if sampled[0] == NO_TOKEN and len(request.token_ids) > before:
                break
            self._accept(request, sampled)
            if sampled[0] != draft:
                break
        accepted = max(0, len(request.token_ids) - before - 1)
        if self._speculation:
            self._speculation.verified(request, len(drafts), accepted)
        if not (request.ended or request.aborting):
            self._table.running.skip(request, accepted)
            self._kv.trim(request)
        return accepted

    def _decoded(self, requests: Sequence[Request], token_ids: Sequence[int]) -> PlainTokens:
        """Accepts the next token of each request, without scores. Most tokens are simply appended;
        returns these."""
        plain_ids: list[str] = []
        plain_tokens: list[int] = []
        for request, token in zip(requests, token_ids, strict=True):
            tokens = request.token_ids
            if token in request.special_tokens or len(tokens) >= request.fast_path_until_tokens:
                self._accept(request, (token, None, None))
            else:
                tokens.append(token)
                plain_ids.append(request.request_id)
                plain_tokens.append(token)
        return PlainTokens(plain_ids, plain_tokens)

    def _accept(self, request: Request, sampled: SampledRow) -> None:
        """Accepts a sampled token, unless its request has ended or is about to be dropped."""
        token, tokens = sampled[0], request.token_ids
        if token == NO_TOKEN and not request.ended:
            self._end(request, "error", NOT_FINITE, trusted=False)
        if request.ended or request.aborting:
            return
        below_max = len(tokens) < request.max_total_tokens
        if below_max:
            tokens.append(token)
        if below_max and token in request.stop_token_ids:
            self._end(request, "stop", sampled=sampled)
        elif len(tokens) >= request.max_total_tokens:
            self._end(request, "length", sampled=sampled)
        else:
            self._deltas.append(outcome_of(request, sampled))
            request.prompt_logprobs = -1  # reported, and not again after a retraction

    def _retract(self, request: Request, now: float) -> None:
        """Puts a request back at the head of the queue; prompt and output are prefilled again."""
        self._kv.release(request)
        self._table.requeue(request, now)
        self._counts.retractions += 1
        if self._kv.retired_pages:
            self._fit(request)

    def _fail(
        self, request: Request, error: str, refusal: Refusal | None, *, trusted: bool = True
    ) -> None:
        self._end(request, "error", error, trusted=trusted)
        self._deltas[-1] = msgspec.structs.replace(self._deltas[-1], refusal=refusal)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: str | None = None,
        *,
        sampled: SampledRow | None = None,
        trusted: bool = True,
    ) -> None:
        """Ends a request with its one terminal event. `trusted`: whether its computed pages may
        serve others."""
        if request.row is not None:
            self._kv.release(request, trusted=trusted)
        self._counts.finished_requests += reason in ("stop", "length")
        if reason in ("stop", "length") and not request.ignore_eos:
            self._ratio.learn(request.output_tokens, request.max_tokens)
        self._table.end(request)
        self._deltas.append(outcome_of(request, sampled, reason, error))
