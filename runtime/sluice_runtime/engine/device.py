"""Where batches run: in the loop's own thread, or in one beside it while the next is prepared.

Batches run in the order of their launch, one after another. Knows nothing of requests.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, Protocol

from sluice_runtime.scheduler.batch import Batch, SampledTokens

Landing = Callable[[], SampledTokens]
"""Returns when the batch has run, with its results, or raises what its run raised."""


class Forward(Protocol):
    """Whatever runs a batch."""

    def forward(self, batch: Batch) -> SampledTokens:
        """One token for each of the batch's sampling rows."""
        ...


class Device(Protocol):
    """Takes batches."""

    @property
    def ahead(self) -> int:
        """Batches that may be launched before the results of the one before them are in."""
        ...

    def launch(self, batch: Batch) -> Landing: ...


class Inline:
    """A batch runs when its results are asked for."""

    ahead: Final = 0

    def __init__(self, runner: Forward) -> None:
        self._runner = runner

    def launch(self, batch: Batch) -> Landing:
        return partial(self._runner.forward, batch)

    def close(self) -> None:
        """There is nothing to end."""


class Beside:
    """A batch runs at once in a thread of its own: torch lets go of the interpreter's lock."""

    ahead: Final = 1

    def __init__(self, runner: Forward) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, "forward")

    def launch(self, batch: Batch) -> Landing:
        return self._thread.submit(self._runner.forward, batch).result

    def close(self) -> None:
        """Takes no more batches; returns at once, also while one runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def device_of(runner: Forward, *, overlap: bool) -> Inline | Beside:
    """By the setting `overlap`. Whoever asked closes it."""
    return Beside(runner) if overlap else Inline(runner)
