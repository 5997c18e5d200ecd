"""Changes a row's logits before its token is drawn: logit_bias, tokens that are forbidden for now,
and penalties. Rows that ask for none cost nothing. Knows no request and no distribution.

Edits of single logits come first: a row's logit_bias, and -inf for end tokens before its minimum
length. All rows' edits are in flat columns on the host, which sends a step's edits at once, so the
number of rows hardly matters.

Penalties lower the logits of tokens that are already in a row. Presence and frequency count the
answer's tokens, as OpenAI defines them: a logit loses `presence` once and `frequency` for each
occurrence. Repetition covers prompt and answer, as transformers defines it: a positive logit is
divided by it, any other multiplied; it comes before the other two. Only logits of tokens that are
in a row change. On the device each row has a list of its tokens and a count of each token of the
vocabulary, to which drawn tokens are added; the host knows the lists' lengths. All is allocated at
the start, so that no step runs out of memory for it.

For a token after drafts, the drafts count as if they had been drawn, but they are not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device, Real, Whole, upload_mixed
from sluice_runtime.kv.pool import zeros
from sluice_runtime.scheduler.batch import NO_TOKEN, RowAdded
from sluice_runtime.wire.messages import Sampling

_ALWAYS: Final = 2**62


def history_of(added: RowAdded) -> Whole:
    """Token ids [n] of the request that the row is for."""
    return np.frombuffer(added.history, np.int32).astype(np.int64)


@dataclass(frozen=True)
class DraftsBefore:
    """Drafts that precede m tokens, which hold if these drafts are kept. A row's tokens are
    consecutive; each has one draft more than the previous one."""

    token_ids: Tensor
    """Tokens [n] of the step, on the device. A row's drafts lie side by side."""
    last: Whole
    """Index [m] of the last draft before each token."""
    counts: Whole
    """Number [m] of drafts before each token."""
    read: Callable[[], Sequence[int]]
    """Function that reads the step's tokens on the host; waits for them where a model has proposed
    the drafts."""

    def part(self, part: slice) -> DraftsBefore:
        """The drafts before some of the m tokens."""
        return replace(self, last=self.last[part], counts=self.counts[part])

    def on_host(self) -> list[Sequence[int]]:
        """Draft tokens before each of the m tokens."""
        tokens = self.read()
        ends = zip((self.last + 1).tolist(), self.counts.tolist(), strict=True)
        return [tokens[end - count : end] for end, count in ends]

    def kept(self, tokens: Tensor, device: Device) -> Tensor:
        """Tokens [m] drawn → [m], with NO_TOKEN for those after a draft that was not drawn."""
        last, counts = device.upload((self.last, self.counts))
        differs = (counts > 0) & (self.token_ids[last] != tokens.roll(1))
        differing = differs.cumsum(0)
        first = torch.arange(len(tokens), device=tokens.device) - counts
        return tokens.masked_fill(differing > differing[first], NO_TOKEN)


@dataclass(frozen=True)
class _Edits:
    """Columns of n edits, [n] each."""

    row: Whole
    token: Whole
    value: Real
    until: Whole
    """Position of the first token for which the edit does not hold."""


