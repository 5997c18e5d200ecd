"""Heartbeats are sent during a long step, and not during one that hangs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from sluice_runtime.engine.executor import Executor, StreamExecutor, SyncExecutor
from sluice_runtime.engine.heartbeat import STEP_LIMIT_SECONDS, HeartbeatThread
from sluice_runtime.engine.log import StepLog
from sluice_runtime.engine.loop import Clock, EngineLoop
from sluice_runtime.engine.runner import LaunchedStep
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.pages import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import (
    Generate,
    Heartbeat,
    Load,
    Sampling,
    StepResult,
    ToApi,
    ToEngine,
)

from tests.patience import PATIENCE_SECONDS
from tests.runtime.grammar.fake_compiler import no_grammars
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import FakeRunner

LOAD = Load(1.0, 3, 40, 2, 8, 5, 0, 0.0, 0.7, 0, 0, {})


class ManualClock:
    """A clock that moves only when a test sets it."""

    def __init__(self) -> None:
        self.now_seconds = 100.0

    def monotonic(self) -> float:
        return self.now_seconds


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def sent() -> list[Heartbeat]:
    return []


@pytest.fixture
def heartbeat(clock: ManualClock, sent: list[Heartbeat]) -> HeartbeatThread:
    return HeartbeatThread(sent.append, clock.monotonic, every_seconds=1.0)


@pytest.mark.parametrize(
    ("age_seconds", "beats"),
    [(0.0, 0), (0.9, 0), (1.0, 1), (STEP_LIMIT_SECONDS - 1, 1), (STEP_LIMIT_SECONDS, 0)],
)
def test_heartbeats_are_sent_once_a_step_is_long_and_until_it_counts_as_hung(
    heartbeat: HeartbeatThread,
    clock: ManualClock,
    sent: list[Heartbeat],
    age_seconds: float,
    beats: int,
) -> None:
    with heartbeat.step(LOAD, clock.now_seconds):
        clock.now_seconds += age_seconds
        heartbeat.beat()
    assert sent == [Heartbeat(LOAD)] * beats


def test_nothing_is_sent_between_steps_even_after_one_that_failed(
    heartbeat: HeartbeatThread, clock: ManualClock, sent: list[Heartbeat]
) -> None:
    heartbeat.beat()
    with pytest.raises(RuntimeError), heartbeat.step(LOAD, clock.now_seconds):
        raise RuntimeError("the device is gone")
    clock.now_seconds += 5
    heartbeat.beat()
    assert sent == []


def test_a_step_ends_only_after_a_heartbeat_in_progress_was_sent(clock: ManualClock) -> None:
    """The engine's thread waits while the other one is inside `send`."""
    sending, ended, may_go_on = threading.Event(), threading.Event(), threading.Event()

    def send(_: Heartbeat) -> None:
        sending.set()
        assert may_go_on.wait(PATIENCE_SECONDS)
        assert not ended.is_set(), "the step ended while the socket was in use"

    heartbeat = HeartbeatThread(send, clock.monotonic, every_seconds=1.0)
    beat = threading.Thread(target=heartbeat.beat)
    with heartbeat.step(LOAD, clock.now_seconds - 2):
        beat.start()
        assert sending.wait(PATIENCE_SECONDS)
        threading.Timer(0.05, may_go_on.set).start()
    ended.set()
    beat.join()


class SlowRunner(FakeRunner):
    """Computes until three heartbeats have been sent."""

    def __init__(self, link: RecordingLink) -> None:
        super().__init__(64, 4)
        self._link = link

    def forward(self, batch: Batch) -> SampledTokens:
        assert self._link.three.wait(PATIENCE_SECONDS), "no heartbeat came while a step computed"
        return super().forward(batch)


class RecordingLink:
    """One request comes; `three` is set with the third heartbeat."""

    def __init__(self) -> None:
        self.three = threading.Event()
        self.sent: list[ToApi] = []
        self.senders: list[str] = []
        self._coming: Iterator[list[ToEngine]] = iter([[Generate("a", [1, 2], 1, Sampling())]])

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        return next(self._coming, [])

    def send(self, message: ToApi) -> None:
        self.sent.append(message)
        self.senders.append(threading.current_thread().name)
        if len(self.sent) == 3:
            self.three.set()


class SlowLauncher(SlowRunner):
    """Launching a step is what takes so long."""

    def launch(self, batch: Batch) -> LaunchedStep:
        drawn = self.forward(batch)
        return LaunchedStep(lambda: drawn)


EXECUTORS: dict[str, Callable[[RecordingLink], Executor]] = {
    "computing": lambda link: SyncExecutor(SlowRunner(link)),
    "launching": lambda link: StreamExecutor(SlowLauncher(link), ahead=1),
}


@pytest.mark.parametrize("made", EXECUTORS.values(), ids=EXECUTORS)
def test_the_loop_sends_heartbeats_while_its_runner_works_and_leaves_no_thread(
    made: Callable[[RecordingLink], Executor],
) -> None:
    link = RecordingLink()
    scheduler = Scheduler(settings_of(), PageAllocator(64))
    loop = EngineLoop(
        link,
        scheduler,
        made(link),
        no_grammars(),
        lambda pace: StepLog(4, pace),
        Clock(heartbeat_seconds=0.005),
    )
    loop.run(lambda: any(isinstance(message, StepResult) for message in link.sent))
    *beats, result = link.sent
    assert all(isinstance(message, Heartbeat) for message in beats)
    assert isinstance(result, StepResult)
    assert set(link.senders[:-1]) == {"heartbeat"} != {link.senders[-1]}
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
