"""Parameters of a step's rows as tests write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.draw import RowParameters, SamplingRows, sampling_rows

Values = float | Sequence[float]


def parameters_of(
    count: int,
    *,
    temperature: Values = 1.0,
    top_k: int | Sequence[int] = -1,
    top_p: Values = 1.0,
    min_p: Values = 0.0,
    seed: int | Sequence[int] = 5,
    position: Sequence[int] | None = None,
) -> RowParameters:
    """Of `count` rows; a single value is that of all. Positions count from 0."""

    def reals(values: Values) -> Any:
        return np.broadcast_to(np.array(values, np.float32), count).astype(np.float64)

    def whole(values: int | Sequence[int]) -> Any:
        return np.broadcast_to(np.array(values, np.int64), count).copy()

    return RowParameters(
        temperature=reals(temperature),
        top_k=whole(top_k),
        top_p=reals(top_p),
        min_p=reals(min_p),
        seed=whole(seed),
        position=np.arange(count) if position is None else whole(position),
    )


def rows_of(count: int, vocabulary: int, **parameters: Any) -> SamplingRows:
    """The same for `sample`, on the host."""
    return sampling_rows(parameters_of(count, **parameters), vocabulary, HostDevice())