class LogitBias:
    """Logit edits of `rows` rows."""

    def __init__(self, rows: int, device: Device) -> None:
        self._device = device
        self.rows: dict[int, list[_Edits]] = {}
        """Edits by row; rows without any are missing."""
        self._all: _Edits | None = None
        self._outdated = False
        """Whether rows were added or dropped since `_all` was joined."""
        self._index = np.full(rows, -1)
        """Scratch: index of each row among the step's different rows."""

    def add(self, row: int, biases: Sequence[tuple[int, float]]) -> None:
        """Adds biases to logits of `row`, for every token that will be drawn."""
        if biases:
            tokens, values = zip(*biases, strict=True)
            self._add_edits(row, tokens, np.array(values, np.float64), _ALWAYS)

    def forbid(self, row: int, tokens: Sequence[int], until: int) -> None:
        """Keeps `tokens` from being sampled before position `until`."""
        if tokens:
            self._add_edits(row, tokens, np.full(len(tokens), -np.inf), until)

    def drop(self, row: int) -> None:
        """Removes the row's edits."""
        if self.rows.pop(row, None):
            self._outdated = True

    def apply(self, logits: Tensor, rows: Whole, positions: Whole) -> None:
        """Applies the edits. logits: [m, v], changed in place; rows, and positions of the tokens to
        be drawn: [m], on the host. A verified row occurs several times in succession."""
        if self._outdated:
            self._join()
        if self._all is None:
            return
        edit, at = self._places(rows)
        applies = positions[at] < self._all.until[edit]
        if not applies.any():
            return
        edit, at = edit[applies], at[applies]
        columns = at * logits.shape[1] + self._all.token[edit], self._all.value[edit]
        places, values = upload_mixed(self._device, columns)
        logits.view(-1).scatter_add_(0, places, values.float())

    def _places(self, rows: Whole) -> tuple[Whole, Whole]:
        """Pairs of an edit and the place among `rows` [m] that it applies to, [k] each."""
        assert self._all is not None
        firsts = np.flatnonzero(np.append(True, rows[1:] != rows[:-1]))
        counts = np.diff(np.append(firsts, len(rows)))
        self._index[rows[firsts]] = np.arange(len(firsts))
        group = self._index[self._all.row]
        self._index[rows] = -1
        edits = np.flatnonzero(group >= 0)
        group = group[edits]
        times = counts[group]
        before = (times.cumsum() - times).repeat(times)
        within = np.arange(int(times.sum())) - before
        return edits.repeat(times), firsts[group].repeat(times) + within

    def _add_edits(self, row: int, tokens: Sequence[int], values: Real, until: int) -> None:
        count = len(tokens)
        columns = np.full(count, row), np.array(tokens, np.int64), values, np.full(count, until)
        self.rows.setdefault(row, []).append(_Edits(*columns))
        self._outdated = True

    def _join(self) -> None:
        parts = [edits for of_row in self.rows.values() for edits in of_row]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(_Edits))
        self._all = _Edits(*map(np.concatenate, columns)) if parts else None
        self._outdated = False


@dataclass(frozen=True)
class _NewRow:
    """Content of a row's tables when it begins to be penalised."""

    row: int
    tokens: Whole
    """Distinct tokens in prompt or answer."""
    drawn: Whole
    """Distinct tokens in the answer."""
    counts: Whole
    """Number of occurrences of each of `drawn` in the answer."""


@dataclass(frozen=True)
class PenalisedRows:
    """Penalised rows among a step's rows, on the device; [k] each."""

    places: Tensor
    """Places among the rows of the step."""
    rows: Tensor
    lengths: Tensor
    """Lengths of the rows' token lists."""
    most: int
    """Length of the longest list."""
    parameters: tuple[Tensor, Tensor, Tensor]
    """Presence, frequency and repetition penalty: [k, 1] each."""
    drafts: Tensor | None
    """Drafts [k, d] before the token, NO_TOKEN where there are fewer than d; None: there are
    none."""


