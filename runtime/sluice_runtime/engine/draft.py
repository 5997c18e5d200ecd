"""The draft model: a small model of the same vocabulary, which proposes the tokens of rows that are
verified.

The draft model lags behind: it computes a row's tokens only when the row is verified, or in steps
shortly before. The batch says which tokens it lacks, so it costs nothing while no row is verified.
Its keys and values are in a pool of its own, under the page numbers of the model's pool, so only
the model's pages are accounted for. Errors in its pages cost drafts, not answers.

Drafts stay on the device until the step's results are read, unless a grammar needs them. They are
drawn under the model's masks and penalties. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.rows import HostInputs, RowTable, StepInputs, host_inputs, step_inputs
from sluice_runtime.engine.sampling.draw import SamplingTable
from sluice_runtime.engine.sampling.masks import keep_to_grammars
from sluice_runtime.engine.sampling.penalties import DraftsBefore
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Numbers, RowNumbers, TokenLayout
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode

_PIECE: Final = 512
"""Maximum tokens that are computed at once, so that a long prompt takes little memory."""
_FEW: Final = 8
"""Most tokens that a row may lack so that they are computed together with its last token."""


class DraftDraws:
    """Draws drafts as the model will draw at their positions: under the row's masks and
    penalties."""

    def __init__(self, sampling: SamplingTable, matchers: Matchers, device: Device) -> None:
        self._sampling = sampling
        self._matchers = matchers
        self._device = device

    def behind(self, step: Tensor, places: Numbers, drafts: int) -> DraftsBefore | None:
        """Drafts before the tokens to be drawn: each row has `drafts` of them, the last at `places`
        in the step. None: there are no drafts yet."""
        if not drafts:
            return None
        counts = np.full(len(places), drafts)
        return DraftsBefore(step, places, counts, lambda: self._device.fetch([step])()[0].tolist())

    def draw(
        self, logits: Tensor, rows: Numbers, positions: Numbers, drafts: DraftsBefore | None = None
    ) -> Tensor:
        """Draws tokens: [r, vocabulary] → [r]. A row without a distribution gets an arbitrary
        token."""
        numbers, matchers = rows.tolist(), self._matchers
        if matchers.used and matchers.follows(numbers):
            keep_to_grammars(logits, matchers, numbers, positions, drafts, self._device)
        return self._sampling.propose(logits, numbers, positions, drafts).clamp(min=0)


class DraftModel:
    """Drafts for one runner's rows."""

    def __init__(
        self,
        model: Decoder,
        pool: PagePool,
        rows: RowTable,
        draws: DraftDraws,
        device: Device,
    ) -> None:
        """`pool`: the draft model's pool, with as many pages as the model's pool."""
        self._model = model
        self._pool = pool
        self._rows = rows
        self._draws = draws
        self._device = device

    def propose(self, batch: Batch, host: HostInputs, inputs: StepInputs) -> Tensor:
        """Proposes drafts for verified rows: writes them into the step's tokens in place of
        NO_TOKEN, and returns them row after row: [drafts].

        One pass draws one token for each row, from the draft model's logits, as the model will draw
        at that position. The last draft's own keys and values are not computed, since it may not be
        kept.
        """
        if not batch.verify_rows:
            self._catch_up(batch.draft_rows)
            return inputs.token_ids[:0]

        def tokens_after(done: int, rows: Numbers, places: Numbers) -> Tensor:
            if done or not batch.draft_rows:
                return self._next(rows, host.positions[places], inputs, places, done)
            return self._first(batch)

        return propose_in_turn(host, inputs, self._device, tokens_after)

    def _first(self, batch: Batch) -> Tensor:
        """First draft of each verified row, [r], after computing the tokens that the draft model
        lacks. If a row lacks only a few, they are computed together with its last token, which
        saves a pass."""
        verified = {row.row for row in batch.verify_rows}
        few = {row.row: row for row in batch.draft_rows if len(row.token_ids) <= _FEW}
        few = {number: row for number, row in few.items() if number in verified}
        self._catch_up([row for row in batch.draft_rows if row.row not in few])
        last = [ExtendRow(row.row, row.start, row.token_ids[:1], True) for row in batch.verify_rows]
        rows = [_joined(few[row.row], row) if row.row in few else row for row in last]
        host, inputs, hidden = self._extend(rows)
        logits = self._model.logits(hidden[inputs.sampled_tokens])
        return self._drawn(logits, host.sampled_rows, host.sampled_contexts)

    def _catch_up(self, lacking: Sequence[ExtendRow]) -> None:
        for rows in _passes(lacking):
            self._extend(rows)

    def _extend(self, rows: Sequence[ExtendRow]) -> tuple[HostInputs, StepInputs, Tensor]:
        """Computes tokens that are known, in one pass."""
        host = host_inputs(Batch(0, ForwardMode.EXTEND, extend_rows=tuple(rows)), self._rows)
        inputs = step_inputs(host, self._rows, self._device)
        step = inputs.token_ids, inputs.positions
        return host, inputs, self._model.hidden(*step, self._pool, inputs.layout)

    def _next(
        self, rows: Numbers, positions: Numbers, inputs: StepInputs, places: Numbers, drafts: int
    ) -> Tensor:
        """Next tokens [r], after the tokens at `places` of the step. `drafts`: how many drafts each
        row has already."""
        position, layout, place = single_tokens(self._rows, rows, positions, self._device, places)
        hidden = self._model.hidden(inputs.token_ids[place], position, self._pool, layout)
        logits = self._model.logits(hidden)
        before = self._draws.behind(inputs.token_ids, places, drafts)
        return self._drawn(logits, rows, positions + 1, before)

    def _drawn(
        self,
        logits: Tensor,
        rows: Numbers,
        positions: Numbers,
        drafts: DraftsBefore | None = None,
    ) -> Tensor:
        """Draws tokens on the first rank, for all ranks: [r, vocabulary] → [r]."""
        group = self._model.group
        if group.rank > 0:
            tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        else:
            tokens = self._draws.draw(logits, rows, positions, drafts)
        return tokens if group.size == 1 else group.from_first(tokens)


