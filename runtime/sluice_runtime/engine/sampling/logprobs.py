"""Log-probabilities of sampled tokens and of prompt tokens.

They are of the model's own distribution, before bias, penalties, grammar and temperature. So they
do not depend on a request's sampling settings, and prompt and answer are comparable. A step
computes them, and they are read when it lands. Rows that do not ask for logprobs cost nothing.
Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device, Whole, upload_mixed
from sluice_runtime.engine.sampling.penalties import history_of
from sluice_runtime.scheduler.batch import Batch, ExtendRow, RowAdded
from sluice_runtime.wire.messages import TokenLogprob

MAX_TOP_LOGPROBS: Final = 20
"""Number of most probable tokens computed for every row, so that the choice among equally probable
tokens does not depend on the other rows of the step."""
MIN_LOGPROB: Final = -9999.0
"""Minimum logprob; replaces lower values, because JSON has no -inf."""
_PROMPT_TOKENS: Final = 64
"""Maximum prompt tokens scored at once: the logits of a whole chunk may be larger than the KV
pool."""


@dataclass(frozen=True)
class _Prompt:
    """A prompt that is being scored."""

    token_ids: Whole
    """[n]."""
    top: int
    scores: list[TokenLogprob] = field(default_factory=list)
    """Scores from the steps that have landed."""


@dataclass(frozen=True)
class PromptScores:
    """Scores of a piece of a prompt."""

    prompt: _Prompt
    table: Tensor
    """Table as `score` returns it."""


@dataclass(frozen=True)
class StepLogprobs:
    """Logprobs of one step, taken before its logits are changed."""

    places: Sequence[int]
    """Places [k] among the step's sampling rows that asked for logprobs."""
    top: list[int]
    at: Tensor
    """Places [k], on the device."""
    logprobs: Tensor
    """Log-probabilities [k, vocabulary]."""

    def scores_of(self, tokens: Tensor) -> Tensor:
        """Scores of the tokens [m] that the step's rows sampled, as `score` returns them."""
        return score(self.logprobs, tokens.index_select(0, self.at).clamp(min=0))


@dataclass(frozen=True)
class StepScores:
    """All scores of one step, computed but not read yet."""

    prompts: Sequence[PromptScores]
    drawn: StepLogprobs | None
    tokens: Tensor
    """Sampled tokens [m]."""

    def tables(self) -> list[Tensor]:
        """Tables that `read` needs in the host's memory."""
        tables = [piece.table for piece in self.prompts]
        return tables if self.drawn is None else [*tables, self.drawn.scores_of(self.tokens)]

    def read(self, tables: Sequence[Tensor]) -> dict[int, TokenLogprob]:
        """Logprobs of the sampled tokens, by index among the step's sampling rows; prompts get
        theirs."""
        for piece, table in zip(self.prompts, tables, strict=False):
            top = [piece.prompt.top] * len(table)
            piece.prompt.scores.extend(read_scores(table, top))
        if self.drawn is None:
            return {}
        return dict(zip(self.drawn.places, read_scores(tables[-1], self.drawn.top), strict=True))


class Logprobs:
    """The rows that ask for logprobs, and the prompts that are partly scored."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.rows = set[int]()
        """Rows that ask for logprobs of prompt or answer."""
        self._top: dict[int, int] = {}
        self._prompts: dict[int, _Prompt] = {}

    def add(self, added: RowAdded) -> None:
        """Records which logprobs the row asks for."""
        self.rows.add(added.row)
        if added.logprobs >= 0:
            self._top[added.row] = added.logprobs
        if added.prompt_logprobs >= 0:
            prompt = history_of(added)[: added.prompt_tokens]
            self._prompts[added.row] = _Prompt(prompt, added.prompt_logprobs)

    def drop(self, row: int) -> None:
        """Removes the row."""
        self.rows.discard(row)
        self._top.pop(row, None)
        self._prompts.pop(row, None)

    def capture(self, logits: Tensor, rows: Sequence[int]) -> StepLogprobs | None:
        """Log-probabilities of the rows that ask, from logits [m, vocabulary] of `rows` that are
        not changed yet; None when no row asks."""
        if not self._top:
            return None
        asking = {place: self._top[row] for place, row in enumerate(rows) if row in self._top}
        if not asking:
            return None
        places = list(asking)
        (at,) = upload_mixed(self._device, [np.array(places, np.int64)])
        logprobs = torch.log_softmax(logits.index_select(0, at), -1)
        return StepLogprobs(places, list(asking.values()), at, logprobs)

    def read(
        self, batch: Batch, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
    ) -> list[PromptScores]:
        """Scores the prompt tokens of the step. hidden: [n, h], of the step's tokens."""
        pieces: list[PromptScores] = []
        begin = 0
        for extend in batch.extend_rows if self._prompts else ():
            end = begin + len(extend.token_ids)
            if prompt := self._prompts.get(extend.row):
                pieces += self._pieces(prompt, extend, hidden[begin:end], logits_of)
            begin = end
        return pieces

    def finished(self, batch: Batch) -> dict[int, list[TokenLogprob]]:
        """Scores of prompts that end in this step, by row; complete when it has landed. Each is
        returned once."""
        done = [e.row for e in batch.extend_rows if e.samples and e.row in self._prompts]
        return {row: self._prompts.pop(row).scores for row in done}

    def _pieces(
        self,
        prompt: _Prompt,
        extend: ExtendRow,
        hidden: Tensor,
        logits_of: Callable[[Tensor], Tensor],
    ) -> list[PromptScores]:
        """Scores of a chunk's tokens in pieces: each token predicts the next one, which may be in
        the next chunk."""
        predicted = prompt.token_ids[extend.start + 1 :][: len(hidden)]
        if not len(predicted):
            return []
        (targets,) = upload_mixed(self._device, [predicted])
        pieces = []
        for first in range(0, len(targets), _PROMPT_TOKENS):
            tokens = targets[first : first + _PROMPT_TOKENS]
            logprobs = torch.log_softmax(logits_of(hidden[first : first + len(tokens)]), -1)
            pieces.append(PromptScores(prompt, score(logprobs, tokens)))
        return pieces


def score(logprobs: Tensor, tokens: Tensor) -> Tensor:
    """Scores of tokens. logprobs: [k, vocabulary]; tokens: [k] → [k, 3 + 2 x n] float64, exact for
    all of these: the token, its logprob, its rank, the n most probable tokens, their logprobs."""
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(-1, keepdim=True) + 1
    best = logprobs.topk(min(MAX_TOP_LOGPROBS, logprobs.shape[1]))
    columns = tokens[:, None], own, ranks, best.indices, best.values
    return torch.cat([column.double() for column in columns], 1)


def read_scores(table: Tensor, top: list[int]) -> list[TokenLogprob]:
    """Logprobs from a table as `score` returns it. top: [k] how many of the most probable tokens to
    return."""
    most = (table.shape[1] - 3) // 2
    ids = table[:, [0, 2, *range(3, 3 + most)]].long().tolist()
    values = table[:, [1, *range(3 + most, 3 + 2 * most)]].clamp(min=MIN_LOGPROB).tolist()
    return [
        TokenLogprob(token, value, rank, list(zip(others, their, strict=True))[:count])
        for (token, rank, *others), (value, *their), count in zip(ids, values, top, strict=True)
    ]
