"""One engine of a light fleet: a queue of prompts, rows that decode, and the running step.

Like an engine with an `slo`, it computes prompts together with the rows, as many tokens a step as
keep the promised ITL. Its queue is in the order of slack. Without prompts, several steps are
taken at once, until an answer ends; new work then waits for the end of the running step. Pages are
reserved for half of an answer, the average that rows hold. The caller keeps the time.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from typing import Final

from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import MIN_PROMPT_SHARE, EngineFigures, HandoverQueues, SloCounts

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.step_times import StepTimes
from sluice_simulator.autoscale.work import SlackOrder, Work

LEAST_TOKENS: Final = 16
"""Minimum prompt tokens of a step, a page: prompts always make progress next to answers."""


class Replica:
    """The engine; the fleet calls it with new work and at the end of each step."""

    def __init__(
        self, name: str, role: Role, ready_seconds: float, constants: Constants, times: StepTimes
    ) -> None:
        self.name = name
        self.role = role
        self._computes = role is not Role.DECODE
        self.ready_seconds = ready_seconds
        self.draining = False
        self.becomes: Role | None = None
        """Role that it takes once it has drained; None: it is removed then."""
        self.version = 0
        """Version of the running step: an event with an older one is void."""
        self.waiting: deque[Work] = deque()
        self.handed_over: list[Work] = []
        """Requests whose prompts came from a prefill engine since the last step began."""
        self.queued_tokens = 0
        self.rows = 0
        self.coming = 0
        """Requests that were promised a place here: rows whose prompt is computed elsewhere, or
        prompts that wait for a decode engine."""
        self.reserved_tokens = 0
        self.received_tokens = self.generated_tokens = self.finished = 0
        self._slo_requests = self._slo_in_time = 0
        self.pace = Pace()
        self._times = times
        self.kv_pool_tokens = constants.kv_pool_tokens
        self._max_running_requests = constants.max_running_requests
        self._chunk_tokens = constants.chunk_tokens
        self._promise = constants.promise
        self._itl_seconds = constants.promise.itl_seconds
        self._context = 0
        self._step = 0
        self._ends: list[tuple[int, int, Work]] = []
        self._order = SlackOrder(constants.promise.ttft_seconds)
        self._prompts: list[Work] = []
        self._steps = 0
        self._began = 0.0
        self._tokens = 0

    @property
    def busy(self) -> bool:
        return self._steps > 0

    @property
    def idle(self) -> bool:
        """Whether nothing runs, waits or is to come."""
        return not (self._steps or self.waiting or self.rows or self.coming)

    def load(self, now: float) -> float:
        """Load by which the router compares engines: share of its rows, plus seconds of waiting
        prompts."""
        share = (self.rows + self.coming + len(self.waiting)) / self._max_running_requests
        if (
            share < 1.0
            and self._kv_tokens(self._steps) >= self.kv_pool_tokens
            and self.kv_used(now) >= 1
        ):
            share = 1.0
        return share + self.queued_tokens * self._token_seconds

    def add(self, work: Work) -> None:
        """Adds a prompt to compute, or on a decode engine a request that needs pages. The queue is
        in order of arrival. A request that was handed back counts as received where it came
        first."""
        place = len(self.waiting)
        while place and self._is_behind(self.waiting[place - 1], work):
            place -= 1
        self.waiting.insert(place, work)
        if self.role is not Role.DECODE:
            self.queued_tokens += work.prompt_tokens
            if not work.moves:
                self.received_tokens += work.prompt_tokens

    def _is_behind(self, other: Work, work: Work) -> bool:
        return not other.computed_tokens and other.arrival_seconds > work.arrival_seconds

    def free_rows(self) -> int:
        """Requests that could begin now; 0 with a queue."""
        if self.waiting or self.reserved_tokens >= self.kv_pool_tokens:
            return 0
        return max(0, self._max_running_requests - self.rows - self.coming - len(self._prompts))

    def free_tokens(self) -> int:
        return self.kv_pool_tokens - self.reserved_tokens

    def seconds_with(self, work: Work) -> float:
        """Predicted time to compute what waits and then the prompt of `work`."""
        return self.queued_tokens * self._token_seconds + self.seconds_of(work)

    def seconds_of(self, work: Work) -> float:
        """Predicted time to compute the prompt."""
        return work.prompt_tokens * self._token_seconds

    @property
    def _token_seconds(self) -> float:
        return self._order.token_seconds or self._times.token_seconds

    def not_begun(self, now: float) -> list[tuple[Work, float]]:
        """Requests that it could hand back, the oldest first, with the seconds of the queue ahead
        of each. The seconds are infinite where they wait for pages or rows."""
        works = [work for work in self.waiting if not work.computed_tokens]
        if not works or not self._computes or not self.can_hold(works[0]):
            return [(work, math.inf) for work in works]
        begun = self.queued_tokens - sum(work.prompt_tokens for work in works)
        ahead, tokens = {}, max(0, begun)
        for work in self._order.of(self.waiting, self.queued_tokens, now):
            if not work.computed_tokens:
                ahead[work.number] = tokens * self._token_seconds
                tokens += work.prompt_tokens
        return [(work, ahead[work.number]) for work in works]

    def hand_back(self, work: Work) -> None:
        """Removes a request that has not begun."""
        self.waiting.remove(work)
        if self.role is not Role.DECODE:
            self.queued_tokens -= work.prompt_tokens

    def can_hold(self, work: Work) -> bool:
        """Whether there is a row and pages for it; an empty engine accepts any request."""
        if not self.reserved_tokens:
            return True
        room = self.kv_pool_tokens - self.reserved_tokens
        rows = self.rows + self.coming + len(self._prompts)
        return work.reserved_tokens <= room and rows < self._max_running_requests

    def start(self, now: float) -> float | None:
        """Begins a step, or several at once, if there is work; returns when it ends."""
        prompts = self._take_prompts(now) if self.waiting and self._computes else 0.0
        if prompts:
            self._steps = 1
            seconds = self._times.step_seconds(prompts, self._context)
            self._order.token_seconds = seconds / self._tokens
        elif self.rows:
            self._steps = self._ends[0][0] - self._step
            seconds = self._times.run_seconds(self._steps, self.rows, self._context)
        else:
            self._steps = 0
            return None
        self._began = now
        self.version += 1
        return now + seconds

    def interrupt(self, now: float) -> float | None:
        """Handles new work; returns the end of the running step if several were planned at once."""
        if self._steps <= 1:
            return None
        steps = self._times.steps_by(now - self._began, self.rows, self._context)
        if steps >= self._steps:
            return None
        self._steps = steps
        self.version += 1
        return self._began + self._times.run_seconds(steps, self.rows, self._context)

    def end(self, now: float) -> tuple[list[Work], list[Work]]:
        """Ends the step; returns prompts that are computed now, and answers that have ended."""
        seconds, steps = now - self._began, self._steps
        if self._tokens:
            alone = self._times.step_seconds(0.0, self._context)
            self.pace.prefilled(self._tokens, seconds, seconds - alone)
        self.pace.decoded(self.rows * steps, self.rows * seconds)
        self._step += steps
        self._context += self.rows * steps
        self.generated_tokens += self.rows * steps
        ended = []
        while self._ends and self._ends[0][0] <= self._step:
            work = heapq.heappop(self._ends)[2]
            self._forget(work)
            work.ended_seconds = now
            self._count_answer(work)
            ended.append(work)
        computed, self._prompts, self._tokens, self._steps = self._prompts, [], 0, 0
        if self.role is Role.PREFILL:
            self.reserved_tokens -= sum(work.reserved_tokens for work in computed)
            self.finished += len(computed)
        return computed, ended

    def decode(self, work: Work, now: float) -> bool:
        """Starts decoding a request between steps: its first token is there. False: that token was
        its last."""
        work.first_token_seconds = now
        self.generated_tokens += 1
        self._slo_requests += self._is_late(work, now)
        if work.output_tokens <= 1:
            work.ended_seconds = now
            self._count_answer(work)
            self.finished += 1
            self.reserved_tokens -= work.reserved_tokens
            return False
        self.rows += 1
        self._context += work.prompt_tokens + 1
        heapq.heappush(self._ends, (self._step + work.output_tokens - 1, work.number, work))
        return True

    def slo_counts(self, now: float) -> SloCounts | None:
        """Counts of kept promises, as an engine with an slo reports them; requests that wait for a
        prefill engine count once their prompt is here. None in a prefill engine."""
        if self.role is Role.PREFILL:
            return None
        late = sum(
            self._is_late(work, now) for works in (self.waiting, self._prompts) for work in works
        )
        return SloCounts(self._slo_requests + late, self._slo_in_time, late)

    def _is_late(self, work: Work, now: float) -> bool:
        return now - work.arrival_seconds > self._promise.ttft_seconds

    def _count_answer(self, work: Work) -> None:
        """Counts an answer that ended, unless its late first token was counted."""
        if not self._is_late(work, work.first_token_seconds):
            itl_seconds = work.ended_seconds - work.first_token_seconds
            itl_seconds /= max(1, work.output_tokens - 1)
            self._slo_requests += 1
            self._slo_in_time += itl_seconds <= self._promise.itl_seconds

    def kv_used(self, now: float) -> float:
        """Share of the pool that requests hold."""
        return self.kv_tokens(now) / self.kv_pool_tokens

    def kv_tokens(self, now: float) -> int:
        """Tokens of the pool that requests hold, taken for pages of one token."""
        return min(self.kv_pool_tokens, self._kv_tokens(self._steps_by(now)))

    def _kv_tokens(self, steps: int) -> int:
        """Tokens that requests hold, after so many steps of several at once."""
        partly = self.waiting[0].computed_tokens if self.waiting else 0
        kv_tokens = self._context + self.rows * steps + partly
        if self.role is Role.PREFILL:
            kv_tokens += sum(work.prompt_tokens for work in self._prompts)
        return kv_tokens

    def itl_seconds(self, now: float) -> float | None:
        """Recent ITL; of several steps at once, only finished ones count."""
        steps = self._steps_by(now)
        seconds = self._times.run_seconds(steps, self.rows, self._context) if steps else 0.0
        return self.pace.itl_seconds(now, self.rows * steps, self.rows * seconds)

    def _steps_by(self, now: float) -> int:
        """Number of steps that are over, of several at once."""
        if self._steps <= 1:
            return 0
        return self._times.steps_by(now - self._began, self.rows, self._context)

    def _take_prompts(self, now: float) -> float:
        """Puts prompts into the next step; returns the seconds that they take."""
        left, seconds = self._chunk_tokens, 0.0
        allowed = self._prompt_seconds_allowed()
        order: Iterator[Work] | None = None
        while left and self.waiting:
            work = self.waiting[0]
            if not work.computed_tokens:
                order = order or self._order.of(self.waiting, self.queued_tokens, now)
                work = next(order)
                if not self.can_hold(work):
                    break
                self._admit(work)
            tokens = min(left, work.prompt_tokens - work.computed_tokens)
            within = self._times.tokens_within(allowed - seconds, work.computed_tokens)
            tokens = min(tokens, max(within, 0 if seconds else LEAST_TOKENS))
            seconds += self._compute(work, tokens)
            left -= tokens
            if work.computed_tokens < work.prompt_tokens:
                break
            self._prompts.append(self.waiting.popleft())
        return seconds

    def _prompt_seconds_allowed(self) -> float:
        """Seconds of prompts that a step may have so that the rows that wait for it keep their
        ITL."""
        if not self.rows:
            return math.inf
        return self._times.prompts_within(self._itl_seconds, self._context)

    def _admit(self, work: Work) -> None:
        """Puts a request at the head of the queue, where the prompt is that is continued."""
        self._order.admitted(work)
        if work is not self.waiting[0]:
            self.waiting.remove(work)
            self.waiting.appendleft(work)
        self.reserved_tokens += work.reserved_tokens

    def _compute(self, work: Work, tokens: int) -> float:
        seconds = self._times.prompt_seconds(tokens, work.computed_tokens)
        work.computed_tokens += tokens
        self.queued_tokens -= tokens
        self._tokens += tokens
        return seconds

    def _forget(self, work: Work) -> None:
        self.rows -= 1
        self._context -= work.prompt_tokens + work.output_tokens
        self.reserved_tokens -= work.reserved_tokens
        self.finished += 1


class Pace:
    """Rates as the real engine reports them: prefill rate over steps with prompts, and recent
    ITL."""

    FORGETTING: Final = 0.98
    ITL_SECONDS: Final = 10.0

    def __init__(self) -> None:
        self._weight = self._seconds = self._added_seconds = 0.0
        self._tokens, self._waited = 0, 0.0
        self._seen: deque[tuple[float, int, float]] = deque()

    def prefilled(self, tokens: int, seconds: float, added_seconds: float) -> None:
        """Records a step with prompts, and by how much they lengthened it; it counts more with more
        tokens."""
        self._weight = self._weight * self.FORGETTING + tokens * tokens
        self._seconds = self._seconds * self.FORGETTING + tokens * seconds
        self._added_seconds = self._added_seconds * self.FORGETTING + tokens * added_seconds

    def decoded(self, tokens: int, waited_seconds: float) -> None:
        self._tokens += tokens
        self._waited += waited_seconds

    @property
    def prefill_tokens_per_second(self) -> float | None:
        return self._weight / self._seconds if self._seconds else None

    @property
    def marginal_prefill_tokens_per_second(self) -> float | None:
        """Rate over the time that prompts add, bounded as in an engine: prompts may hide behind the
        weights."""
        if not self._seconds:
            return None
        return self._weight / max(self._added_seconds, self._seconds * MIN_PROMPT_SHARE)

    def itl_seconds(self, now: float, tokens: int, waited_seconds: float) -> float | None:
        """ITL over about the last ten seconds; None while no answer ran. `tokens` and
        `waited_seconds`: not yet added."""
        total, waited = self._tokens + tokens, self._waited + waited_seconds
        self._seen.append((now, total, waited))
        while len(self._seen) > 2 and self._seen[1][0] <= now - self.ITL_SECONDS:
            self._seen.popleft()
        _, before, waited_before = self._seen[0]
        generated = total - before
        return (waited - waited_before) / generated if generated > 0 else None


def report(replica: Replica, now: float, constants: Constants) -> EngineSample:
    """The engine's load report at `now`; policies see it `report_age_seconds` later."""
    rate = replica.pace.prefill_tokens_per_second
    waiting, running = len(replica.waiting), replica.rows
    decode = replica.role is Role.DECODE
    return EngineSample(
        name=replica.name,
        role=replica.role,
        epoch=replica.name,
        condition="draining" if replica.draining else "ready",
        age_seconds=constants.report_age_seconds,
        max_running_requests=constants.max_running_requests,
        figures=EngineFigures(
            queued_requests=waiting,
            queued_tokens=replica.queued_tokens,
            queued_work_seconds=replica.queued_tokens / rate if rate else 0.0,
            running_requests=running + (replica.coming if decode else 0),
            kv_pages_total=replica.kv_pool_tokens,
            kv_pages_free=replica.kv_pool_tokens - replica.kv_tokens(now),
            queues=HandoverQueues(
                bootstrap=waiting if replica.role is Role.PREFILL else 0,
                prealloc=waiting if decode else 0,
                transfer=replica.coming if decode else 0,
            ),
            prefill_tokens_per_second=rate,
            marginal_prefill_tokens_per_second=replica.pace.marginal_prefill_tokens_per_second,
            itl_seconds=replica.itl_seconds(now),
            prompt_tokens_total=replica.received_tokens,
            generated_tokens_total=replica.generated_tokens,
            finished_requests_total=replica.finished,
        ),
        slo=replica.slo_counts(now),
    )
