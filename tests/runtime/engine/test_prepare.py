"""At its start an engine captures as many graphs as it can use, or says why none."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain

import pytest
from sluice_runtime.engine.build import Engine, build_engine
from sluice_runtime.engine.prepare import capture_graphs
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.errors import OutOfMemoryError
from sluice_runtime.model.files import resolve
from sluice_runtime.scheduler.batch import Batch, ForwardMode

from tests.runtime.harness import engine_config
from tests.runtime.layers.flashinfer_backend import engines_on_flashinfer
from tests.runtime.recorded_graph import capture


def full(_: Callable[[], None]) -> Callable[[], None]:
    raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")


def built(rows: int = 6) -> Engine:
    settings = {"attention_backend": "torch", "max_running_requests": rows, "dtype": "float32"}
    config = resolved(engine_config("dummy://qwen3-tiny", **settings))
    return build_engine(config, resolve(config.model.uri))


@pytest.fixture
def rows() -> int:
    return 6


@pytest.fixture
def on_flashinfer(monkeypatch: pytest.MonkeyPatch, rows: int) -> Iterator[Engine]:
    engines_on_flashinfer(monkeypatch)
    engine = built(rows)
    with closing(engine.grammar_compiler):
        yield engine


def test_graphs_go_no_further_than_rows(
    on_flashinfer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    times = iter((0.0, 3.5, 4.0, 4.5, 5.0, 5.25, 6.0, 6.125))
    capture_graphs(on_flashinfer, 256, lambda: capture, lambda: next(times))
    assert on_flashinfer.runner._graphs is not None
    assert caplog.messages == [
        "CUDA graphs: 4 decode batches of up to 6 rows; "
        "seconds by rows: 6: 3.50, 4: 0.50, 2: 0.25, 1: 0.12"
    ]


@pytest.mark.parametrize("rows", [24])
def test_sizes_between_powers_of_two_are_captured_between_steps(
    on_flashinfer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    capture_graphs(on_flashinfer, 256, lambda: capture)
    (message,) = caplog.messages
    assert message.startswith(
        "CUDA graphs: 6 decode batches of up to 24 rows, 1 more between steps; seconds by rows: 24:"
    )
    runner = on_flashinfer.runner
    assert (runner.missing_graphs, runner.lacks_graph(9)) == ((12,), 12)
    assert [runner.lacks_graph(rows) for rows in (1, 8, 13, 24, 25)] == [None] * 5
    batch = Batch(0, ForwardMode.IDLE, graph_rows=12)
    with closing(on_flashinfer.executor(overlap=False)) as executor:
        executor.launch(batch)()
    assert (runner.missing_graphs, runner.lacks_graph(9)) == ((), None)


@pytest.mark.parametrize("rows", [24])
def test_without_memory_for_another_graph_steps_keep_those_that_there_are(
    on_flashinfer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    captures = chain([capture] * 12, [full])
    capture_graphs(on_flashinfer, 256, lambda: lambda step: next(captures)(step))
    on_flashinfer.runner.forward(Batch(0, ForwardMode.IDLE, graph_rows=12))
    assert caplog.messages[-1].startswith("CUDA graphs: no more, CUDA graphs")
    assert "lower cudaGraphMaxBatch" in caplog.messages[-1]
    assert (on_flashinfer.runner.missing_graphs, on_flashinfer.runner.lacks_graph(9)) == ((), None)


def test_a_draft_head_has_no_graphs(
    on_flashinfer: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    monkeypatch.setattr(on_flashinfer.runner, "_head", object())
    capture_graphs(on_flashinfer, 256, lambda: capture)
    assert on_flashinfer.runner.graph_steps is None
    assert caplog.messages == ["CUDA graphs: none, as the steps of a draft head cannot be captured"]


def test_a_closed_runner_leaves_no_graph_behind(on_flashinfer: Engine) -> None:
    """NCCL waits for graphs when ranks part, so there must be none."""
    made: list[weakref.ref[object]] = []

    def recorded(step: Callable[[], None]) -> Callable[[], None]:
        replay = capture(step)
        made.append(weakref.ref(replay))
        return replay

    capture_graphs(on_flashinfer, 6, lambda: recorded)
    assert [graph for graph in made if graph()] == made
    on_flashinfer.runner.close()
    assert [graph for graph in made if graph()] == []


def test_what_cannot_be_captured_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.engine")
    engine = built()
    with closing(engine.grammar_compiler):
        caplog.clear()
        capture_graphs(engine, 0)
        assert caplog.messages == []
        capture_graphs(engine, 256)
    assert engine.runner._graphs is None
    assert caplog.messages == ["CUDA graphs: none, as torch cannot be captured"]


def test_too_little_memory_names_the_setting_to_lower(on_flashinfer: Engine) -> None:
    with pytest.raises(OutOfMemoryError, match=r"4 decode batches.*lower cudaGraphMaxBatch"):
        capture_graphs(on_flashinfer, 6, lambda: full)
