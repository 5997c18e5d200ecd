"""Which rows of a step are verified, and with how many drafts.

A draft goes to the row that is most likely to keep it, as long as its chance is worth its time: the
step's expected tokens over its expected seconds grow. Both are measured: how often a row's drafts
were right, also of those that were not verified, and how long steps of so many tokens take. So a
row that copies nothing drafts nothing, and a batch that is full enough to be bound by computation
drafts less or nothing.

A draft model lags behind, and catches up on a row before it drafts for it; that is part of the
price. Whether it is right shows only where it drafts. So rows whose drafts do not pay verify one
now and then, as often as that costs a small share of the time.

Drafts take what nobody else has. Knows no device and no clock; answers do not depend on it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple, Protocol

from sluice_runtime.scheduler.admission import PrefillItem
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch
from sluice_runtime.scheduler.kv_allocator import KvAllocator, pages_for
from sluice_runtime.scheduler.ngram import NGramDrafts
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import RequestTable
from sluice_runtime.scheduler.settings import SchedulerSettings

FIRST_CHANCE: Final = 0.6
"""Of a row's drafts before any was compared with what was drawn."""
LEARNING: Final = 0.15
"""Weight of each draft that was compared."""
LEAST_CHANCE: Final = 0.1
"""A draft that is less likely to be kept is not worth the step without a step ahead."""
MARGIN: Final = 1.2
"""Over the predicted time of a step, where a time is promised: some steps take longer."""
MODEL_LEARNING: Final = 0.05
"""The same of a draft model, which is about as often right with one row as with others."""
LEARNING_OF_ALL: Final = 0.05
"""The same of all its rows: new ones begin with their chance."""
PROBE_LEARNING: Final = 0.5
"""Weight of a draft after a row had none for a while."""
PROBE_SHARE: Final = 0.015
"""Of the time, for drafts that are not expected to pay."""
FIRST_WAIT: Final = 8
"""Tokens of a row without drafts before such a draft; twice as many after each wrong one."""
LONGEST_WAIT: Final = 512
LIKELY: Final = 0.5
"""The chance of a model's draft that is verified while nobody knows how long steps take, or while
drafts have cost more than they gave."""
PROBE_STEPS: Final = 16
"""A probe's catching up takes no more steps than that, or than were saved for it."""
PAID_BACK_WITHIN: Final = 128
"""Tokens in which what catching up costs has to be gained."""
LEAST_STEPS: Final = 3.8
"""Before the time of a step is predicted."""
FORGETTING: Final = 0.98
"""A step counts for a third after some fifty more."""


class RowDrafts(Protocol):
    """Where the drafts of one request come from."""

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """At most `tokens` that may follow; `token_ids` only grow from call to call."""
        ...


class ModelDrafts:
    """The draft model proposes them in the step that verifies them: see `VerifyRow`."""

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        """See `RowDrafts`."""
        return (NO_TOKEN,) * tokens


class DraftRoom(NamedTuple):
    """What a step has left for drafts."""

    tokens: int
    """Also rows: each draft has its own logits."""
    pages: int
    """After decode rows have theirs."""


