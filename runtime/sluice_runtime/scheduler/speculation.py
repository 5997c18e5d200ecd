"""Chooses which rows of a step are verified, and with how many drafts.

Each further draft goes to the row that is most likely to keep it for its price, as long as the
step's expected tokens per expected second grow. Expectations are measured: how often a row's drafts
were right, including drafts not verified, and how long steps take by their number of tokens. So a
row that copies nothing gets no drafts, and a batch large enough to be limited by computation gets
few or none.

A draft model computes one more draft for all rows in one pass. So the step is evaluated as a whole,
for each number of passes: drafts that would not pay for a pass alone may do so together.

The draft model lags behind, and catches up on a row before it drafts for it. That counts in the
price and in the step's tokens; a row that lacks too many tokens for one step catches up in several.
Only verified drafts show whether the draft model is right. So rows whose drafts do not pay verify
one now and then, as often as a small share of the time allows.

Drafts get what the step has left. Knows no device and no clock; answers do not depend on
speculation.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

from sluice_runtime.scheduler.admission import PrefillItem
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.cost_model import Lag, StepTime
from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.prefill_planner import Drafts
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import RequestTable
from sluice_runtime.scheduler.row_drafts import (
    FIRST_CHANCE,
    LEARNING,
    DraftedRow,
    ModelDrafts,
    RowDrafts,
    ngram_drafts,
)
from sluice_runtime.scheduler.settings import SchedulerSettings

LEAST_CHANCE: Final = 0.1
"""Smallest acceptance probability of a draft; below it, giving up launch-ahead costs more than the
draft gains."""
MARGIN: Final = 1.2
"""Factor on the predicted step time where a time is promised, because some steps take longer."""
MODEL_LEARNING: Final = 0.05
"""EMA weight of one verified draft when a draft model proposes. Its acceptance varies little from
row to row."""
LEARNING_OF_ALL: Final = 0.05
"""EMA weight of one verified draft in the engine's acceptance probability, the initial one of new
rows with a draft model."""
PROBE_LEARNING: Final = 0.5
"""EMA weight of a probe: a draft after its row had none for a while."""
PROBE_SHARE: Final = 0.015
"""Share of the time for probes, which are drafts that are not expected to pay."""
LIKELY: Final = 0.5
"""Minimum acceptance probability of a model's draft while step times are unknown. Also the minimum
average of a step's drafts while drafts have cost more than they gained."""
PROBE_STEPS: Final = 16
"""Most time for catching up for probes, in decode steps, unless more time was saved."""
INDEXED_TOKENS: Final = 512
"""Maximum tokens of prompts that a step indexes for drafts, of all rows together."""
LEAST_PRICE_SECONDS: Final = 1e-12
"""Price of a token that costs nothing as far as is known, so that drafts have an order."""
PAID_BACK_WITHIN: Final = 128
"""Tokens within which the cost of catching up has to be gained."""


class DraftRoom(NamedTuple):
    """Rows, tokens and pages that a step has left for drafts."""

    rows: int
    """Free rows; each draft takes one, because each draft has logits of its own."""
    tokens: int
    """Tokens that may be computed, by the model or by a draft model catching up."""
    pages: int
    """Pages left after decode rows have theirs."""


Candidate = tuple[float, float, Request, int, int, int]
"""A draft that a step may have: its worth, which is its probability per second of its price, and
never more than that of the draft before it; the probability that it is kept; its request; its
position in the row, from 1; pages that it opens, 0 or 1; tokens on which the draft model would
catch up, 0 for all but the first draft of a row. A plain tuple, since a step makes thousands."""
WORTH: Final = 0
CHANCE: Final = 1
REQUEST: Final = 2
NUMBER: Final = 3
OPENS: Final = 4
LACKED: Final = 5
"""Places in a `Candidate`."""


@dataclass(slots=True)
class StepDrafts:
    """Drafts that a step will verify, and their cost."""

    tokens: int
    """Tokens that the model computes: the decode rows' and the drafts."""
    expected: float
    """Expected tokens that answers get."""
    passes: int = 0
    """Passes of the draft model."""
    counts: dict[Request, int] = field(default_factory=dict)
    """Number of drafts of each row that has any."""
    catching_up: dict[Request, int] = field(default_factory=dict)
    """Tokens that the draft model catches up on, by row without drafts: see `Drafts`."""
    drafted: int = 0
    pages: int = 0
    """Pages that the drafts open."""
    lacked: int = 0
    """Tokens that the draft model catches up on."""


