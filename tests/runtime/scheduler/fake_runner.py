"""A runner without a model that holds the scheduler to the Batch contract.

It keeps token ids in pages where a real one keeps keys and values, reads them back through the page
table and derives the next token from all of them: one wrong page, one lost or doubled token, and
the answer differs from `answer_to`.
"""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice_runtime.scheduler.batch import (
    NO_TOKEN,
    Batch,
    ExtendRow,
    ForwardMode,
    HostCopied,
    HostCopies,
    LayerGroup,
    RowAdded,
    SampledTokens,
    VerifyRow,
    forward_mode,
)
from sluice_runtime.scheduler.row_drafts import RowDrafts
from sluice_runtime.wire.messages import TokenLogprob

VOCABULARY = 50


def next_token(tokens: Sequence[int]) -> int:
    """The model: depends on every token before."""
    return zlib.crc32(bytes(tokens)) % VOCABULARY


def answer_to(prompt: Sequence[int], tokens: int) -> list[int]:
    """What an engine that runs nothing else would generate."""
    row = list(prompt)
    for _ in range(tokens):
        row.append(next_token(row))
    return row[len(prompt) :]


class NearlyRight:
    """Drafts of which some are wrong, whatever came before."""

    def index(self, token_ids: Sequence[int], most: int) -> int:
        return 0

    def draft(self, token_ids: Sequence[int], tokens: int) -> tuple[int, ...]:
        row = list(token_ids)
        for _ in range(tokens):
            wrong = zlib.adler32(bytes(row)) % 4 == 0
            row.append((next_token(row) + wrong) % VOCABULARY)
        return tuple(row[len(token_ids) :])


@dataclass
class FakeRow:
    pages: list[int] = field(default_factory=list)
    length: int = 0
    draft_length: int = 0
    """Of these, tokens that the draft model has computed."""
    last_token: int | None = None
    next_token: int = NO_TOKEN
    """Of a prompt, the one behind its last chunk, as a head was told."""
    scored: tuple[int, ...] = ()
    """The prompt, when it is to be scored."""


def tokens_of(added: RowAdded) -> tuple[int, ...]:
    """The tokens of its history."""
    return tuple(array("i", added.history))


@dataclass
class FakeHost:
    """Slots of the host tier. Copies beside the steps are done as late as they may be."""

    page_size: int
    steps: int = 0
    """That each copy takes beside the one that began it."""
    bad_every: int = 0
    """One in so many slots is found bad when it is read; 0: none."""
    slots: dict[int, list[int | None]] = field(default_factory=dict)
    read: int = 0
    pending: deque[tuple[int, int, HostCopies]] = field(default_factory=deque)
    done: list[HostCopied] = field(default_factory=list)

    def begin(self, step: int, copies: HostCopies, pool: list[int | None]) -> None:
        slots = [slot for _, slot in copies.saved]
        assert len(slots) == len(set(slots)), "copies into one slot have no order"
        for page, slot in copies.saved:
            content = pool[page * self.page_size : (page + 1) * self.page_size]
            assert None not in content, "a page is saved that was freed or never written"
            self.slots[slot] = content
        if copies.saved:
            self.done.append(HostCopied(step, "saved", len(copies.saved), 0.0))
        self.pending.append((self.steps, step, copies))

    def ended(self, pool: list[int | None]) -> tuple[HostCopied, ...]:
        self.pending = deque((left - 1, step, copies) for left, step, copies in self.pending)
        while self.pending and self.pending[0][0] < 0:
            _, step, copies = self.pending.popleft()
            if copies.loaded:
                bad = tuple(
                    slot for slot, page in copies.loaded if not self._load(slot, page, pool)
                )
                self.done.append(HostCopied(step, "loaded", len(copies.loaded), 0.0, bad))
            if copies.spilled:
                for memory, disk in copies.spilled:
                    self.slots[disk] = self.slots[memory]
                self.done.append(HostCopied(step, "spilled", len(copies.spilled), 0.0))
        done, self.done = tuple(self.done), []
        return done

    def _load(self, slot: int, page: int, pool: list[int | None]) -> bool:
        """Whether the slot is as it was written."""
        self.read += 1
        if self.bad_every and self.read % self.bad_every == 0:
            return False
        pool[page * self.page_size : (page + 1) * self.page_size] = self.slots[slot]
        return True