class Speculation:
    """The drafts of one engine."""

    def __init__(
        self,
        settings: SchedulerSettings,
        table: RequestTable,
        kv: KvAllocator,
        drafts_of_row: Callable[[], RowDrafts] | None = None,
    ) -> None:
        """`drafts_of_row`: instead of what the settings say."""
        by_settings = ModelDrafts if settings.draft_model else NGramDrafts
        self._drafts_of_row = drafts_of_row or by_settings
        self._settings = settings
        self._table = table
        self._kv = kv
        self._rows: dict[Request, _Row] = {}
        self._time = StepTime()
        self._learning = MODEL_LEARNING if settings.draft_model else LEARNING
        self._lag = Lag()
        self._chance = FIRST_CHANCE
        """Of new rows."""
        self._accepted_in_step = 0
        self._probes: list[Request] = []
        """Rows that verify a draft not expected to pay, in the step that was planned."""
        self.drafted_tokens = 0
        """Since the start: drafts that were verified."""
        self.accepted_tokens = 0
        """Of these, drafts that answers kept."""

    def worth_waiting(self) -> bool:
        """With a step in flight: whether rows have drafts before its tokens are known, so that they
        probably have some after that. Beside prompts none where a time is promised."""
        table = self._table
        if self._settings.target and (table.prefilling or len(table.waiting)):
            return False
        return bool(self.plan(self._table.running.ready(), ()))

    def plan(
        self, running: Sequence[Request], prefill: Sequence[PrefillItem]
    ) -> dict[Request, tuple[int, ...]]:
        """The drafts of a step in which `running` decode, beside these prompts, which have their
        rows and pages."""
        room = self._room(len(running), prefill)
        self._follow(running)
        self._probes = [] if prefill else self._next_probes(room)
        counts = self._counts(len(running), self._chances(room.tokens), room)
        counts |= dict.fromkeys(self._probes, 1)
        drafts = {
            request: self._rows[request].source.draft(request.token_ids, count)
            for request, count in counts.items()
        }
        return {request: drafted for request, drafted in drafts.items() if drafted}

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """A step has verified these drafts of a row."""
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self._accepted_in_step += accepted
        lacked = _lag_tokens(request) - 1
        # The draft model has computed all of them but the last.
        request.draft_computed_tokens = request.computed_tokens - 1 + min(drafted, accepted + 1)
        probed = request in self._probes
        if row := self._rows.get(request):
            for right in [True] * accepted + [False] * (accepted < drafted):
                row.learn(right=right, weight=PROBE_LEARNING if probed else self._learning)
                self._chance += LEARNING_OF_ALL * (right - self._chance)
            row.wait(len(request.token_ids), right=accepted > 0, probed=probed)
            row.probe_again = probed and lacked > 1 and self._settings.draft_lags

    def landed(self, batch: Batch, seconds: float) -> None:
        """A step took so long."""
        accepted, self._accepted_in_step = self._accepted_in_step, 0
        if batch.extend_rows or not batch.answering_rows:
            return
        tokens = self._size(batch.answering_rows, batch.draft_tokens)
        # A row whose drafts were all right lacks one, at nearly no cost.
        lacked = sum(len(row.token_ids) - 1 for row in batch.draft_rows)
        if not lacked:
            self._time.observe(tokens, seconds)
        else:
            self._lag.observe(lacked, seconds - self._time.seconds(tokens))
        self._lag.credit_seconds += PROBE_SHARE * seconds
        if batch.verify_rows:
            without = self._time.seconds(self._size(batch.answering_rows, 0))
            self._lag.settle(without * (1 + accepted / batch.answering_rows) - seconds)

    def _room(self, decoding: int, prefill: Sequence[PrefillItem]) -> DraftRoom:
        """Rows that are free, tokens that the chunk has left, pages that are free. Where a time is
        promised, prompts have all of it."""
        settings = self._settings
        if settings.target and prefill:
            return DraftRoom(0, 0)
        tokens = (settings.chunk_size or settings.max_prefill_tokens) - decoding
        tokens -= sum(item.end - item.start for item in prefill)
        needed_pages = len(self._table.running.rows_needing_page())
        pages = self._kv.available_pages - needed_pages
        return DraftRoom(min(self._kv.free_rows, tokens), pages)

    def _follow(self, running: Sequence[Request]) -> None:
        """Looks up the drafts of rows, and compares those of the last time with what was drawn.
        Forgets rows that are gone."""
        known, self._rows = self._rows, {}
        for request in running:
            if request.drafts:
                row = known.get(request) or self._new_row(request)
                row.follow(request.token_ids)
                self._rows[request] = row

    def _new_row(self, request: Request) -> _Row:
        row = _Row(self._drafts_of_row(), waits_from_tokens=len(request.token_ids))
        if self._settings.draft_model:
            row.chance = self._chance
        return row

    def _lag_seconds(self, request: Request) -> float:
        """What it takes the draft model to catch up on a row."""
        if not self._settings.draft_model:
            return 0.0
        return self._lag.token_seconds * _lag_tokens(request)

    def _size(self, decoding: int, drafts: int) -> int:
        """What a step's time is predicted from. A draft model takes time for drafts that it does
        not take for rows."""
        return drafts + (1 if self._settings.draft_model else decoding)

    def _next_probes(self, room: DraftRoom) -> list[Request]:
        """All rows that have waited long enough, once what was lost before is paid: a pass of the
        draft model takes little more for several. Not those that lack too much."""
        if not self._settings.draft_model or (more := min(room)) <= 0:
            return []
        rows = [(r, row) for r, row in self._rows.items() if r.remaining_tokens > 1]
        again = [request for request, row in rows if row.probe_again][:more]
        if again and self._keeps_target(len(again) + 1, 0.0):
            return again
        if self._lag.credit_seconds < 0:
            return []
        most = max(self._lag.credit_seconds, PROBE_STEPS * self._time.seconds(1))
        probes: list[Request] = []
        waited = [request for request, row in rows if row.has_waited]
        lag = 0.0
        for request in sorted(waited, key=_lag_tokens)[:more]:
            lag += self._lag_seconds(request)
            if lag > most or not self._keeps_target(len(probes) + 2, lag):
                break
            probes.append(request)
        return probes

    def _chances(self, tokens: int) -> list[tuple[float, int, Request]]:
        """Of the first draft of each row that has one, as a heap: less the chance, and a number so
        that requests are not compared."""
        if tokens <= 0:
            return []
        chances = [
            (-row.chance, number, request)
            for number, (request, row) in enumerate(self._rows.items())
            if row.expected is not None
            and request not in self._probes
            and row.chance >= LEAST_CHANCE
            and request.remaining_tokens > 1
        ]
        heapq.heapify(chances)
        return chances

    def _counts(
        self, decoding: int, heap: list[tuple[float, int, Request]], room: DraftRoom
    ) -> dict[Request, int]:
        """How many drafts each row has. A row's second draft counts only if the first was right,
        and so on."""
        counts: dict[Request, int] = {}
        expected, lag = float(decoding), 0.0
        drafted = len(self._probes)
        pages = room.pages - drafted
        while heap and drafted < room.tokens:
            less_chance, number, request = heapq.heappop(heap)
            count = counts.get(request, 0) + 1
            more_lag = self._lag_seconds(request) if count == 1 else 0.0
            tokens = self._size(decoding, drafted)
            if not self._pays(-less_chance, expected, tokens, more_lag):
                if more_lag:
                    continue
                break
            opens = _opens_page(request, count, self._settings.page_size)
            if opens > pages or not self._keeps_target(tokens + 1, lag + more_lag):
                continue
            counts[request] = count
            lag += more_lag
            expected, drafted, pages = expected - less_chance, drafted + 1, pages - opens
            if count < min(self._settings.draft_tokens, request.remaining_tokens - 1):
                chance = -less_chance * self._rows[request].chance
                heapq.heappush(heap, (-chance, number, request))
        return counts

    def _keeps_target(self, tokens: int, lag_seconds: float) -> bool:
        """Whether a step of so many tokens keeps the promise, if there is one."""
        target = self._settings.target
        if not target:
            return True
        return (self._time.at_most(tokens) + lag_seconds) * MARGIN <= target.seconds

    def _pays(self, chance: float, expected: float, tokens: int, lag_seconds: float) -> bool:
        """Whether one draft more makes more tokens a second."""
        unlikely = self._settings.draft_model and chance < LIKELY
        if unlikely and self._lag.credit_seconds < 0:
            return False
        if not self._time.known:
            return not unlikely
        seconds = self._time.seconds(tokens)
        more = self._time.seconds(tokens + 1) + lag_seconds / PAID_BACK_WITHIN
        return (expected + chance) * seconds > expected * more


