"""What the model thinks of tokens: of those drawn, and of a prompt's own.

Always of the model's distribution itself, before bias, penalties, grammar and temperature: so
scores do not depend on how a request samples, and those of a prompt and of an answer compare.
Rows that ask for nothing cost nothing. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.messages import TokenLogprob
from sluice_runtime.scheduler.batch import Batch, ExtendRow, RowAdded

MOST_TOP: Final = 20
"""Computed for every row, so that which of equal tokens are told does not depend on the others."""
LEAST_LOGPROB: Final = -9999.0
"""In place of anything less, which JSON could not carry."""
_PROMPT_TOKENS: Final = 64
"""Scored at a time: a chunk's logits at once may be larger than the pool."""


@dataclass(frozen=True)
class _Prompt:
    """A prompt that is being scored."""

    token_ids: tuple[int, ...]
    top: int
    scores: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """The model's thoughts of a step, kept while its logits are changed."""

    places: Tensor
    """[k] which of the step's rows asked."""
    top: list[int]
    logprobs: Tensor
    """[k, vocabulary]"""

    def of(self, tokens: Tensor) -> dict[int, TokenLogprob]:
        """By place, what it thinks of the tokens drawn: [m]."""
        drawn = tokens[self.places].clamp(min=0)
        scores = scored(self.logprobs, drawn, self.top)
        return dict(zip(self.places.tolist(), scores, strict=True))


class Logprobs:
    """Which rows ask, and prompts on their way."""

    def __init__(self) -> None:
        self._top: dict[int, int] = {}
        self._prompts: dict[int, _Prompt] = {}

    def add(self, added: RowAdded) -> None:
        """A row that may ask."""
        if added.logprobs >= 0:
            self._top[added.row] = added.logprobs
        if added.prompt_logprobs >= 0:
            prompt = added.history[: added.prompt_tokens]
            self._prompts[added.row] = _Prompt(prompt, added.prompt_logprobs)

    def drop(self, row: int) -> None:
        """The row asks for nothing from now on."""
        self._top.pop(row, None)
        self._prompts.pop(row, None)

    def see(self, logits: Tensor, rows: tuple[int, ...]) -> Seen | None:
        """Before the logits of `rows`, [m, vocabulary], are changed; None when none asks."""
        if not self._top:
            return None
        asking = [(place, self._top[row]) for place, row in enumerate(rows) if row in self._top]
        if not asking:
            return None
        places = torch.tensor([place for place, _ in asking])
        top = [top for _, top in asking]
        return Seen(places, top, torch.log_softmax(logits[places], -1))

    def read(self, batch: Batch, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
        """Scores what the step reads of prompts. hidden: [n, h], of the step's tokens."""
        begin = 0
        for extend in batch.extend_rows if self._prompts else ():
            end = begin + len(extend.token_ids)
            if prompt := self._prompts.get(extend.row):
                _read(prompt, extend, hidden[begin:end], logits_of)
            begin = end

    def finished(self, batch: Batch) -> dict[int, list[TokenLogprob]]:
        """By row, the prompts that the step has read to their ends; they are told once."""
        done = [e.row for e in batch.extend_rows if e.samples and e.row in self._prompts]
        return {row: self._prompts.pop(row).scores for row in done}


def _read(
    prompt: _Prompt, extend: ExtendRow, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> None:
    """Each token predicts the one after it, which may belong to the next chunk."""
    predicted = torch.tensor(prompt.token_ids[extend.start + 1 :][: len(hidden)])
    for first in range(0, len(predicted), _PROMPT_TOKENS):
        targets = predicted[first : first + _PROMPT_TOKENS]
        logits = logits_of(hidden[first : first + len(targets)])
        logprobs = torch.log_softmax(logits, -1)
        prompt.scores.extend(scored(logprobs, targets, [prompt.top] * len(targets)))


def scored(logprobs: Tensor, tokens: Tensor, top: list[int]) -> list[TokenLogprob]:
    """logprobs: [k, vocabulary]; tokens, and how many best ones to tell: [k]."""
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    best = logprobs.topk(min(MOST_TOP, logprobs.shape[1]))
    best_ids, best_values = best.indices.tolist(), best.values.clamp(min=LEAST_LOGPROB).tolist()
    values = own.squeeze(1).clamp(min=LEAST_LOGPROB).tolist()
    return [
        TokenLogprob(token, value, rank, list(zip(ids, others, strict=True))[:count])
        for token, value, rank, ids, others, count in zip(
            tokens.tolist(), values, ranks.tolist(), best_ids, best_values, top, strict=True
        )
    ]
