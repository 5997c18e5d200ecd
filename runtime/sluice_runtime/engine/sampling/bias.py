"""Changes of single logits of a row: its logit_bias, and -inf for tokens it may not end with
yet.

All rows' edits lie in flat columns on the host, which picks those of a step and sends them: a step
costs the same however many rows have some; a step of rows without any costs nothing. Knows neither
requests nor distributions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.sampling.columns import Real, Whole, sent

_ALWAYS: Final = 2**62


@dataclass(frozen=True)
class _Edits:
    """Columns of n edits, [n] each."""

    row: Whole
    token: Whole
    value: Real
    until: Whole
    """Position of the first token for which it does not hold."""


class LogitBias:
    """The edits of `rows` rows."""

    def __init__(self, rows: int, device: Device) -> None:
        self._device = device
        self._of_row: dict[int, list[_Edits]] = {}
        self._all: _Edits | None = None
        self._outdated = False
        """Whether rows were added or dropped since `_all` was joined."""
        self._index = np.full(rows, -1)
        """Scratch: where each row is in the step's batch."""

    def add(self, row: int, biases: Sequence[tuple[int, float]]) -> None:
        """Adds to logits of `row`, for every token that will be drawn."""
        if biases:
            tokens, values = zip(*biases, strict=True)
            self._keep(row, tokens, np.array(values, np.float64), _ALWAYS)

    def forbid(self, row: int, tokens: Sequence[int], until: int) -> None:
        """`tokens` are not sampled before position `until`."""
        if tokens:
            self._keep(row, tokens, np.full(len(tokens), -np.inf), until)

    def drop(self, row: int) -> None:
        """Removes the row's edits."""
        if self._of_row.pop(row, None):
            self._outdated = True

    def apply(self, logits: Tensor, rows: Whole, positions: Whole) -> None:
        """logits: [m, v], changed in place; rows, and positions of the tokens to be drawn: [m], on
        the host."""
        if self._outdated:
            self._join()
        if self._all is None:
            return
        self._index[rows] = np.arange(len(rows))
        at = self._index[self._all.row]
        self._index[rows] = -1
        held = (at >= 0) & (positions[at] < self._all.until)
        if not held.any():
            return
        columns = at[held] * logits.shape[1] + self._all.token[held], self._all.value[held]
        places, values = sent(self._device, columns)
        logits.view(-1).scatter_add_(0, places, values.float())

    def _keep(self, row: int, tokens: Sequence[int], values: Real, until: int) -> None:
        count = len(tokens)
        columns = np.full(count, row), np.array(tokens, np.int64), values, np.full(count, until)
        self._of_row.setdefault(row, []).append(_Edits(*columns))
        self._outdated = True

    def _join(self) -> None:
        parts = [edits for held in self._of_row.values() for edits in held]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(_Edits))
        self._all = _Edits(*map(np.concatenate, columns)) if parts else None
        self._outdated = False
