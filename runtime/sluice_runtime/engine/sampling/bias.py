"""Changes of single logits of a row: its logit_bias, and -inf for tokens it may not end with
yet.

All rows' edits lie in flat columns, so a step costs the same however many rows have some; a step of
rows without any costs nothing. Knows neither requests nor distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

_ALWAYS: Final = 2**62


@dataclass(frozen=True)
class _Edits:
    """Columns of n edits, [n] each."""

    row: Tensor
    token: Tensor
    value: Tensor
    until: Tensor
    """Position of the first token for which it does not hold."""


class LogitBias:
    """The edits of `rows` rows."""

    def __init__(self, rows: int) -> None:
        self._of_row: dict[int, list[_Edits]] = {}
        self._all: _Edits | None = None
        self._outdated = False
        """Whether rows were added or dropped since `_all` was joined."""
        self._index = torch.full((rows,), -1)
        """Scratch: where each row is in the step's batch."""

    def add(self, row: int, biases: Sequence[tuple[int, float]]) -> None:
        """Adds to logits of `row`, for every token that will be drawn."""
        if biases:
            tokens, values = zip(*biases, strict=True)
            self._keep(row, tokens, torch.tensor(values), _ALWAYS)

    def forbid(self, row: int, tokens: Sequence[int], until: int) -> None:
        """`tokens` are not sampled before position `until`."""
        if tokens:
            self._keep(row, tokens, torch.full((len(tokens),), float("-inf")), until)

    def drop(self, row: int) -> None:
        """Removes the row's edits."""
        if self._of_row.pop(row, None):
            self._outdated = True

    def apply(self, logits: Tensor, rows: Tensor, positions: Tensor) -> None:
        """logits: [m, v], changed in place; `positions`: [m], of the tokens to be drawn."""
        if self._outdated:
            self._join()
        if self._all is None:
            return
        self._index[rows] = torch.arange(len(rows))
        at = self._index[self._all.row]
        self._index[rows] = -1
        held = (at >= 0) & (positions[at] < self._all.until)
        places = at[held] * logits.shape[1] + self._all.token[held]
        logits.view(-1).scatter_add_(0, places, self._all.value[held])

    def _keep(self, row: int, tokens: Sequence[int], values: Tensor, until: int) -> None:
        count = len(tokens)
        columns = (torch.full((count,), row), torch.tensor(tokens), values)
        self._of_row.setdefault(row, []).append(_Edits(*columns, torch.full((count,), until)))
        self._outdated = True

    def _join(self) -> None:
        parts = [edits for held in self._of_row.values() for edits in held]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(_Edits))
        self._all = _Edits(*map(torch.cat, columns)) if parts else None
        self._outdated = False
