"""The draft model: a small model of the same vocabulary, which proposes the tokens of rows that are
verified.

It computes every token that the model computes, into pages of its own with the same numbers. So a
prefix that is cached, a page that moves to another row and a request that begins again are right
for both, and only the model's are accounted for. What it reads wrongly costs drafts, not answers.

Drafts stay on the device until the step's results are read. Knows no request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.rows import HostInputs, RowTable, StepInputs, host_inputs, step_inputs
from sluice_runtime.engine.sampling.draw import SamplingTable
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Numbers, RowNumbers, TokenLayout
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.scheduler.batch import Batch, ExtendRow, ForwardMode

_PIECE: Final = 512
"""Tokens of a prompt that are computed at once: so a long one takes little memory."""


class DraftModel:
    """Drafts for one runner's rows."""

    def __init__(
        self,
        model: Decoder,
        pool: PagePool,
        rows: RowTable,
        sampling: SamplingTable,
        device: Device,
    ) -> None:
        """`pool`: its own, as many pages as the model's."""
        self._model = model
        self._pool = pool
        self._rows = rows
        self._sampling = sampling
        self._device = device

    def propose(self, host: HostInputs, inputs: StepInputs) -> Tensor:
        """Writes the drafts of rows that are verified into the step's tokens, where there was
        NO_TOKEN; returns them, row after row: [drafts].

        One token a row at a time: each is drawn as the model draws at its position, from the draft
        model's logits.
        """
        counts = host.drafts
        verified = slice(host.extends - len(counts), host.extends)
        begins, rows = host.rows.begins[verified], host.rows.rows[verified]
        for done in range(int(counts.max(initial=0))):
            drafting = counts > done
            places = begins[drafting] + done
            tokens = self._next(rows[drafting], host.positions[places], inputs, places)
            (after,) = self._device.upload((places + 1,))
            inputs.token_ids.index_copy_(0, after, tokens)
        drafted = np.arange(counts.sum()) + (begins + 1 - counts.cumsum() + counts).repeat(counts)
        (at,) = self._device.upload((drafted,))
        return inputs.token_ids[at]

    def extend(self, prompts: Sequence[ExtendRow]) -> None:
        """Computes prompts that another engine has computed for the model, piece by piece."""
        for prompt in prompts:
            for first in range(0, len(prompt.token_ids), _PIECE):
                piece = prompt.token_ids[first : first + _PIECE]
                row = ExtendRow(prompt.row, prompt.start + first, piece, samples=False)
                batch = Batch(0, ForwardMode.EXTEND, extend_rows=(row,))
                host = host_inputs(batch, self._rows)
                self.follow(step_inputs(host, self._rows, self._device))

    def follow(self, inputs: StepInputs) -> None:
        """Computes the tokens of a step whose drafts are known, as the model does."""
        self._model.hidden(inputs.token_ids, inputs.positions, self._pool, inputs.layout)

    def _next(
        self, rows: Numbers, positions: Numbers, inputs: StepInputs, places: Numbers
    ) -> Tensor:
        """The token after the one at each of `places` of the step: [r]."""
        table = self._rows
        numbers = RowNumbers(rows, np.arange(len(rows) + 1), positions + 1)
        pages = table.pages[rows, positions // table.page_size]
        columns = (positions, pages, positions % table.page_size, places)
        position, page, offset, place, row, begins, contexts = self._device.upload(
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
        hidden = self._model.hidden(inputs.token_ids[place], position, self._pool, layout)
        return self._drawn(self._model.logits(hidden), rows, numbers.contexts)

    def _drawn(self, logits: Tensor, rows: Numbers, positions: Numbers) -> Tensor:
        """[r, vocabulary] → [r] tokens. What has no distribution drafts any token."""
        group = self._model.group
        if group.rank > 0:
            tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        else:
            tokens = self._sampling.sample(logits, rows.tolist(), positions)
        return (tokens if group.size == 1 else group.from_first(tokens)).clamp(min=0)