class Speculation:
    """The drafts of one engine."""

    def __init__(
        self,
        settings: SchedulerSettings,
        table: RequestTable,
        kv: KvAllocator,
        drafts_of_row: Callable[[Request], RowDrafts] | None = None,
    ) -> None:
        """`drafts_of_row`: makes each row's source of drafts, in place of the source from the
        settings."""
        self._drafts_of_row = drafts_of_row or self._by_settings
        self._settings = settings
        self._lags, self._target = settings.draft_lags, settings.target
        self._table = table
        self._kv = kv
        self._rows: dict[Request, DraftedRow] = {}
        self._time = StepTime()
        self._learning = MODEL_LEARNING if settings.draft_model else LEARNING
        self._lag = Lag()
        self._chance = FIRST_CHANCE
        """Acceptance probability with which new rows of a draft model begin."""
        self._accepted_in_step = 0
        self._index_tokens = INDEXED_TOKENS
        """Tokens that may still be indexed before the next step lands."""
        self._probes: list[Request] = []
        """Rows that verify a draft not expected to pay, in the step that was planned."""
        self.drafted_tokens = 0
        """Counter: drafts that were verified."""
        self.accepted_tokens = 0
        """Counter: verified drafts that answers kept."""

    def worth_waiting(self) -> bool:
        """Whether to wait for the step in flight: rows have drafts even before its tokens are
        known, so they will probably have drafts afterwards. Never while prompts wait and a time is
        promised."""
        table = self._table
        if self._target and (table.prefilling or len(table.waiting)):
            return False
        return any(self.plan(self._table.running.ready(), ()))

    def plan(self, running: Sequence[Request], prefill: Sequence[PrefillItem]) -> Drafts:
        """Plans the drafts of a step in which `running` decode together with the prompts of
        `prefill`, which have their rows, and pages that are theirs or reserved."""
        room = self._room(len(running), prefill)
        self._follow(running)
        if room.tokens > 0:
            self._index_prompts()
        step = StepDrafts(len(running), len(running))
        self._probes = []
        if not prefill:
            self._add_probes(step, room)
        step = self._best(step, room)
        drafts = {r: self._rows[r].drafts[:count] for r, count in step.counts.items()}
        return Drafts(drafts, step.catching_up)

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """Records how many of a row's drafts a step has accepted."""
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        self._accepted_in_step += accepted
        lacked = _lag_tokens(request) - 1
        # The draft model has computed all drafts except the last.
        request.draft_computed_tokens = request.computed_tokens - 1 + min(drafted, accepted + 1)
        probed = request in self._probes
        if row := self._rows.get(request):
            for right in [True] * accepted + [False] * (accepted < drafted):
                row.learn(right=right, weight=PROBE_LEARNING if probed else self._learning)
                self._chance += LEARNING_OF_ALL * (right - self._chance)
            row.wait(len(request.token_ids), right=accepted > 0, probed=probed)
            row.probe_again = probed and lacked > 1 and self._lags

    def landed(self, batch: Batch, seconds: float) -> None:
        """Learns from the duration of a step."""
        accepted, self._accepted_in_step = self._accepted_in_step, 0
        self._index_tokens = INDEXED_TOKENS
        if batch.extend_rows or not batch.answering_rows:
            return
        rows = batch.answering_rows
        drafts = max([len(row.token_ids) - 1 for row in batch.verify_rows], default=0)
        passes = drafts if self._settings.draft_model else 0
        size = rows + batch.draft_tokens, passes
        # A row whose drafts were all right lacks one token, at nearly no cost.
        lacked = sum(len(row.token_ids) - 1 for row in batch.draft_rows)
        if not lacked:
            self._time.observe(*size, seconds)
        else:
            self._lag.observe(lacked, seconds - self._time.seconds(*size))
        self._lag.credit_seconds += PROBE_SHARE * seconds
        if batch.verify_rows:
            self._lag.settle(self._time.seconds(rows, 0) * (1 + accepted / rows) - seconds)

    def _room(self, decoding: int, prefill: Sequence[PrefillItem]) -> DraftRoom:
        """Free rows, tokens that the chunk has left, and free pages. If a time is promised, prompts
        get the whole chunk."""
        settings = self._settings
        if settings.target and prefill:
            return DraftRoom(0, 0, 0)
        tokens = (settings.chunk_size or settings.max_prefill_tokens) - decoding
        tokens -= sum(item.end - item.start for item in prefill)
        needed_pages = len(self._table.running.rows_needing_page())
        pages = self._kv.available_pages - needed_pages
        return DraftRoom(self._kv.free_rows, tokens, pages)

    def _follow(self, running: Sequence[Request]) -> None:
        """Looks up the drafts of rows, and compares the previous drafts with the drawn tokens.
        Forgets rows that have gone."""
        known, most = self._rows, self._settings.draft_tokens
        rows = self._rows = {}
        for request in running:
            row = rows[request] = known.get(request) or self._new_row(request)
            row.follow(request.token_ids, most)

    def _index_prompts(self) -> None:
        """Indexes what rows have not indexed of their tokens, one row after the other, as far as
        the step's budget goes."""
        for request, row in self._rows.items():
            if row.lacks_index and self._index_tokens:
                indexed = row.source.index(request.token_ids, self._index_tokens)
                row.lacks_index = indexed == self._index_tokens
                self._index_tokens -= indexed

    def _by_settings(self, request: Request) -> RowDrafts:
        if self._settings.draft_model:
            return ModelDrafts()
        return ngram_drafts(request, self._settings.page_size)

    def _new_row(self, request: Request) -> DraftedRow:
        row = DraftedRow(self._drafts_of_row(request), waits_from_tokens=len(request.token_ids))
        if self._settings.draft_model:
            row.chance = self._chance
        return row

    def _add_probes(self, step: StepDrafts, room: DraftRoom) -> None:
        """Adds probes for all rows that have waited long enough, once earlier losses are paid back:
        a pass of the draft model takes little more for several rows. Rows that lack too many tokens
        are left out."""
        if not self._settings.draft_model:
            return
        rows = self._rows.items()
        chosen = [r for r, row in rows if row.probe_again and r.remaining_tokens > 1]
        again = bool(chosen)
        if not again:
            if self._lag.credit_seconds < 0:
                return
            chosen = [r for r, row in rows if row.has_waited and r.remaining_tokens > 1]
        most = max(self._lag.credit_seconds, PROBE_STEPS * self._time.seconds(1, 0))
        lag = 0.0
        for request in sorted(chosen, key=_lag_tokens):
            lacked = _lag_tokens(request) if self._lags else 0
            lag += lacked * self._lag.token_seconds
            step.passes = 1
            place, size = request.computed_tokens + 1, self._settings.page_size
            opens = int(place >= len(request.page_ids) * size and not place % size)
            probe = (0.0, 0.0, request, 1, opens, lacked)
            if (lag > most and not again) or not self._adds(step, probe, room):
                break
            self._probes.append(request)
        step.passes = min(1, len(self._probes))

    def _best(self, probes: StepDrafts, room: DraftRoom) -> StepDrafts:
        """The probes together with the drafts that give the most tokens per second. Numbers of a
        draft model's passes are tried in ascending order while one more is better."""
        candidates = self._candidates(probes, min(room.rows, room.tokens) - probes.drafted)
        if not candidates:
            return probes
        most = self._settings.draft_tokens
        if not (self._settings.draft_model and self._time.known):
            passes = most if self._settings.draft_model else 0
            return self._filled(probes, candidates, room, passes, most)
        best, best_rate = probes, self._rate(probes)
        for passes in range(1, most + 1):
            step = self._filled(probes, candidates, room, passes, passes)
            if (rate := self._rate(step)) <= best_rate:
                break
            best, best_rate = step, rate
        gained = best.expected - probes.expected
        unlikely = gained < LIKELY * (best.drafted - probes.drafted)
        return probes if unlikely and self._lag.credit_seconds < 0 else best

    def _rate(self, step: StepDrafts) -> float:
        """Expected tokens per second. The cost of catching up is spread, because it is gained
        later."""
        seconds = self._time.seconds(step.tokens, step.passes)
        lag = step.lacked * self._lag.token_seconds
        return step.expected / (seconds + lag / PAID_BACK_WITHIN)

    def _candidates(self, probes: StepDrafts, most: int) -> list[Candidate]:
        """Possible drafts of all rows, those that are worth most first. A row's second draft counts
        only if its first is right, and so on."""
        least, size, lags = self._least_chance(probes), self._settings.page_size, self._lags
        token_seconds = self._time.token_seconds or LEAST_PRICE_SECONDS
        lag_seconds = self._lag.token_seconds / PAID_BACK_WITHIN
        candidates: list[Candidate] = []
        for request, row in self._rows.items():
            right = chance = row.chance
            if not row.drafts or chance < LEAST_CHANCE or request in probes.counts:
                continue
            full = len(request.page_ids) * size - request.computed_tokens
            lacked = _lag_tokens(request) if lags else 0
            worth = chance / (token_seconds + lacked * lag_seconds)
            drafts, left = len(row.drafts), request.remaining_tokens - 1
            for number in range(1, (drafts if drafts < left else left) + 1):
                if chance < least:
                    break
                opens = number >= full and not (number - full) % size
                candidates.append((worth, chance, request, number, opens, lacked))
                chance, lacked = chance * right, 0
                if (alone := chance / token_seconds) < worth:
                    worth = alone
        candidates.sort(key=itemgetter(WORTH), reverse=True)
        # More candidates than there is room for, since some may open a page or lack too many
        # tokens.
        return candidates[: max(0, 2 * most)]

    def _least_chance(self, probes: StepDrafts) -> float:
        """Probability below which no draft pays: each one that pays makes the next one's harder."""
        if not self._time.known:
            return LIKELY if self._settings.draft_model else 0.0
        passes = self._settings.draft_tokens if self._settings.draft_model else 0
        seconds = self._time.seconds(probes.tokens, passes)
        return probes.expected * self._time.token_seconds / seconds

    def _filled(
        self,
        probes: StepDrafts,
        candidates: Sequence[Candidate],
        room: DraftRoom,
        passes: int,
        most: int,
    ) -> StepDrafts:
        """The probes and the candidates that pay with `passes` passes; at most `most` drafts of a
        row."""
        step = replace(probes, counts={**probes.counts}, catching_up={**probes.catching_up})
        step.passes = max(passes, probes.passes)
        known, token_seconds, counts = self._time.known, self._time.token_seconds, step.counts
        begun = self._time.seconds(step.tokens, step.passes) - step.tokens * token_seconds
        if known and not self._target:
            listed = [candidate for candidate in candidates if candidate[NUMBER] <= most]
            if _adds_paying(step, listed, room, begun, token_seconds):
                return step
        for candidate in candidates:
            worth, _, request, number, _, _ = candidate
            if number > most or number != counts.get(request, 0) + 1:
                continue
            if known and worth * (begun + step.tokens * token_seconds) <= step.expected:
                break
            self._adds(step, candidate, room)
        return step

    def _adds(self, step: StepDrafts, candidate: Candidate, room: DraftRoom) -> bool:
        """Gives a row one more draft, if there is room and the promise is kept. If the draft model
        lacks more of the row's tokens than a step has room for, it only catches up in this step."""
        _, chance, request, number, opens, lacked = candidate
        left = room.tokens - step.drafted - step.lacked
        if step.drafted >= room.rows or left < 1 or step.pages + opens > room.pages:
            return False
        if self._target:
            lag_seconds = (step.lacked + min(lacked, left)) * self._lag.token_seconds
            seconds = self._time.at_most(step.tokens + 1, step.passes) + lag_seconds
            if seconds * MARGIN > self._target.seconds:
                return False
        if lacked > left:
            self._catch_up(step, request, chance, left)
            return False
        step.counts[request] = number
        step.drafted, step.lacked = step.drafted + 1, step.lacked + lacked
        step.tokens, step.expected = step.tokens + 1, step.expected + chance
        step.pages += opens
        return True

    def _catch_up(self, step: StepDrafts, request: Request, chance: float, left: int) -> None:
        """Schedules catching up in whole pages, at most `left` tokens; the row's drafts come
        later."""
        first, size = request.draft_computed_tokens, self._settings.page_size
        tokens = (first + left) // size * size - first
        if tokens > 0 and request not in step.catching_up:
            step.catching_up[request] = tokens
            step.lacked += tokens
            step.expected += chance


