"""Credit bounds the tokens sent and withheld; none is lost or reordered. Heartbeats are sent during
a long step, and not during one that hangs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.wire.load import EngineFigures
from sluice_runtime.engine.executors import Executor, StreamExecutor, SyncExecutor
from sluice_runtime.engine.loop import Clock, EngineLoop, Pipeline
from sluice_runtime.engine.outbox import (
    STEP_LIMIT_SECONDS,
    HeartbeatThread,
    Outbox,
    step_limit_seconds,
)
from sluice_runtime.engine.report import StepLog
from sluice_runtime.engine.runner import LaunchedStep
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import (
    Generate,
    Heartbeat,
    Load,
    PlainTokens,
    Sampling,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
)

from tests.patience import PATIENCE_SECONDS
from tests.runtime.grammar.fake_compiler import no_grammars
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import FakeRunner


def delta(*tokens: int, reason: str | None = None) -> TokenDelta:
    return TokenDelta("a", tokens, reason)  # type: ignore[arg-type]


def test_plain_tokens_are_sent_together_but_those_of_requests_without_credit() -> None:
    outbox = Outbox()
    for name, credit in (("a", 2), ("b", 1), ("c", 9)):
        outbox.open(name, credit)
    step = PlainTokens(["a", "b", "c", "unknown"], [1, 2, 3, 4])
    assert outbox.charge(step) == (step, [])
    sent, late = outbox.charge(step)
    assert sent == PlainTokens(["a", "c", "unknown"], [1, 3, 4])
    assert late == [TokenDelta("b", (2,))]
    assert outbox.pass_on(late[0]) is None
    assert outbox.grant("b", 1) == TokenDelta("b", (2,))


def test_tokens_are_withheld_once_credit_is_spent_and_sent_with_the_next_grant() -> None:
    outbox = Outbox()
    outbox.open("a", 2)
    assert outbox.pass_on(delta(1)) == delta(1)
    assert outbox.pass_on(delta(2)) == delta(2)
    assert outbox.pass_on(delta(3)) is None
    assert outbox.pass_on(delta(4)) is None
    assert outbox.grant("a", 1) == delta(3)
    assert outbox.grant("a", 5) == delta(4)
    assert outbox.grant("a", 5) is None
    assert outbox.pass_on(delta(5)) == delta(5)


def test_released_tokens_use_up_credit() -> None:
    outbox = Outbox()
    outbox.open("a", 0)
    outbox.pass_on(delta(1))
    outbox.pass_on(delta(2))
    assert outbox.grant("a", 1) == delta(1)
    assert outbox.pass_on(delta(3)) is None
    assert outbox.grant("a", 1) == delta(2)


def test_the_last_delta_carries_all_withheld_tokens() -> None:
    outbox = Outbox()
    outbox.open("a", 1)
    outbox.pass_on(delta(1))
    outbox.pass_on(delta(2))
    assert outbox.pass_on(delta(3, reason="length")) == delta(2, 3, reason="length")
    assert outbox.grant("a", 5) is None


def test_a_reader_is_too_slow_beyond_the_bound() -> None:
    outbox = Outbox(max_withheld_tokens=2)
    outbox.open("a", 0)
    for token in (1, 2):
        outbox.pass_on(delta(token))
        assert not outbox.overdrawn("a")
    outbox.pass_on(delta(3))
    assert outbox.overdrawn("a")


def test_4096_tokens_may_be_withheld() -> None:
    outbox = Outbox()
    outbox.open("a", 0)
    outbox.pass_on(delta(*range(4096)))
    assert not outbox.overdrawn("a")
    outbox.pass_on(delta(0))
    assert outbox.overdrawn("a")


def test_a_request_without_an_account_passes() -> None:
    refused = delta(reason="error")
    assert Outbox().pass_on(refused) == refused


@given(
    credit=st.integers(0, 5),
    steps=st.lists(st.one_of(st.none(), st.integers(1, 4)), max_size=30),
)
def test_every_token_arrives_once_and_in_order(credit: int, steps: list[int | None]) -> None:
    """None: one more token is generated; a number: so much credit is granted."""
    outbox, made, granted = Outbox(), 0, credit
    got: list[int] = []
    outbox.open("a", credit)
    for step in steps:
        if step is None:
            made += 1
            sent = outbox.pass_on(delta(made))
        else:
            granted += step
            sent = outbox.grant("a", step)
        got += sent.token_ids if sent else ()
        assert len(got) <= granted
    last = outbox.pass_on(delta(made + 1, reason="stop"))
    assert last
    assert [*got, *last.token_ids] == list(range(1, made + 2))


LOAD = Load(
    time_seconds=1.0,
    figures=EngineFigures(),
    new_token_ratio=0.7,
    retractions=0,
    chunk_cuts=0,
    steps={},
)


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
    return HeartbeatThread(sent.append, clock.monotonic, 1.0, STEP_LIMIT_SECONDS)


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


def test_on_a_gpu_a_step_counts_as_hung_after_a_minute() -> None:
    assert step_limit_seconds(None) == step_limit_seconds(Accelerator(count=0)) == 600.0
    assert step_limit_seconds(Accelerator(product="NVIDIA-H100-80GB-HBM3")) == 60.0


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

    heartbeat = HeartbeatThread(send, clock.monotonic, 1.0, STEP_LIMIT_SECONDS)
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
        Pipeline(no_grammars(), scheduler, made(link)),
        lambda pace: StepLog(4, pace),
        Clock(heartbeat_seconds=0.005),
    )
    loop.run(lambda: any(isinstance(message, StepResult) for message in link.sent))
    *beats, result = link.sent
    assert all(isinstance(message, Heartbeat) for message in beats)
    assert isinstance(result, StepResult)
    assert set(link.senders[:-1]) == {"heartbeat"} != {link.senders[-1]}
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}
