"""A step is planned while the one before it runs; answers and ends are the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.engine.executors import OverlapExecutor, executor_for
from sluice_runtime.engine.loop import EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.scheduler.batch import Batch, ForwardMode, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import Abort, StepResult
from torch import Tensor

from tests.patience import PATIENCE_SECONDS
from tests.runtime.engine.test_loop import FakeLink, ask, turns
from tests.runtime.grammar.driving import engine_of, run
from tests.runtime.grammar.fake_compiler import no_grammars
from tests.runtime.harness import generate
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import FakeRunner, answer_to


class HeldRunner(FakeRunner):
    """Runs a batch once `may_run` is released."""

    def __init__(self) -> None:
        super().__init__(64, 4)
        self.may_run = threading.Semaphore(0)
        self.began: list[int] = []

    def forward(self, batch: Batch) -> SampledTokens:
        self.began.append(batch.step)
        assert self.may_run.acquire(timeout=PATIENCE_SECONDS)
        return super().forward(batch)


class FailingRunner:
    def forward(self, batch: Batch) -> SampledTokens:
        raise ArithmeticError("broken on purpose")


class RecordingScheduler(Scheduler):
    """Records how many steps were pending when each batch was planned."""

    def __init__(self) -> None:
        super().__init__(settings_of(prefix_cache=True), PageAllocator(64))
        self.ahead: list[int] = []
        self._out = 0

    def next_batch(self, now: float) -> Batch | None:
        batch = super().next_batch(now)
        if batch is not None:
            self.ahead.append(self._out)
            self._out += 1
        return batch

    def process(self, batch: Batch, result: SampledTokens, now: float):  # type: ignore[no-untyped-def]
        self._out -= 1
        return super().process(batch, result, now)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive(), thread.name


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def scheduler() -> RecordingScheduler:
    return RecordingScheduler()


@pytest.fixture
def loop(link: FakeLink, scheduler: RecordingScheduler) -> Iterator[EngineLoop]:
    with closing(executor_for(FakeRunner(64, 4), overlap=True)) as executor:
        yield EngineLoop(
            link, Pipeline(no_grammars(), scheduler, executor), lambda pace: StepLog(4, pace)
        )
    assert scheduler.status().pages_available == 64


def test_a_batch_runs_at_once_and_one_after_the_other() -> None:
    runner = HeldRunner()
    with closing(OverlapExecutor(runner)) as executor:
        results = [executor.launch(Batch(step, ForwardMode.IDLE)) for step in (1, 2)]
        runner.may_run.release(2)
        assert [result().step for result in results] == [1, 2]
    assert runner.began == [1, 2]


@pytest.mark.parametrize("overlap", [False, True])
def test_an_exception_of_a_step_is_raised_when_its_result_is_requested(overlap: bool) -> None:
    with closing(executor_for(FailingRunner(), overlap=overlap)) as executor:
        result = executor.launch(Batch(1, ForwardMode.IDLE))
        with pytest.raises(ArithmeticError):
            result()


def test_steps_are_planned_ahead_and_answers_are_the_same(
    link: FakeLink, loop: EngineLoop, scheduler: RecordingScheduler
) -> None:
    link.coming.append([ask("a", 50, 9), ask("b", 7, 12), ask("c", 3, 1)])
    turns(loop, 40)
    for name, prompt, answer in (("a", 50, 9), ("b", 7, 12), ("c", 3, 1)):
        assert link.answer(name) == answer_to(range(prompt), answer)
        assert link.ends(name) == [("length", None)]
    assert max(scheduler.ahead) == 1
    assert scheduler.ahead.count(1) > 8
    steps = [m.step for m in link.sent if isinstance(m, StepResult)]
    assert steps == sorted(steps)


def test_the_extra_token_after_a_stop_token_is_not_sent(link: FakeLink, loop: EngineLoop) -> None:
    wanted = answer_to(range(5), 4)
    stopping = ask("a", 5, 20)
    stopping.stop_token_ids.append(wanted[3])
    link.coming.append([stopping])
    turns(loop, 20)
    assert link.answer("a") == wanted
    assert link.ends("a") == [("stop", None)]


def test_an_abort_while_a_step_runs_ends_the_request_once(link: FakeLink, loop: EngineLoop) -> None:
    link.coming.append([ask("a", 5, 200), ask("b", 9, 10)])
    link.coming.append([])
    link.coming.append([])
    link.coming.append([Abort("a"), Abort("a")])
    turns(loop, 30)
    assert link.ends("a") == [("abort", None)]
    assert link.answer("b") == answer_to(range(9), 10)


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlapped"])
@pytest.mark.parametrize("fields", [{}, {"logprobs": 2}], ids=["plain", "scored"])
def test_a_row_without_a_token_does_not_affect_other_rows(
    overlap: bool, fields: dict[str, int]
) -> None:
    """Its logits are not finite; when that is known, the next step is launched already."""

    def spoil(batch: Batch, logits: Tensor) -> None:
        if batch.step == 4:
            logits[0] = torch.nan

    hooks = EngineHooks(on_logits=spoil)
    requests = [generate(f"r{i}", [5, 6, 7, i], 12, credit_tokens=64, **fields) for i in range(3)]
    with engine_of(hooks) as engine:
        ends = run(engine, requests, overlap=overlap).ends
    assert [ends[f"r{i}"].finish_reason for i in range(3)] == ["error", "length", "length"]
    assert "not finite" in (ends["r0"].error or "")