def _adds_paying(
    step: StepDrafts,
    candidates: Sequence[Candidate],
    room: DraftRoom,
    begun: float,
    token_seconds: float,
) -> bool:
    """Adds the candidates that pay, if there is room for all of them. Each one that pays makes the
    next one's price higher, so they are the first ones."""
    chances: Iterable[float] = map(itemgetter(CHANCE), candidates)
    expected = [*accumulate(chances, initial=step.expected)]

    def costs_more(number: int) -> bool:
        """Whether the candidate after the first `number` lowers the tokens per second."""
        seconds = begun + (step.tokens + number) * token_seconds
        return candidates[number][WORTH] * seconds <= expected[number]

    paying = bisect_left(range(len(candidates)), True, key=costs_more)
    drafts = candidates[:paying]
    pages = step.pages + sum(map(itemgetter(OPENS), drafts))
    lacked = step.lacked + sum(map(itemgetter(LACKED), drafts))
    drafted = step.drafted + paying
    if drafted > room.rows or drafted + lacked > room.tokens or pages > room.pages:
        return False
    step.counts |= map(itemgetter(REQUEST, NUMBER), drafts)
    step.drafted, step.pages, step.lacked = drafted, pages, lacked
    step.tokens, step.expected = step.tokens + paying, expected[paying]
    return True


def _lag_tokens(request: Request) -> int:
    """Number of a row's tokens that the draft model lacks, not counting the last."""
    return request.computed_tokens - request.draft_computed_tokens