def _lag_tokens(request: Request) -> int:
    """Tokens that the draft model lacks of a row, but for the last one."""
    return request.computed_tokens - request.draft_computed_tokens


def _opens_page(request: Request, drafts: int, page_size: int) -> int:
    """1 if the last of so many drafts opens a page, else 0."""
    first, last = request.computed_tokens + 1, request.computed_tokens + 1 + drafts
    held = max(len(request.page_ids), pages_for(first, page_size))
    return max(0, pages_for(last, page_size) - max(held, pages_for(last - 1, page_size)))


@dataclass(slots=True)
class _Row:
    """The drafts of one request."""

    source: RowDrafts
    chance: float = FIRST_CHANCE
    """That a draft is right, if those before it are."""
    expected: int | None = None
    """The first draft after the tokens of the last time; NO_TOKEN: a model would propose it."""
    tokens: int = 0
    """How many there were."""
    waits_from_tokens: int = 0
    """How many there were when it last had drafts, or at first."""
    wait_tokens: int = FIRST_WAIT
    probe_again: bool = False
    """Whether its last probe had to catch up, so that its time says nothing of drafts."""

    def follow(self, token_ids: Sequence[int]) -> None:
        """The request has these tokens now."""
        if len(token_ids) == self.tokens:
            return
        drafted = self.expected is not None and self.expected != NO_TOKEN
        if drafted and len(token_ids) == self.tokens + 1:
            self.learn(right=token_ids[-1] == self.expected)
        self.tokens = len(token_ids)
        self.expected = next(iter(self.source.draft(token_ids, 1)), None)

    def learn(self, *, right: bool, weight: float = LEARNING) -> None:
        """A draft was compared with what was drawn."""
        self.chance += weight * (right - self.chance)
        self.expected = None

    def wait(self, tokens: int, *, right: bool, probed: bool) -> None:
        """It had drafts, and so many tokens after that; `right`: the first draft was."""
        self.waits_from_tokens = tokens
        if right:
            self.wait_tokens = FIRST_WAIT
        elif probed:
            self.wait_tokens = min(2 * self.wait_tokens, LONGEST_WAIT)

    @property
    def has_waited(self) -> bool:
        """Whether it is long ago that it had drafts."""
        return self.tokens - self.waits_from_tokens >= self.wait_tokens


