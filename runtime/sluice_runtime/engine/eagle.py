"""Drafts of an EAGLE-3 head, which computes every step after the model.

The head needs the model's hidden states of every token of a row, which are not kept, so it never
lags behind. Its keys and values are in pages with the same numbers as the model's, which are cached
and evicted together. For each row it keeps its own hidden states of the last tokens. The state of
the token before the row's last proposes the first draft; each further draft costs a pass of the
head.

A cached page was computed with the token that followed it in the first request. So at the end of a
shared prefix the head may have used another next token. That costs drafts, not answers. Knows no
request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.draft import DraftDraws, propose_in_turn, single_tokens
from sluice_runtime.engine.rows import HostInputs, RowTable, StepInputs
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import Numbers
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.model.eagle import EagleHead
from sluice_runtime.scheduler.batch import Batch, ExtendRow


class EagleDrafts:
    """Drafts for one runner's rows."""

    def __init__(
        self,
        head: EagleHead,
        pool: PagePool,
        rows: RowTable,
        draws: DraftDraws,
        device: Device,
        most: int,
    ) -> None:
        """`pool`: the head's pool, with as many pages as the model's; `most`: most drafts of a
        row."""
        self._head = head
        self._pool = pool
        self._rows = rows
        self._draws = draws
        self._device = device
        self._width = most + 1
        """Most tokens of a row in one step that each have a token drawn after them."""
        size = (len(rows.lengths) * self._width, head.spec.hidden_size)
        self._kept = torch.zeros(size, dtype=head.dtype, device=device.place)
        """Hidden states of the head, [rows x width, h]; see `_slots`."""
        self._states: Tensor | None = None
        """Hidden states that the model computed in this step, [n, 3 x the model's h]."""

    def model_hidden(self, model: Decoder, inputs: StepInputs, pool: PagePool) -> Tensor:
        """Computes the model's step: hidden states [n, h]. Keeps the states that `follow` needs."""
        step = inputs.token_ids, inputs.positions, pool, inputs.layout
        hidden, self._states = model.tapped(*step, self._head.taps)
        return hidden

    def follow(self, batch: Batch, host: HostInputs, inputs: StepInputs, tokens: Tensor) -> None:
        """Runs the head's step after the model's. tokens: [m] drawn, each the next token of its
        position; in a verified row this holds only up to the first wrong draft. States computed
        from wrong drafts are overwritten in the next step."""
        states, self._states = self._states, None
        assert states is not None
        slots = self._slots(host.sampled_rows, host.sampled_contexts - 1)
        next_ids, at = self._device.upload((_next_ids(batch.extend_rows, host), slots))
        next_ids.index_copy_(0, inputs.sampled_tokens, tokens.clamp(min=0))
        step = next_ids, inputs.positions, self._pool, inputs.layout
        hidden = self._head.hidden(self._head.fc(states), *step)
        self._kept.index_copy_(0, at, hidden[inputs.sampled_tokens])

    def propose(self, batch: Batch, host: HostInputs, inputs: StepInputs) -> Tensor:
        """See `DraftModel.propose`."""

        def tokens_after(done: int, rows: Numbers, places: Numbers) -> Tensor:
            positions = host.positions[places]
            if done:
                hidden = self._next(rows, positions, inputs, places)
            else:
                (at,) = self._device.upload((self._slots(rows, positions - 1),))
                hidden = self._kept[at]
            before = self._draws.behind(inputs.token_ids, places, done)
            return self._draws.draw(self._head.logits(hidden), rows, positions + 1, before)

        return propose_in_turn(host, inputs, self._device, tokens_after)

    def _next(
        self, rows: Numbers, positions: Numbers, inputs: StepInputs, places: Numbers
    ) -> Tensor:
        """Hidden states [r, h] at the positions before the drafts at `places`. Each is computed
        from the head's own state at the previous position."""
        slots = [self._slots(rows, positions - 2), self._slots(rows, positions - 1)]
        position, layout, others = single_tokens(
            self._rows, rows, positions - 1, self._device, np.concatenate((places, *slots))
        )
        place, before, after = others.view(3, -1)
        step = inputs.token_ids[place], position, self._pool, layout
        hidden = self._head.hidden(self._kept[before], *step)
        self._kept.index_copy_(0, after, hidden)
        return hidden

    def _slots(self, rows: Numbers, positions: Numbers) -> Numbers:
        """Slots for the hidden states of the tokens at `positions`; each of a row's last tokens has
        one."""
        return rows * self._width + positions % self._width


def _next_ids(prompts: Sequence[ExtendRow], host: HostInputs) -> Numbers:
    """Token after each of the step's n tokens, except for those that are drawn."""
    after = np.roll(host.token_ids, -1)
    ends = host.rows.begins[1 : len(prompts) + 1] - 1
    after[ends] = [row.next_token for row in prompts]
    return np.maximum(after, 0)
