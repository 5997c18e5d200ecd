"""Executors run steps: in the loop's thread, in a second thread, or on a device that computes
asynchronously."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from sluice_runtime.scheduler.batch import Batch, SampledTokens

if TYPE_CHECKING:
    pass

PendingResult = Callable[[], SampledTokens]
"""Function that waits for a step and returns its results, or raises what the step raised."""


class StepRunner(Protocol):
    """The part of `engine.runner.Runner` that executors use."""

    def forward(self, batch: Batch) -> SampledTokens:
        """One token for each of the batch's sampling rows."""
        ...


class LandingStep(Protocol):
    """The part of `engine.runner.LaunchedStep` that is used here."""

    def land(self) -> SampledTokens: ...


class StepLauncher(StepRunner, Protocol):
    """A runner that can launch a step without waiting for it."""

    def launch(self, batch: Batch) -> LandingStep: ...


class AnnouncingRunner:
    """A runner that announces each batch to the other ranks before it launches."""

    def __init__(self, runner: StepLauncher, announce: Callable[[Batch], None]) -> None:
        self._runner = runner
        self._announce = announce

    def forward(self, batch: Batch) -> SampledTokens:
        """See `StepRunner`."""
        return self.launch(batch).land()

    def launch(self, batch: Batch) -> LandingStep:
        """See `StepLauncher`."""
        self._announce(batch)
        return self._runner.launch(batch)


class Executor(Protocol):
    """Runs batches."""

    @property
    def ahead(self) -> int:
        """Maximum batches that may be launched before the results of an earlier one are known."""
        ...

    def launch(self, batch: Batch) -> PendingResult: ...


class SyncExecutor:
    """Runs a batch when its result is requested."""

    ahead: Final = 0

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner

    def launch(self, batch: Batch) -> PendingResult:
        return partial(self._runner.forward, batch)

    def close(self) -> None:
        """Does nothing: no thread was started."""


class OverlapExecutor:
    """Runs a batch at once in its own thread; torch releases the GIL while it computes."""

    ahead: Final = 1

    def __init__(self, runner: StepRunner) -> None:
        self._runner = runner
        self._thread = ThreadPoolExecutor(1, "forward")

    def launch(self, batch: Batch) -> PendingResult:
        return self._thread.submit(self._runner.forward, batch).result

    def close(self) -> None:
        """Stops taking batches. Returns at once, even while one runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class StreamExecutor:
    """Launches a batch on the device at once, in the loop's thread."""

    def __init__(self, runner: StepLauncher, *, ahead: int) -> None:
        self.ahead = ahead
        self._runner = runner

    def launch(self, batch: Batch) -> PendingResult:
        return self._runner.launch(batch).land

    def close(self) -> None:
        """Does nothing: launched steps end by themselves."""


def executor_for(runner: StepRunner, *, overlap: bool) -> SyncExecutor | OverlapExecutor:
    """The executor that the setting `overlap` selects on a CPU. The caller closes it."""
    return OverlapExecutor(runner) if overlap else SyncExecutor(runner)
