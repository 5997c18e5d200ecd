"""Which rows of a step are verified, and with how many drafts.

A draft goes to the row that is most likely to keep it, as long as its chance is worth its time: the
step's expected tokens over its expected seconds grow. Both are measured: how often a row's drafts
were right, also of those that were not verified, and how long steps of so many tokens take. So a
row that copies nothing drafts nothing, and a batch that is full enough to be bound by computation
drafts less or nothing.

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
REVIVING: Final = 0.002
"""Of the way back to `FIRST_CHANCE`, with each token that a model could have drafted: nobody knows
whether it would have been right. So a row is tried again after some thirty tokens."""
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
        counts = self._counts(len(running), self._chances(room.tokens), room)
        drafts = {
            request: self._rows[request].source.draft(request.token_ids, count)
            for request, count in counts.items()
        }
        return {request: drafted for request, drafted in drafts.items() if drafted}

    def verified(self, request: Request, drafted: int, accepted: int) -> None:
        """A step has verified these drafts of a row."""
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        if row := self._rows.get(request):
            for _ in range(accepted):
                row.learn(right=True)
            if accepted < drafted:
                row.learn(right=False)

    def landed(self, batch: Batch, seconds: float) -> None:
        """A step took so long."""
        if not batch.extend_rows and batch.answering_rows:
            self._time.observe(batch.answering_rows + batch.draft_tokens, seconds)

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
                row = known.get(request) or _Row(self._drafts_of_row())
                row.follow(request.token_ids)
                self._rows[request] = row

    def _chances(self, tokens: int) -> list[tuple[float, int, Request]]:
        """Of the first draft of each row that has one, as a heap: less the chance, and a number so
        that requests are not compared."""
        if tokens <= 0:
            return []
        chances = [
            (-row.chance, number, request)
            for number, (request, row) in enumerate(self._rows.items())
            if row.expected is not None
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
        expected, drafted, pages = float(decoding), 0, room.pages
        while heap and drafted < room.tokens:
            less_chance, number, request = heapq.heappop(heap)
            if not self._pays(-less_chance, expected, decoding + drafted):
                break
            count = counts.get(request, 0) + 1
            opens = _opens_page(request, count, self._settings.page_size)
            if opens > pages:
                continue
            counts[request] = count
            expected, drafted, pages = expected - less_chance, drafted + 1, pages - opens
            if count < min(self._settings.draft_tokens, request.remaining_tokens - 1):
                chance = -less_chance * self._rows[request].chance
                heapq.heappush(heap, (-chance, number, request))
        return counts

    def _pays(self, chance: float, expected: float, tokens: int) -> bool:
        """Whether one draft more makes more tokens a second, and keeps the promise."""
        target = self._settings.target
        if target and self._time.at_most(tokens + 1) * MARGIN > target.seconds:
            return False
        seconds, more = self._time.seconds(tokens), self._time.seconds(tokens + 1)
        return not self._time.known or (expected + chance) * seconds > expected * more


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

    def follow(self, token_ids: Sequence[int]) -> None:
        """The request has these tokens now."""
        if len(token_ids) == self.tokens:
            return
        if self.expected == NO_TOKEN:
            self.chance += REVIVING * (FIRST_CHANCE - self.chance)
        elif self.expected is not None and len(token_ids) == self.tokens + 1:
            self.learn(right=token_ids[-1] == self.expected)
        self.tokens = len(token_ids)
        self.expected = next(iter(self.source.draft(token_ids, 1)), None)

    def learn(self, *, right: bool) -> None:
        """A draft was compared with what was drawn."""
        self.chance += LEARNING * (right - self.chance)
        self.expected = None


class StepTime:
    """Seconds of steps without prompts, as a line over their tokens: least squares that forget."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        """Of steps: how many, tokens, seconds, tokens squared, tokens x seconds."""

    @property
    def known(self) -> bool:
        """Whether steps of different sizes were seen."""
        count, tokens, _, squares, _ = self._sums
        return count >= 4 and count * squares - tokens * tokens > 1e-6 * tokens * tokens

    def observe(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long."""
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [old * FORGETTING + one for old, one in zip(self._sums, new, strict=True)]

    def at_most(self, tokens: int) -> float:
        """Predicted; while steps of one size were seen, as if a step took nothing but its tokens.
        Infinite before the first."""
        if self.known:
            return self.seconds(tokens)
        count, total, seconds, _, _ = self._sums
        return seconds * max(1 / count, tokens / total) if count else inf

    def seconds(self, tokens: int) -> float:
        """Predicted; more tokens never take less. 0 while unknown."""
        if not self.known:
            return 0.0
        count, total, seconds, squares, products = self._sums
        slope = (count * products - total * seconds) / (count * squares - total * total)
        slope = max(0.0, slope)
        return max(1e-9, (seconds + slope * (count * tokens - total)) / count)