@dataclass(slots=True)
class Lag:
    """What a draft model's catching up takes, and what may be spent on drafts that do not pay."""

    credit_seconds: float = 0.0
    """Less than 0 until what was lost is paid."""
    _tokens: float = 0.0
    _seconds: float = 0.0

    @property
    def token_seconds(self) -> float:
        """0 while unknown."""
        return self._seconds / self._tokens if self._tokens else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Catching up on so many tokens took so long. Few tokens, which take a pass for little,
        count less than many."""
        self._tokens = self._tokens * (1 - LEARNING) + tokens
        self._seconds = self._seconds * (1 - LEARNING) + max(0.0, seconds)

    def settle(self, seconds: float) -> None:
        """A step with drafts has saved so much, or lost it if negative. What it saves pays for what
        was lost before, and for nothing else."""
        self.credit_seconds = min(0.0, self.credit_seconds + seconds)


class StepTime:
    """Seconds of steps without prompts, as a line over their tokens: least squares that forget.
    While steps have one size, the slope is that of before."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        """Of steps: how many, tokens, seconds, tokens squared, tokens x seconds."""
        self._slope: float | None = None

    @property
    def known(self) -> bool:
        """Whether steps of different sizes were seen."""
        return self._slope is not None

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [old * FORGETTING + add for old, add in zip(self._sums, new, strict=True)]
        count, total, sum_seconds, squares, products = self._sums
        variance = count * squares - total * total
        if count >= LEAST_STEPS and variance > 1e-6 * total * total:
            self._slope = max(0.0, (count * products - total * sum_seconds) / variance)

    def at_most(self, tokens: int) -> float:
        """Predicted; while steps of one size were seen, as if a step took nothing but its tokens.
        Infinite before the first."""
        if self.known:
            return self.seconds(tokens)
        count, total, seconds, _, _ = self._sums
        return seconds * max(1 / count, tokens / total) if count else inf

    def seconds(self, tokens: int) -> float:
        """Predicted; more tokens never take less. 0 before the first step."""
        count, total, seconds, _, _ = self._sums
        slope = self._slope or 0.0
        return max(1e-9, (seconds + slope * (count * tokens - total)) / count) if count else 0.0
