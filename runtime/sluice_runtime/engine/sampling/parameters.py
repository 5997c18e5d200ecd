"""How each row samples: columns on the host, which knows them before a step runs.

Knows no distribution and no device.
"""

from __future__ import annotations

import numpy as np

from sluice_runtime.engine.sampling.columns import Whole
from sluice_runtime.engine.sampling.draw import RowParameters
from sluice_runtime.layers.draw import GREEDY_BELOW
from sluice_runtime.wire.messages import Sampling


class ParameterTable:
    """Of `rows` rows."""

    def __init__(self, rows: int) -> None:
        self._temperatures, self._top_ps, self._min_ps = np.zeros((3, rows))
        self._top_ks, self._seeds = np.zeros((2, rows), np.int64)

    def add(self, row: int, sampling: Sampling) -> None:
        """Real numbers are rounded to float32, in which they are used."""
        self._temperatures[row] = np.float32(sampling.temperature)
        self._top_ps[row] = np.float32(sampling.top_p)
        self._min_ps[row] = np.float32(sampling.min_p)
        self._top_ks[row] = sampling.top_k
        self._seeds[row] = sampling.seed

    def any_draws(self, rows: Whole) -> bool:
        """Whether any of them does not take its most probable token."""
        return bool((self._temperatures[rows] >= GREEDY_BELOW).any())

    def of(self, rows: Whole, positions: Whole) -> RowParameters:
        """[m] rows, and the positions of the tokens to be drawn."""
        return RowParameters(
            temperature=self._temperatures[rows],
            top_k=self._top_ks[rows],
            top_p=self._top_ps[rows],
            min_p=self._min_ps[rows],
            seed=self._seeds[rows],
            position=positions,
        )