TokensAfter = Callable[[int, Numbers, Numbers], Tensor]
"""Function: (number of drafts that each row has, rows, places of their last tokens in the step) →
next tokens [rows]."""


def propose_in_turn(
    host: HostInputs, inputs: StepInputs, device: Device, tokens_after: TokensAfter
) -> Tensor:
    """Proposes drafts for verified rows, one token for each row at a time: writes them into the
    step's tokens and returns them row after row: [drafts]."""
    counts = host.drafts
    verified = slice(host.extends - len(counts), host.extends)
    begins, rows = host.rows.begins[verified], host.rows.rows[verified]
    for done in range(int(counts.max())):
        drafting = counts > done
        places = begins[drafting] + done
        tokens = tokens_after(done, rows[drafting], places)
        (after,) = device.upload((places + 1,))
        inputs.token_ids.index_copy_(0, after, tokens)
    drafted = np.arange(counts.sum()) + (begins + 1 - counts.cumsum() + counts).repeat(counts)
    (at,) = device.upload((drafted,))
    return inputs.token_ids[at]


def single_tokens(
    table: RowTable, rows: Numbers, positions: Numbers, device: Device, more: Numbers
) -> tuple[Tensor, TokenLayout, Tensor]:
    """Inputs for decoding one token in each of `rows`: positions and layout. `more` is sent in the
    same copy and returned."""
    numbers = RowNumbers(rows, np.arange(len(rows) + 1), positions + 1)
    pages = table.pages[rows, positions // table.page_size]
    columns = (positions, pages, positions % table.page_size, more)
    position, page, offset, others, row, begins, contexts = device.upload(
        (*columns, numbers.rows, numbers.begins, numbers.contexts)
    )
    layout = TokenLayout(
        pages=page,
        offsets=offset,
        page_table=table.page_table,
        rows=row,
        begins=begins,
        contexts=contexts,
        extends=0,
        numbers=numbers,
    )
    return position, layout, others


def _passes(rows: Sequence[ExtendRow]) -> Iterator[list[ExtendRow]]:
    """Passes of at most `_PIECE` tokens, each with as many rows as fit. A row that continues in the
    next pass fills its last page."""
    together: list[ExtendRow] = []
    room = _PIECE
    for row in rows:
        end, first = row.start + len(row.token_ids), row.start
        while first < end:
            last = min(end, (first // _PIECE + 1) * _PIECE)
            if together and (first > row.start or last - first > room):
                yield together
                together, room = [], _PIECE
            tokens = row.token_ids[first - row.start : last - row.start]
            together.append(ExtendRow(row.row, first, tokens, samples=False))
            first, room = last, room - (last - first)
    if together:
        yield together


def _joined(lacking: ExtendRow, last: ExtendRow) -> ExtendRow:
    """The lacking tokens of a row together with its last token."""
    return ExtendRow(last.row, lacking.start, lacking.token_ids + last.token_ids, last.samples)
