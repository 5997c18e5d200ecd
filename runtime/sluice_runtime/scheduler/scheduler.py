"""The batch scheduler: what runs in the next step, and what its results mean.

`next_batch` and `process` are the whole story; admission, retraction and the queue's order are
decided by pure functions beside this file. Knows no model, no device and no clock.

Every running row's next page is secured before any prompt is considered, so a prompt is never
admitted on pages that an answer needs now, and a step that retracts admits nothing new. What a
request holds is kept by `holdings`.

The next batch may be made while one is in flight: a row in flight has one more token than is known,
and whatever needs to know it waits for the results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sluice_runtime.messages import FinishReason, Generate, Refusal, TokenDelta
from sluice_runtime.scheduler import leap
from sluice_runtime.scheduler.admission import PrefillItem
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, Drawn, ForwardMode, SampledTokens
from sluice_runtime.scheduler.holdings import Holdings
from sluice_runtime.scheduler.joining import Joining
from sluice_runtime.scheduler.limits import most_new_tokens, queue_full, refusal
from sluice_runtime.scheduler.new_token_ratio import NewTokenRatio
from sluice_runtime.scheduler.pacing import Pacing
from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.request import Phase, Request, outcome_of, request_from
from sluice_runtime.scheduler.retraction import RetractionPlan, plan_retraction
from sluice_runtime.scheduler.roster import Roster
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.scheduler.status import Status, progress_of
from sluice_runtime.scheduler.writing import BatchWriter

NOT_FINITE: Final = "the model's logits are not finite, so no token can be drawn"


@dataclass(frozen=True, slots=True)
class Flight:
    """A step whose results are not in."""

    prefill: tuple[PrefillItem, ...]
    decode: list[Request]


class Scheduler:
    """Continuous batching over one page pool. `process` follows each batch, in their order; at most
    one batch may be ahead of it."""

    def __init__(self, settings: SchedulerSettings, allocator: PageAllocator) -> None:
        self._settings = settings
        self._holdings = Holdings(settings, allocator)
        self._ratio = NewTokenRatio(settings.conservativeness)
        self._pacing = Pacing(settings)
        self._roster = Roster(settings.page_size)
        self._joining = Joining(settings, self._roster, self._holdings, self._pacing, self._ratio)
        self._writer = BatchWriter(self._roster, self._holdings)
        self._aborting: list[Request] = []
        self._flights: dict[int, Flight] = {}
        self._outcomes: list[TokenDelta] = []
        self._step = 0
        self._steps: Counter[str] = Counter({mode.value: 0 for mode in ForwardMode})
        self._retractions = 0
        self._chunk_cuts = 0

    def add(self, message: Generate) -> None:
        """Queues a request. One that can never run ends at once, and `process` reports it."""
        if error := self._refusal(message):
            self._outcomes.append(TokenDelta(message.request_id, (), "error", error))
            return
        if error := queue_full(self._settings, len(self._roster)):
            refused = TokenDelta(message.request_id, (), "error", error, refusal="overloaded")
            self._outcomes.append(refused)
            return
        most = most_new_tokens(self._settings.limits, len(message.prompt_ids))
        self._roster.join(request_from(message, min(message.max_tokens, most)))

    def abort(self, request_id: str) -> None:
        """The next batch drops the request, wherever it is; unknown ids are ignored."""
        if request := self._roster.get(request_id):
            request.aborting, request.plain_below = True, 0
            self._aborting.append(request)

    def fail(self, request_id: str, error: str, refusal: Refusal | None = None) -> None:
        """Ends a request with an error, `refusal` for its kind; unknown ids are ignored."""
        if request := self._roster.get(request_id):
            self._end(request, "error", error)
            self._outcomes[-1] = msgspec.structs.replace(self._outcomes[-1], refusal=refusal)

    def flush_cache(self) -> None:
        """What was computed before is not found by requests that start from now on."""
        self._holdings.flush()

    def next_batch(self, now: float) -> Batch | None:
        """What to run now; None when there is nothing to run and nothing to report, or nothing
        before the results of the batch in flight are in."""
        self._drop_aborted()
        launched = [item.request for flight in self._flights.values() for item in flight.prefill]
        leaving = self._plan_retraction(now, launched)
        if leaving.needed and self._flights:
            return None
        self._carry_out(leaving, now)
        prefill = self._joining.plan(now, launched, admits=not leaving.short)
        decode = self._roster.running.ready() if self._joining.answers_join(prefill) else []
        if prefill.items or decode or (self._outcomes and not self._flights):
            return self._launch(prefill.items, decode, now)
        if not self._flights:
            self._ratio.reset()
            self._pacing.rest()
        return None

    def process(self, batch: Batch, result: SampledTokens, now: float) -> list[TokenDelta]:
        """Takes the tokens of a batch in; returns what became of requests since the last call."""
        flight, rows = self._flights.pop(batch.step), result.drawn()
        self._holdings.landed(batch.step)
        self._pacing.landed(batch, now)
        for item in flight.prefill:
            self._prefilled(item, None if item.cut else next(rows))
        if result.logprobs:
            self._decoded_and_scored(flight.decode, rows)
        else:
            first = len(result.token_ids) - len(flight.decode)
            self._decoded(flight.decode, result.token_ids[first:])
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def leap(self, most: int, now: float) -> int:
        """Takes decode steps at once that would change nothing but lengths, `most` at most; returns
        how many. For simulations: every row repeats its last token, and the queue keeps the order
        that it has now."""
        if self._flights or self._aborting or self._outcomes or self._roster.prefilling:
            return 0
        running, size = self._roster.running, self._settings.page_size
        most = leap.alike_steps(running, self._holdings.available_pages, size, most)
        head, steps = next(self._joining.in_order(now), None), 0
        while steps < most and not (head and self._joining.would_admit(head)):
            stride = 1 if head else most
            leap.take(running, self._holdings, size, stride)
            for _ in range(stride):
                self._ratio.decay()
            steps += stride
        self._step += steps
        self._steps[ForwardMode.DECODE] += steps
        self._pacing.rest()
        return steps

    def status(self) -> Status:
        """A frozen view for logs, metrics and the load report."""
        prefilling = self._roster.prefilling
        uncomputed = prefilling.uncomputed_tokens if prefilling else 0
        return Status(
            queued_requests=len(self._roster.waiting),
            queued_tokens=self._roster.waiting.tokens + uncomputed,
            running_requests=len(self._roster.running) + (prefilling is not None),
            pages_total=self._holdings.total_pages,
            pages_free=self._holdings.free_pages,
            pages_evictable=self._holdings.evictable_pages,
            evicted_pages=self._holdings.evicted_pages,
            new_token_ratio=self._ratio.value,
            beta=self._ratio.beta,
            prefilling=progress_of(prefilling),
            retractions=self._retractions,
            chunk_cuts=self._chunk_cuts,
            steps=dict(self._steps),
            pace=self._pacing.status(),
        )

    def check_integrity(self) -> None:
        """Asserts that pages and rows are each free, cached or held by exactly one request."""
        self._holdings.check_integrity(self._roster.requests)
        self._roster.running.check_integrity()

    # Before a batch: who leaves.

    def _refusal(self, message: Generate) -> str | None:
        if message.request_id in self._roster:
            return f"request id {message.request_id!r} is in use"
        if message.max_tokens < 0:
            return f"max_tokens {message.max_tokens} is not allowed; allowed: at least 0"
        return refusal(self._settings.limits, len(message.prompt_ids))

    def _drop_aborted(self) -> None:
        for request in self._aborting:
            if not request.ended:
                self._end(request, "abort")
        self._aborting.clear()

    def _plan_retraction(self, now: float, launched: Sequence[Request]) -> RetractionPlan:
        """For the pages of the next decode step, else for a request that is far more urgent."""
        running = self._roster.running.ready()
        plan = plan_retraction(
            running,
            self._roster.prefilling,
            self._holdings.available_pages,
            self._settings.page_size,
        )
        if plan.needed:
            return plan
        return self._joining.plan_preemption(now, running, launched)

    def _carry_out(self, plan: RetractionPlan, now: float) -> None:
        """Sends requests back to the queue."""
        for victim in plan.victims:
            victim.preempted = victim.preempted or not plan.short
            self._retract(victim, now)
        if plan.stuck:
            self._end(plan.stuck, "error", f"{plan.message}; raise kvPoolTokens")
        if plan.short:
            self._ratio.raise_after_retraction(self._roster.running)
        elif self._roster.running:
            self._ratio.decay()

    def _launch(self, prefill: tuple[PrefillItem, ...], decode: list[Request], now: float) -> Batch:
        self._step += 1
        starting = self._joining.start(prefill, now)
        batch = self._writer.write(self._step, starting, prefill, decode)
        self._flights[self._step] = Flight(prefill, decode)
        self._holdings.launched(self._step)
        self._pacing.made(batch, now)
        self._steps[batch.mode] += 1
        self._chunk_cuts += sum(item.cut for item in prefill)
        return batch

    # After a batch, and on the way out.

    def _prefilled(self, item: PrefillItem, drawn: Drawn | None) -> None:
        """A whole prompt or a chunk of one: others find it from now on."""
        request = item.request
        if request.ended:
            return
        request.prefilled_tokens = item.end
        if drawn is not None:
            self._accept(request, drawn)
        if not request.ended:
            self._holdings.keep(request)

    def _decoded_and_scored(self, requests: Sequence[Request], rows: Iterator[Drawn]) -> None:
        """The next token of each."""
        for request, drawn in zip(requests, rows, strict=True):
            self._accept(request, drawn)

    def _decoded(self, requests: Sequence[Request], token_ids: Sequence[int]) -> None:
        """The same where nobody asks for scores: what is just one token more, which is nearly
        always, is taken at once."""
        outcomes = self._outcomes
        for request, token in zip(requests, token_ids, strict=True):
            tokens = request.token_ids
            if token in request.special_tokens or len(tokens) >= request.plain_below:
                self._accept(request, (token, None, None))
            else:
                tokens.append(token)
                outcomes.append(TokenDelta(request.request_id, (token,)))

    def _accept(self, request: Request, drawn: Drawn) -> None:
        """A sampled token; nothing of a request that ended or is about to be dropped."""
        token, tokens = drawn[0], request.token_ids
        if token == NO_TOKEN and not request.ended:
            self._end(request, "error", NOT_FINITE, trusted=False)
        if request.ended or request.aborting:
            return
        asked = len(tokens) < request.most_tokens
        if asked:
            tokens.append(token)
        if asked and token in request.stop_token_ids:
            self._end(request, "stop", drawn=drawn)
        elif len(tokens) >= request.most_tokens:
            self._end(request, "length", drawn=drawn)
        else:
            self._outcomes.append(outcome_of(request, drawn))
            request.prompt_logprobs = -1  # told, and not again after a retraction

    def _retract(self, request: Request, now: float) -> None:
        """Back to the head of the queue; what it generated is prefilled again with its prompt."""
        self._holdings.release(request)
        self._roster.send_back(request, now)
        self._retractions += 1

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: str | None = None,
        *,
        drawn: Drawn | None = None,
        trusted: bool = True,
    ) -> None:
        """The one terminal event of a request; `trusted`: what it computed may serve others."""
        if request.phase is not Phase.WAITING:
            self._holdings.release(request, trusted=trusted)
        if reason in ("stop", "length") and not request.ignore_eos:
            self._ratio.learn(request.output_tokens, request.max_tokens)
        self._roster.end(request)
        self._outcomes.append(outcome_of(request, drawn, reason, error))
