"""Log-probabilities of sampled tokens and of prompt tokens.

They are those of the model's own distribution, before bias, penalties, grammar and temperature: so
they do not depend on how a request samples, and those of prompt and answer are comparable. Rows
that do not ask for logprobs cost nothing. Knows no request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.messages import TokenLogprob
from sluice_runtime.scheduler.batch import Batch, ExtendRow, RowAdded

MAX_TOP_LOGPROBS: Final = 20
"""Computed for every row, so that the choice among equally probable tokens does not depend on the
other rows of the step."""
MIN_LOGPROB: Final = -9999.0
"""Replaces lower values: JSON has no -inf."""
_PROMPT_TOKENS: Final = 64
"""Scored at once: the logits of a whole chunk may be larger than the KV pool."""


@dataclass(frozen=True)
class _Prompt:
    """A prompt that is being scored."""

    token_ids: tuple[int, ...]
    top: int
    scores: list[TokenLogprob] = field(default_factory=list)


@dataclass(frozen=True)
class StepLogprobs:
    """Logprobs of one step, taken before its logits are changed."""

    places: Tensor
    """[k] indices of the step's sampling rows that asked for logprobs."""
    top: list[int]
    logprobs: Tensor
    """[k, vocabulary]"""

    def of(self, tokens: Tensor) -> dict[int, TokenLogprob]:
        """Logprobs of the sampled tokens [m], by index among the step's sampling rows."""
        drawn = tokens[self.places].clamp(min=0)
        scores = scored(self.logprobs, drawn, self.top)
        return dict(zip(self.places.tolist(), scores, strict=True))


class Logprobs:
    """Knows which rows ask for logprobs, and the prompts that are partly scored."""

    def __init__(self) -> None:
        self._top: dict[int, int] = {}
        self._prompts: dict[int, _Prompt] = {}

    def add(self, added: RowAdded) -> None:
        """Notes what the row asks for."""
        if added.logprobs >= 0:
            self._top[added.row] = added.logprobs
        if added.prompt_logprobs >= 0:
            prompt = added.history[: added.prompt_tokens]
            self._prompts[added.row] = _Prompt(prompt, added.prompt_logprobs)

    def drop(self, row: int) -> None:
        """Forgets the row."""
        self._top.pop(row, None)
        self._prompts.pop(row, None)

    def capture(self, logits: Tensor, rows: tuple[int, ...]) -> StepLogprobs | None:
        """logits: [m, vocabulary] of `rows`, not changed yet; None when no row asks."""
        if not self._top:
            return None
        asking = [(place, self._top[row]) for place, row in enumerate(rows) if row in self._top]
        if not asking:
            return None
        places = torch.tensor([place for place, _ in asking])
        top = [top for _, top in asking]
        return StepLogprobs(places, top, torch.log_softmax(logits[places], -1))

    def read(self, batch: Batch, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]) -> None:
        """Scores the prompt tokens of the step. hidden: [n, h], of the step's tokens."""
        begin = 0
        for extend in batch.extend_rows if self._prompts else ():
            end = begin + len(extend.token_ids)
            if prompt := self._prompts.get(extend.row):
                _read(prompt, extend, hidden[begin:end], logits_of)
            begin = end

    def finished(self, batch: Batch) -> dict[int, list[TokenLogprob]]:
        """By row, the scores of prompts that end in this step; each is returned once."""
        done = [e.row for e in batch.extend_rows if e.samples and e.row in self._prompts]
        return {row: self._prompts.pop(row).scores for row in done}


def _read(
    prompt: _Prompt, extend: ExtendRow, hidden: Tensor, logits_of: Callable[[Tensor], Tensor]
) -> None:
    """Each token predicts the next one, which may be in the next chunk."""
    predicted = torch.tensor(prompt.token_ids[extend.start + 1 :][: len(hidden)])
    for first in range(0, len(predicted), _PROMPT_TOKENS):
        targets = predicted[first : first + _PROMPT_TOKENS]
        logits = logits_of(hidden[first : first + len(targets)])
        logprobs = torch.log_softmax(logits, -1)
        prompt.scores.extend(scored(logprobs, targets, [prompt.top] * len(targets)))


def scored(logprobs: Tensor, tokens: Tensor, top: list[int]) -> list[TokenLogprob]:
    """logprobs: [k, vocabulary]; tokens [k], and how many of the most probable to return: [k]."""
    own = logprobs.gather(1, tokens[:, None])
    ranks = (logprobs > own).sum(-1) + 1
    best = logprobs.topk(min(MAX_TOP_LOGPROBS, logprobs.shape[1]))
    best_ids, best_values = best.indices.tolist(), best.values.clamp(min=MIN_LOGPROB).tolist()
    values = own.squeeze(1).clamp(min=MIN_LOGPROB).tolist()
    return [
        TokenLogprob(token, value, rank, list(zip(ids, others, strict=True))[:count])
        for token, value, rank, ids, others, count in zip(
            tokens.tolist(), values, ranks.tolist(), best_ids, best_values, top, strict=True
        )
    ]
