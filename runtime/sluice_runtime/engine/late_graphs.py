"""Decides when an engine captures the CUDA graphs that its start left out.

While nothing runs, one is captured each second that brought no message. While requests run, only a
size that the next step lacks is captured, and captures take at most `BUSY_SHARE` of the time. Where
a latency is promised, none is captured while requests run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final, Protocol

from sluice_runtime.scheduler.batch import Batch, ForwardMode

BUSY_SHARE: Final = 0.02
"""Largest share of the time that captures take while requests run."""

logger = logging.getLogger("sluice.engine")


class GraphSource(Protocol):
    """The part of `engine.runner.Runner` that is used here."""

    @property
    def missing_graphs(self) -> Sequence[int]:
        """Batch sizes that are not captured yet, ascending."""
        ...

    def lacks_graph(self, rows: int) -> int | None:
        """The batch size for `rows` rows, if it is not captured yet and will be; otherwise
        None."""
        ...


class LateGraphs:
    """Plans captures between steps; each is a batch without rows that the executor runs."""

    def __init__(self, source: GraphSource, *, latency_promised: bool = False) -> None:
        self._source = source
        self._latency_promised = latency_promised
        self._busy_from_seconds = 0.0
        """Time from which running requests may wait for another capture."""

    def at_rest(self) -> Batch | None:
        """The capture to run while the engine is idle: of the largest size that is missing."""
        missing = self._source.missing_graphs
        return _capture_of(missing[-1]) if missing else None

    def before(self, batch: Batch, now_seconds: float) -> Batch | None:
        """The capture to run before a step, if the step would be padded for lack of it."""
        if self._latency_promised or batch.mode is not ForwardMode.DECODE:
            return None
        if now_seconds < self._busy_from_seconds or not self._source.missing_graphs:
            return None
        size = self._source.lacks_graph(len(batch.decode_rows))
        return None if size is None else _capture_of(size)

    def captured(self, capture: Batch, began_seconds: float, ended_seconds: float) -> None:
        """Records a capture that ran."""
        took = ended_seconds - began_seconds
        self._busy_from_seconds = ended_seconds + took / BUSY_SHARE
        left = len(self._source.missing_graphs)
        logger.info("CUDA graph of %s rows in %.2f s, %d to come", capture.graph_rows, took, left)


def _capture_of(rows: int) -> Batch:
    return Batch(0, ForwardMode.IDLE, graph_rows=rows)
