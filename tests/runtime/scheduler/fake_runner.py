"""A runner without a model that holds the scheduler to the Batch contract.

It keeps token ids in pages where a real one keeps keys and values, reads them back through the page
table and derives the next token from all of them: one wrong page, one lost or doubled token, and
the answer differs from `answer_to`.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice_runtime.scheduler.batch import Batch, ForwardMode, SampledTokens, forward_mode

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


@dataclass
class FakeRow:
    pages: list[int] = field(default_factory=list)
    length: int = 0
    last_token: int | None = None


class FakeRunner:
    """Asserts on every batch; `forward` is what the engine's runner has."""

    def __init__(self, pages: int, page_size: int) -> None:
        self._page_size = page_size
        self._slots: list[int | None] = [None] * (pages * page_size)
        self.rows: dict[int, FakeRow] = {}
        self.batches: list[Batch] = []

    def forward(self, batch: Batch) -> SampledTokens:
        self.batches.append(batch)
        self._apply(batch)
        expected = forward_mode(bool(batch.extend_rows), bool(batch.decode_rows))
        assert batch.mode is expected
        scheduled = [extend.row for extend in batch.extend_rows] + list(batch.decode_rows)
        assert len(set(scheduled)) == len(scheduled), "a row is scheduled twice"
        for extend in batch.extend_rows:
            assert extend.start == self.rows[extend.row].length
            assert extend.token_ids
            self._write(extend.row, extend.token_ids)
        for row in batch.decode_rows:
            token = self.rows[row].last_token
            assert token is not None, "a row decodes before its prompt is computed"
            self._write(row, [token])
        if batch.mode is ForwardMode.IDLE:
            assert not scheduled
        return SampledTokens(batch.step, tuple(self._sample(row) for row in batch.sampling_rows))

    def _apply(self, batch: Batch) -> None:
        for row in batch.dropped_rows:
            for page in self.rows.pop(row).pages:
                begin = page * self._page_size
                self._slots[begin : begin + self._page_size] = [None] * self._page_size
        for added in batch.added_rows:
            assert added.row not in self.rows, "a row is added while another request has it"
            self.rows[added.row] = FakeRow()
        for appended in batch.appended_pages:
            held = {page for row in self.rows.values() for page in row.pages}
            assert not held & set(appended.page_ids), "a page is given to two rows"
            self.rows[appended.row].pages += appended.page_ids

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
        tokens = [self._slots[self._slot(row, position)] for position in range(row.length)]
        row.last_token = next_token([-1 if token is None else token for token in tokens])
        return row.last_token
