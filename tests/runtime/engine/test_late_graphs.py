"""CUDA graphs that the start left out are captured when that holds up nobody for long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from sluice_contract.config.accelerators import TIERS
from sluice_runtime.engine.executors import PendingResult
from sluice_runtime.engine.graphs import batch_for, first_batches, graph_batches
from sluice_runtime.engine.late_graphs import LateGraphs
from sluice_runtime.engine.loop import Clock, EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.scheduler.batch import Batch, ForwardMode, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import Generate, Heartbeat, Sampling

from tests.runtime.engine.test_loop import FakeLink
from tests.runtime.grammar.fake_compiler import no_grammars
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import FakeRunner

SIZES = graph_batches(40)


@dataclass
class Source:
    """A runner's graphs."""

    captured: set[int] = field(default_factory=lambda: set(first_batches(SIZES)))

    @property
    def missing_graphs(self) -> Sequence[int]:
        return [size for size in SIZES if size not in self.captured]

    def lacks_graph(self, rows: int) -> int | None:
        size = batch_for(rows, SIZES)
        return None if size in self.captured else size


def decode(rows: int) -> Batch:
    return Batch(1, ForwardMode.DECODE, decode_rows=tuple(range(rows)))


def test_first_graphs_pad_a_step_to_at_most_twice_its_rows() -> None:
    assert (SIZES, first_batches(SIZES)) == (
        (1, 2, 4, 8, 12, 16, 24, 32, 40),
        (1, 2, 4, 8, 16, 32, 40),
    )
    assert first_batches(graph_batches(0)) == ()
    for largest in {tier.wide.cuda_graph_max_batch for tier in TIERS} | {100, 300}:
        first = first_batches(graph_batches(largest))
        padded = [batch_for(rows, first) for rows in range(1, largest + 1)]
        assert all(size and size < 2 * rows for rows, size in enumerate(padded, 1))


def test_at_rest_the_largest_comes_first() -> None:
    source = Source()
    late = LateGraphs(source, latency_promised=True)
    for size in (24, 12):
        capture = late.at_rest()
        assert capture == Batch(0, ForwardMode.IDLE, graph_rows=size)
        source.captured.add(size)
        late.captured(capture, 0.0, 5.0)
    assert late.at_rest() is None


def test_a_step_waits_only_for_the_size_that_it_lacks() -> None:
    late = LateGraphs(Source())
    assert [late.before(decode(rows), 0.0) for rows in (8, 13, 25, 40, 41)] == [None] * 5
    prompts = Batch(1, ForwardMode.MIXED, decode_rows=tuple(range(9)))
    assert late.before(prompts, 0.0) is None
    lacking = late.before(decode(9), 0.0)
    assert lacking is not None
    assert lacking.graph_rows == 12


def test_captures_take_a_small_share_of_the_time_of_running_requests() -> None:
    late = LateGraphs(Source())
    late.captured(decode(0), 10.0, 10.2)
    assert late.before(decode(9), 20.1) is None
    assert late.before(decode(9), 20.2) is not None


def test_no_step_waits_where_a_latency_is_promised() -> None:
    assert LateGraphs(Source(), latency_promised=True).before(decode(9), 100.0) is None


@dataclass
class Ahead:
    """An executor that may have a step in flight; notes what is launched and what has landed."""

    source: Source
    ahead: int
    now: list[float]
    """The time, which captures take a second of."""
    runner: FakeRunner = field(default_factory=lambda: FakeRunner(2048, 16))
    notes: list[str] = field(default_factory=list)

    def launch(self, batch: Batch) -> PendingResult:
        self.notes.append("capture" if batch.graph_rows else "launch")
        if batch.graph_rows:
            self.source.captured.add(batch.graph_rows)
            self.now[0] += 1.0
            return lambda: SampledTokens(batch.step)
        result = self.runner.forward(batch)

        def land() -> SampledTokens:
            self.notes.append("land")
            return result

        return land


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_capture_counts_in_no_step(ahead: int) -> None:
    """Steps in flight land before it, so their time is their own."""
    link, source, now = FakeLink(), Source(), [0.0]
    executor = Ahead(source, ahead, now)
    settings = settings_of(pool_tokens=32_768, page_size=16, chunk_size=64)
    loop = EngineLoop(
        link,
        Pipeline(
            no_grammars(),
            Scheduler(settings, PageAllocator(2048)),
            executor,
            late_graphs=LateGraphs(source),
        ),
        lambda pace: StepLog(16, pace),
        Clock(monotonic=lambda: now[0], unix=lambda: 1.7e9),
    )
    loop.step()
    assert executor.notes == [], "a message may come soon"
    now[0] = 1.0
    loop.step()
    assert isinstance(link.sent[-1], Heartbeat)
    assert (executor.notes, source.missing_graphs) == (["capture"], [12])
    executor.notes.clear()
    now[0] = 100.0
    link.coming.append([Generate(f"r{n}", [n], 4, Sampling()) for n in range(9)])
    while not executor.notes or executor.notes.count("land") < 2:
        loop.step()
    assert executor.notes[:4] == ["launch", "land", "capture", "launch"]
    assert source.missing_graphs == []
    steps = link.steps
    assert steps
    assert {(step.step_seconds, step.scheduler_seconds) for step in steps} == {(0.0, 0.0)}