class FakeRunner:
    """Asserts on every batch; `forward` is what the engine's runner has."""

    def __init__(self, pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._slots: list[int | None] = [None] * (pages * page_size)
        self.rows: dict[int, FakeRow] = {}
        self._begun: tuple[int, int, int, tuple[int, ...]] | None = None
        """Of a chunk whose layers are not all computed: the next layer, and row, start, tokens."""
        self.host = FakeHost(page_size)
        self.batches: list[Batch] = []
        self._drafts: list[int] = []
        self.draft_model: RowDrafts = NearlyRight()
        self.has_head = False
        """Whether what drafts computes every step, so that nobody tells it what it lacks."""

    def forward(self, batch: Batch) -> SampledTokens:
        self.batches.append(batch)
        self._drafts = []
        if batch.host_copies is not None:
            self.host.begin(batch.step, batch.host_copies, self._slots)
        self._apply(batch)
        kinds = batch.extend_rows, batch.decode_rows, batch.verify_rows
        expected = forward_mode(*map(bool, kinds), splits=batch.layers is not None)
        assert batch.mode is expected
        scheduled = [extend.row for extend in batch.extend_rows] + list(batch.decode_rows)
        scheduled += [verify.row for verify in batch.verify_rows]
        assert len(set(scheduled)) == len(scheduled), "a row is scheduled twice"
        for extend in batch.extend_rows:
            assert extend.start == self.rows[extend.row].length
            assert extend.token_ids
            self._tell_head(batch, extend)
            if self._completes(batch.layers, extend):
                self._write(extend.row, extend.token_ids)
        for row in batch.decode_rows:
            token = self.rows[row].last_token
            assert token is not None, "a row decodes before its prompt is computed"
            self._write(row, [token])
        if batch.mode is ForwardMode.IDLE:
            assert not scheduled
        verifying = {verify.row for verify in batch.verify_rows}
        for lacked in batch.draft_rows:
            self._catch_up(lacked, verifies=lacked.row in verifying)
        drawn = [self._sample(extend.row) for extend in batch.extend_rows if extend.samples]
        for verify in batch.verify_rows:
            drawn += self._verify(verify)
        drawn += [self._sample(row) for row in batch.decode_rows]
        scores = tuple(self._scores(row) for row in batch.sampling_rows)
        told = scores if any(scores) else ()
        return SampledTokens(
            batch.step,
            tuple(drawn),
            (),
            told,
            tuple(self._drafts),
            copied=self.host.ended(self._slots),
        )

    def _completes(self, layers: LayerGroup | None, extend: ExtendRow) -> bool:
        """Asserts that the groups of a chunk follow each other and are of one chunk."""
        begun, self._begun = self._begun, None
        if layers is None:
            return True
        assert len(self.batches[-1].extend_rows) == 1
        assert layers.first < layers.end <= layers.of
        if layers.first:
            assert begun == (layers.first, extend.row, extend.start, extend.token_ids)
        if not layers.last:
            assert not extend.samples
            self._begun = layers.end, extend.row, extend.start, extend.token_ids
        return layers.last

    def _verify(self, verify: VerifyRow) -> list[int]:
        """Writes the drafts, right or wrong, and draws a token after each."""
        row = self.rows[verify.row]
        assert len(verify.token_ids) > 1, "a row without drafts is verified"
        assert verify.start == row.length
        assert verify.token_ids[0] == row.last_token, "its last token is not what was drawn"
        drawn = []
        for token in self._drafted(verify):
            self._write(verify.row, [token])
            drawn.append(self._sample(verify.row))
        row.last_token = None  # until it is trimmed
        return drawn

    def _drafted(self, verify: VerifyRow) -> Sequence[int]:
        """The row's tokens; where there is NO_TOKEN, a draft model proposes them."""
        last, *drafts = verify.token_ids
        if drafts[0] != NO_TOKEN:
            return verify.token_ids
        row = self.rows[verify.row]
        assert self.has_head or row.draft_length == row.length, "the draft model has not caught up"
        row.draft_length += len(drafts)
        proposed = self.draft_model.draft([*self._tokens(verify.row), last], len(drafts))
        self._drafts += proposed
        return (last, *proposed)

    def _tell_head(self, batch: Batch, extend: ExtendRow) -> None:
        """Each token of a prompt is followed by another, or by one that is drawn."""
        row = self.rows[extend.row]
        told, row.next_token = row.next_token, extend.next_token
        assert (extend.next_token != NO_TOKEN) == (self.has_head and not extend.samples)
        assert told == NO_TOKEN or batch.layers or told == extend.token_ids[0]

    def _catch_up(self, lacked: ExtendRow, *, verifies: bool) -> None:
        """The draft model computes what it lacks of a row that is verified, or a part of that."""
        assert not self.has_head
        row = self.rows[lacked.row]
        assert lacked.start == row.draft_length
        known = self._tokens(lacked.row)[lacked.start :]
        if not verifies:
            end = lacked.start + len(lacked.token_ids)
            assert end % self._page_size == 0, "a page is begun and not filled"
            known = known[: len(lacked.token_ids)]
        assert lacked.token_ids == tuple(known), "not all that the draft model lacks"
        row.draft_length += len(known)

    def _scores(self, number: int) -> list[TokenLogprob] | None:
        row = self.rows[number]
        prompt, row.scored = row.scored, ()
        return [TokenLogprob(token, -1.0, 1, []) for token in prompt[1:]] or None

    def _apply(self, batch: Batch) -> None:
        for replaced in batch.replaced_pages:
            pages = self.rows[replaced.row].pages
            pages[replaced.first : replaced.first + len(replaced.page_ids)] = replaced.page_ids
        for trimmed in batch.trimmed_rows:
            row = self.rows[trimmed.row]
            assert len(row.pages) - trimmed.pages >= 0
            del row.pages[trimmed.pages :]
            row.length, row.last_token = trimmed.length, trimmed.last_token
            row.draft_length = min(row.draft_length, row.length)
        for number in batch.dropped_rows:
            del self.rows[number]
        for added in batch.added_rows:
            assert added.row not in self.rows, "a row is added while another request has it"
            asked = added.prompt_logprobs >= 0
            new = self.rows[added.row] = FakeRow(scored=tokens_of(added) if asked else ())
            if added.computed_tokens:
                new.length, new.last_token = added.computed_tokens, added.last_token
        starts = {extend.row: extend.start for extend in batch.extend_rows}
        verified = {verify.row for verify in batch.verify_rows}
        for appended in batch.appended_pages:
            state = self.rows[appended.row]
            if not state.pages and state.length:  # resumed: written already
                state.pages += appended.page_ids
                continue
            if not state.pages:
                state.length = starts[appended.row]
            drafted = appended.row in verified and len(state.pages) * self._page_size > state.length
            assert drafted or state.length % self._page_size == 0
            first = max(0, state.length // self._page_size - len(state.pages))
            own = appended.page_ids[first:]
            held = {page for other in self.rows.values() for page in other.pages}
            assert own, "the last page of a row must be its own"
            assert not held & set(own), "a page is given to two rows"
            state.pages += appended.page_ids
            self._clear(own)

    def receive(self, page_ids: Sequence[int], start: int, tokens: Sequence[int]) -> None:
        """As a hand-over does: another process has computed these tokens, from `start` on."""
        for position, token in enumerate(tokens, start):
            page, offset = divmod(position, self._page_size)
            slot = page_ids[page] * self._page_size + offset
            assert self._slots[slot] is None, "a page that others may read is written"
            self._slots[slot] = token

    def freed(self, page_ids: Sequence[int]) -> None:
        """For the allocator: nobody may read these pages any more."""
        self._clear(page_ids)

    def _clear(self, page_ids: Sequence[int]) -> None:
        for page in page_ids:
            begin = page * self._page_size
            self._slots[begin : begin + self._page_size] = [None] * self._page_size

    def _slot(self, row: FakeRow, position: int) -> int:
        page, offset = divmod(position, self._page_size)
        return row.pages[page] * self._page_size + offset

    def _write(self, number: int, tokens: Sequence[int]) -> None:
        row = self.rows[number]
        for token in tokens:
            self._slots[self._slot(row, row.length)] = token
            row.length += 1

    def _sample(self, number: int) -> int:
        row = self.rows[number]
        row.last_token = next_token(self._tokens(number))
        return row.last_token

    def _tokens(self, number: int) -> list[int]:
        row = self.rows[number]
        slots = [self._slots[self._slot(row, position)] for position in range(row.length)]
        tokens = [token for token in slots if token is not None]
        assert len(tokens) == row.length, "a page is read that was freed or never written"
        return tokens
