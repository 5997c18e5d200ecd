"""A trace through the engine's own loop, in this process and by the wall clock.

Unlike a replay on a virtual clock, this shows planning of one step while another runs. It has no
transport, API process or tokeniser; a request comes at its arrival time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing

from sluice_contract.config.engine import EngineConfig
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.engine.late_graphs import LateGraphs
from sluice_runtime.engine.loop import EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.model.files import resolve
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.wire.messages import Generate, Sampling, StepResult, ToApi, ToEngine
from sluice_simulator.record import Record
from sluice_simulator.report import Summary, summarise
from sluice_simulator.traces.request import TraceRequest
from sluice_simulator.traces.tokens import prompt_ids

SAMPLING = Sampling(temperature=0.6)


class Watched:
    """Link and executor of the loop: brings the requests, and records the result of each step.
    Times are seconds since this object was made."""

    def __init__(
        self, requests: Sequence[TraceRequest], vocabulary_size: int, executor: Executor
    ) -> None:
        self.record = Record(requests, sample_seconds=float("inf"))
        self.ahead = executor.ahead
        self._executor = executor
        self._coming = [
            Generate(
                str(index),
                [token % vocabulary_size for token in prompt_ids(request, index)],
                request.output_tokens,
                SAMPLING,
                ignore_eos=True,
                credit_tokens=request.output_tokens,
                arrival_seconds=request.arrival_seconds,
            )
            for index, request in enumerate(requests)
        ][::-1]
        self._launched: dict[int, tuple[Batch, float]] = {}
        self._ended = 0.0
        self._began = time.monotonic()

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """The requests that have arrived; see `engine.loop.Link`."""
        if timeout_seconds and self._coming:
            time.sleep(max(0.0, self._coming[-1].arrival_seconds - self._now()))
        arrived: list[ToEngine] = []
        while self._coming and self._coming[-1].arrival_seconds <= self._now():
            arrived.append(self._coming.pop())
        return arrived

    def launch(self, batch: Batch) -> PendingResult:
        """Notes the start of a step and launches it; see `engine.executor.Executor`."""
        self._launched[batch.step] = batch, self._now()
        return self._executor.launch(batch)

    def send(self, message: ToApi) -> None:
        """Records a finished step; see `engine.loop.Link`."""
        if not isinstance(message, StepResult):
            return
        batch, planned = self._launched.pop(message.step)
        ended = message.finished_seconds - self._began
        self.record.step(batch, message.deltas, planned, ended - max(planned, self._ended), ended)
        self._ended = ended

    def done(self) -> bool:
        """Whether every request has ended."""
        return not self.record.open_requests(len(self.record.timelines))

    def _now(self) -> float:
        return time.monotonic() - self._began


def run_in_loop(config: EngineConfig, requests: Sequence[TraceRequest]) -> Summary:
    """Figures of a trace on a new, warm engine, from the first arrival to the last token."""
    config = resolved(config)
    engine = build_engine(config, resolve(config.model.uri))
    warm_up(engine.runner, engine.settings, engine.model.spec.vocabulary_size)
    record = recorded(engine, requests, overlap=bool(config.overlap))
    return summarise(record, engine.scheduler.status())


def recorded(engine: Engine, requests: Sequence[TraceRequest], *, overlap: bool) -> Record:
    """The record of a trace on a warm engine, which may run others afterwards."""
    page_size = engine.settings.page_size
    with closing(engine.executor(overlap=overlap)) as executor:
        watched = Watched(requests, engine.model.spec.vocabulary_size, executor)
        loop = EngineLoop(
            watched,
            Pipeline(
                engine.grammars, engine.scheduler, watched, late_graphs=LateGraphs(engine.runner)
            ),
            lambda pace: StepLog(page_size, pace),
        )
        loop.run(watched.done)
    return watched.record