class Penalties:
    """Penalties for `rows` rows of at most `context_tokens` tokens."""

    def __init__(
        self, rows: int, vocabulary_size: int, context_tokens: int, device: Device
    ) -> None:
        self._vocabulary = vocabulary_size
        self._device = device
        self.rows = set[int]()
        """Rows that are penalised."""
        self._penalised = np.zeros(rows, np.bool_)
        """Marks [rows] of the penalised rows, for numpy."""
        self._parameters: Real = np.zeros((3, rows))
        """Presence, frequency and repetition penalty: [3, rows]."""
        self._repeated: Whole = np.zeros(rows, np.int64)
        """Tokens that each row has more than its list [rows]. From then on both grow alike."""
        self._counts = zeros((rows, vocabulary_size), torch.int32, device.place)
        """Occurrences of each token in the answer: [rows, v]."""
        self._tokens = zeros((rows, context_tokens + 1), torch.int32, device.place)
        """Tokens of prompt and answer: [rows, context + 1], in any order, some of them several
        times. One more than the context, since a row that has ended may be in a step that was
        launched ahead."""
        self._new: list[_NewRow] = []

    def add(self, row: int, sampling: Sampling, history: Whole, prompt_tokens: int) -> None:
        """Begins to penalise a row. history: [n] token ids of the prompt, one at least, and of what
        was sampled for the request before it was in this row. `send` follows."""
        self._parameters[:, row] = (
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        seen = np.zeros(self._vocabulary, np.bool_)
        seen[history] = True
        tokens = np.flatnonzero(seen)
        drawn, counts = np.unique(history[prompt_tokens:], return_counts=True)
        self._new.append(_NewRow(row, tokens, drawn, counts))
        self._repeated[row] = len(history) - len(tokens)
        self._penalised[row] = True
        self.rows.add(row)

    def drop(self, row: int) -> None:
        """Ends the row's penalties."""
        self._penalised[row] = False
        self.rows.discard(row)
        self._new = [new for new in self._new if new.row != row]

    def send(self) -> None:
        """Sends the tables of rows that were added to the device."""
        if not self._new:
            return
        new, self._new = self._new, []
        width = self._tokens.shape[1]
        columns = (
            np.concatenate([row.row * width + np.arange(len(row.tokens)) for row in new]),
            np.concatenate([row.tokens for row in new]),
            np.concatenate([row.row * self._vocabulary + row.drawn for row in new]),
            np.concatenate([row.counts for row in new]),
        )
        listed, tokens, counted, counts = upload_mixed(self._device, columns)
        for row in new:
            self._counts[row.row].zero_()
        self._tokens.view(-1).index_copy_(0, listed, tokens.int())
        self._counts.view(-1).index_copy_(0, counted, counts.int())

    def penalised_rows(
        self, rows: Whole, positions: Whole, drafts: DraftsBefore | None = None
    ) -> PenalisedRows | None:
        """The penalised rows among a step's rows. positions: [m] of the tokens to be drawn."""
        places = np.flatnonzero(self._penalised[rows])
        if not len(places):
            return None
        rows = rows[places]
        known = positions[places] - (drafts.counts[places] if drafts else 0)
        lengths = (known - self._repeated[rows]).clip(1, self._tokens.shape[1])
        columns = [places, rows, lengths, *self._parameters[:, rows]]
        at, row, length, *parameters = upload_mixed(self._device, columns)
        presence, frequency, repetition = (column.float()[:, None] for column in parameters)
        return PenalisedRows(
            at,
            row,
            length,
            int(lengths.max()),
            (presence, frequency, repetition),
            self._drafts(drafts, places) if drafts else None,
        )

    def _drafts(self, drafts: DraftsBefore, places: Whole) -> Tensor | None:
        """Drafts before the tokens at `places`: see `PenalisedRows.drafts`."""
        counts = drafts.counts[places]
        if not (most := int(counts.max())):
            return None
        last, count = self._device.upload((drafts.last[places], counts))
        back = torch.arange(most, device=last.device)
        tokens = drafts.token_ids[(last[:, None] - back).clamp(min=0)]
        return tokens.masked_fill(back >= count[:, None], NO_TOKEN)

    def apply(self, logits: Tensor, penalised: PenalisedRows) -> None:
        """Applies the penalties. logits: [m, v] of the step's rows, changed in place."""
        presence, frequency, repetition = penalised.parameters
        tokens, drafts = self._listed(penalised), penalised.drafts
        if drafts is not None:
            tokens = torch.cat((tokens, torch.where(drafts >= 0, drafts, tokens[:, :1])), 1)
        counts = self._counts.view(-1)[penalised.rows[:, None] * self._vocabulary + tokens]
        for draft in drafts.T if drafts is not None else ():
            counts += tokens == draft[:, None]
        places = tokens.add_(penalised.places[:, None] * self._vocabulary)
        flat = logits.view(-1)
        before = flat[places]
        after = torch.where(before > 0, before / repetition, before * repetition)
        after.sub_(frequency * counts).sub_(presence * (counts > 0))
        flat[places] = after

    def count(self, penalised: PenalisedRows, tokens: Tensor) -> None:
        """Lists and counts the tokens [m] drawn for the step's rows. If a row's token was not drawn
        or kept, the row's first token is listed again, which changes nothing."""
        last, row = self._tokens.shape[1] - 1, penalised.rows
        drawn = tokens.index_select(0, penalised.places)
        was_drawn = drawn >= 0
        token = torch.where(was_drawn, drawn, self._tokens[:, 0].index_select(0, row).long())
        ends = penalised.lengths
        if penalised.drafts is not None:
            ends = ends + (penalised.drafts >= 0).sum(1)
        ends = row * (last + 1) + ends.clamp(max=last)
        self._tokens.view(-1).index_copy_(0, ends, token.int())
        self._counts.view(-1).index_add_(0, row * self._vocabulary + token, was_drawn.int())

    def _listed(self, penalised: PenalisedRows) -> Tensor:
        """Listed tokens [k, most]. Shorter lists are padded with their first token, whose logit is
        then written twice with one value."""
        listed = self._tokens[:, : penalised.most].index_select(0, penalised.rows).long()
        places = torch.arange(penalised.most, device=listed.device)
        return torch.where(places < penalised.lengths[:, None], listed, listed[:, :1])
