"""Lowers the logits of tokens that are already in a row: presence, frequency, repetition penalty.

Presence and frequency count the answer's tokens, as OpenAI defines them: a logit loses `presence`
once and `frequency` for each occurrence. Repetition looks at prompt and answer, as transformers
defines it: a positive logit is divided by it, another one multiplied; it comes first.
Every row has counts for the whole vocabulary, allocated at the start, so that no step runs out of
memory for them. Knows no request and no distribution.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sluice_runtime.kv.pool import zeros
from sluice_runtime.messages import Sampling


class Penalties:
    """Counts and parameters of `rows` rows, of which some are penalised."""

    def __init__(self, rows: int, vocabulary_size: int) -> None:
        self._vocabulary = vocabulary_size
        self._rows: set[int] = set()
        self._penalised = torch.zeros(rows, dtype=torch.bool)
        """[rows]: the same, as a mask."""
        self._counts = zeros((rows, vocabulary_size), torch.int32)
        """[rows, v]: how often each token is in the answer."""
        self._seen = zeros((rows, vocabulary_size), torch.bool)
        """[rows, v]: whether it is in prompt or answer."""
        self._parameters = torch.zeros((rows, 3))
        """[rows, 3]: presence, frequency, repetition."""

    def add(
        self, row: int, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        """`answer`: tokens sampled for the request before it was in this row."""
        self._parameters[row] = torch.tensor(
            (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
        )
        drawn = torch.tensor(answer, dtype=torch.int64)
        self._counts[row] = drawn.bincount(minlength=self._vocabulary)
        self._seen[row] = self._counts[row] > 0
        self._seen[row, torch.tensor(prompt, dtype=torch.int64)] = True
        self._rows.add(row)
        self._penalised[row] = True

    def drop(self, row: int) -> None:
        """The row is not penalised from now on."""
        if row in self._rows:
            self._rows.remove(row)
            self._penalised[row] = False

    def apply(self, logits: Tensor, rows: Tensor) -> None:
        """logits: [m, v] of m rows, changed in place."""
        at = self._where(rows)
        if not len(at):
            return
        penalised = rows[at]
        presence, frequency, repetition = self._parameters[penalised].T[:, :, None]
        chosen, counts = logits[at], self._counts[penalised]
        repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
        chosen = torch.where(self._seen[penalised], repeated, chosen)
        logits[at] = chosen - frequency * counts - presence * (counts > 0)

    def count(self, rows: Tensor, tokens: Tensor) -> None:
        """Counts sampled tokens [m]; a row without one is unchanged."""
        at = self._where(rows)
        drawn = tokens[at]
        at, drawn = at[drawn >= 0], drawn[drawn >= 0]
        self._counts[rows[at], drawn] += 1
        self._seen[rows[at], drawn] = True

    def _where(self, rows: Tensor) -> Tensor:
        """Which of `rows` are penalised: [k] indices."""
        if not self._rows:
            return rows[:0]
        return self._penalised[rows].nonzero().squeeze(1)
