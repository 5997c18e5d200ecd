"""Lowers the logits of tokens that a row has already: presence, frequency and repetition penalty.

Presence and frequency count the answer's tokens, as OpenAI defines them: a logit loses `presence`
once and `frequency` for each occurrence. Repetition looks at prompt and answer, as transformers
defines it: a positive logit is divided by it, another one multiplied; it comes first.
A row that uses any of them has a line of counts as long as the vocabulary; other rows have none.
Knows no request and no distribution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.messages import Sampling

_FIRST_LINES: Final = 4


class Penalties:
    """Counts and parameters of those of `rows` rows that are penalised."""

    def __init__(self, rows: int, vocabulary_size: int) -> None:
        self._vocabulary = vocabulary_size
        self._line_of_row = torch.full((rows,), -1)
        self._free_lines: list[int] = []
        self._held = 0
        self._counts = torch.zeros((0, vocabulary_size), dtype=torch.int32)
        """[lines, v]: how often each token is in the answer."""
        self._seen = torch.zeros((0, vocabulary_size), dtype=torch.bool)
        """[lines, v]: whether it is in prompt or answer."""
        self._parameters = torch.zeros((0, 3))
        """[lines, 3]: presence, frequency, repetition."""

    def add(
        self, row: int, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
    ) -> None:
        """`answer`: what was drawn for the request before it had this row."""
        line = self._take_line()
        self._held += 1
        self._line_of_row[row] = line
        self._parameters[line] = torch.tensor(
            (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty)
        )
        drawn = torch.tensor(answer, dtype=torch.int64)
        self._counts[line] = drawn.bincount(minlength=self._vocabulary)
        self._seen[line] = self._counts[line] > 0
        self._seen[line, torch.tensor(prompt, dtype=torch.int64)] = True

    def drop(self, row: int) -> None:
        """The row is not penalised from now on."""
        line = int(self._line_of_row[row])
        if line >= 0:
            self._line_of_row[row] = -1
            self._free_lines.append(line)
            self._held -= 1

    def apply(self, logits: Tensor, rows: Tensor) -> None:
        """logits: [m, v] of m rows, changed in place."""
        if not self._held:
            return
        at, lines = self._penalised(rows)
        if not len(at):
            return
        presence, frequency, repetition = self._parameters[lines].T[:, :, None]
        chosen, counts = logits[at], self._counts[lines]
        repeated = torch.where(chosen > 0, chosen / repetition, chosen * repetition)
        chosen = torch.where(self._seen[lines], repeated, chosen)
        logits[at] = chosen - frequency * counts - presence * (counts > 0)

    def count(self, rows: Tensor, tokens: Tensor) -> None:
        """Tokens that were drawn: [m]; a row without one stays as it is."""
        if not self._held:
            return
        at, lines = self._penalised(rows)
        drawn = tokens[at]
        real = drawn >= 0
        self._counts[lines[real], drawn[real]] += 1
        self._seen[lines[real], drawn[real]] = True

    def _penalised(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Which of `rows`, and their lines."""
        lines = self._line_of_row[rows]
        at = (lines >= 0).nonzero().squeeze(1)
        return at, lines[at]

    def _take_line(self) -> int:
        if not self._free_lines:
            lines = len(self._counts)
            more = lines or _FIRST_LINES
            self._counts = _longer(self._counts, more)
            self._seen = _longer(self._seen, more)
            self._parameters = _longer(self._parameters, more)
            self._free_lines = list(range(lines, lines + more))
        return self._free_lines.pop()


def _longer(lines: Tensor, more: int) -> Tensor:
    return torch.cat((lines, lines.new_zeros((more, *lines.shape[1:]))))
