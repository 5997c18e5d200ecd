"""Lowers the logits of tokens that are already in a row: presence, frequency, repetition penalty.

Presence and frequency count the answer's tokens, as OpenAI defines them: a logit loses `presence`
once and `frequency` for each occurrence. Repetition looks at prompt and answer, as transformers
defines it: a positive logit is divided by it, another one multiplied; it comes first.

Only logits of tokens that are in a row are touched. Each row has a list of them and a count of each
token of the vocabulary on the device, where drawn tokens are added; the host knows how long the
lists are. All is allocated at the start, so that no step runs out of memory for it. Knows no
request and no distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.sampling.columns import Real, Whole, sent
from sluice_runtime.kv.pool import zeros
from sluice_runtime.wire.messages import Sampling


@dataclass(frozen=True)
class _New:
    """Of a row that is penalised from now on."""

    row: int
    tokens: Whole
    """Those in prompt or answer, each once."""
    drawn: Whole
    """Those in the answer, each once."""
    counts: Whole
    """How often each of `drawn` is in it."""


@dataclass(frozen=True)
class PenalisedRows:
    """k of a step's rows, on the device; [k] each."""

    places: Tensor
    """Among the rows of the step."""
    rows: Tensor
    lengths: Tensor
    """Of their lists."""
    most: int
    """The longest of them."""
    parameters: tuple[Tensor, Tensor, Tensor]
    """Presence, frequency, repetition: [k, 1] each."""


class Penalties:
    """`rows` rows of at most `context_tokens` tokens, of which some are penalised."""

    def __init__(
        self, rows: int, vocabulary_size: int, context_tokens: int, device: Device
    ) -> None:
        self._vocabulary = vocabulary_size
        self._device = device
        self._penalised = np.zeros(rows, np.bool_)
        self._parameters: Real = np.zeros((3, rows))
        """[3, rows]: presence, frequency, repetition."""
        self._lengths: Whole = np.zeros(rows, np.int64)
        """[rows]: of the lists."""
        self._counts = zeros((rows, vocabulary_size), torch.int32, device.place)
        """[rows, v]: how often each token is in the answer."""
        self._tokens = zeros((rows, context_tokens + 1), torch.int32, device.place)
        """[rows, context + 1]: prompt and answer, in any order, some of them several times. One
        more, since a row that has ended may be in a step that was launched ahead."""
        self._new: list[_New] = []

    def add(
        self, row: int, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        """`prompt`: one token at least; `answer`: tokens sampled for the request before it was in
        this row. `send` follows."""
        self._parameters[:, row] = (
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        seen = np.zeros(self._vocabulary, np.bool_)
        seen[[*prompt, *answer]] = True
        tokens = np.flatnonzero(seen)
        drawn, counts = np.unique(np.array(answer, np.int64), return_counts=True)
        self._new.append(_New(row, tokens, drawn, counts))
        self._lengths[row] = len(tokens)
        self._penalised[row] = True

    def drop(self, row: int) -> None:
        """The row is not penalised from now on."""
        self._penalised[row] = False

    def send(self) -> None:
        """The device learns of rows that were added."""
        if not self._new:
            return
        new, self._new = self._new, []
        width = self._tokens.shape[1]
        columns = (
            np.concatenate([one.row * width + np.arange(len(one.tokens)) for one in new]),
            np.concatenate([one.tokens for one in new]),
            np.concatenate([one.row * self._vocabulary + one.drawn for one in new]),
            np.concatenate([one.counts for one in new]),
        )
        listed, tokens, counted, counts = sent(self._device, columns)
        for one in new:
            self._counts[one.row].zero_()
        self._tokens.view(-1).index_copy_(0, listed, tokens.int())
        self._counts.view(-1).index_copy_(0, counted, counts.int())

    def any_of(self, rows: Whole) -> bool:
        """Whether any of a step's rows is penalised."""
        return bool(self._penalised[rows].any())

    def of(self, rows: Whole) -> PenalisedRows | None:
        """Those of a step's rows that are penalised."""
        places = np.flatnonzero(self._penalised[rows])
        if not len(places):
            return None
        rows = rows[places]
        columns = [places, rows, self._lengths[rows], *self._parameters[:, rows]]
        at, row, lengths, *parameters = sent(self._device, columns)
        presence, frequency, repetition = (column.float()[:, None] for column in parameters)
        longest = int(self._lengths[rows].max())
        return PenalisedRows(at, row, lengths, longest, (presence, frequency, repetition))

    def apply(self, logits: Tensor, penalised: PenalisedRows) -> None:
        """logits: [m, v] of the step's rows, changed in place."""
        presence, frequency, repetition = penalised.parameters
        tokens = self._listed(penalised)
        counts = self._counts.view(-1)[penalised.rows[:, None] * self._vocabulary + tokens]
        places = tokens.add_(penalised.places[:, None] * self._vocabulary)
        flat = logits.view(-1)
        before = flat[places]
        after = torch.where(before > 0, before / repetition, before * repetition)
        after.sub_(frequency * counts).sub_(presence * (counts > 0))
        flat[places] = after

    def count(self, penalised: PenalisedRows, rows: Whole, tokens: Tensor) -> None:
        """Adds the tokens [m] drawn for the step's rows; where none was drawn the row's first one
        is listed again, which changes nothing. rows: [m], on the host."""
        last, row = self._tokens.shape[1] - 1, penalised.rows
        drawn = tokens.index_select(0, penalised.places)
        found = drawn >= 0
        token = torch.where(found, drawn, self._tokens[:, 0].index_select(0, row).long())
        ends = row * (last + 1) + penalised.lengths.clamp(max=last)
        self._tokens.view(-1).index_copy_(0, ends, token.int())
        self._counts.view(-1).index_add_(0, row * self._vocabulary + token, found.int())
        growing = rows[self._penalised[rows]]
        self._lengths[growing] = (self._lengths[growing] + 1).clip(max=last + 1)

    def _listed(self, penalised: PenalisedRows) -> Tensor:
        """[k, most] tokens. Behind its end a list repeats its first one, whose logit then gets its
        value once more."""
        listed = self._tokens[:, : penalised.most].index_select(0, penalised.rows).long()
        places = torch.arange(penalised.most, device=listed.device)
        return torch.where(places < penalised.lengths[:, None], listed, listed[:, :1])
