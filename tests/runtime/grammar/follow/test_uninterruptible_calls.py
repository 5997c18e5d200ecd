"""Calls in threads that can be abandoned."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import sleep

import pytest
from sluice_runtime.grammar.follow.uninterruptible_calls import (
    MAX_ABANDONED,
    AbandonedCall,
    AbandonReason,
    UninterruptibleCalls,
)

LONG_SECONDS = 60.0
_MUCH = bytes(1 << 20)


def make(
    runner: UninterruptibleCalls,
    calls: Sequence[Callable[[], None]],
    max_seconds: float = LONG_SECONDS,
    kinds: Sequence[int] = (),
) -> list[AbandonedCall]:
    return runner.make(calls, [max_seconds] * len(calls), kinds or list(range(len(calls))))


class Time:
    """What the calls say that they have used, and how long they say that they have lasted: no
    verdict depends on when the machine lets a thread run."""

    def __init__(self) -> None:
        self.used = 0.0
        """Processor seconds of whichever thread makes the calls."""
        self.seconds = 0.0

    def runner(self) -> UninterruptibleCalls:
        return UninterruptibleCalls(lambda clock: self.used, lambda: self.seconds)


class Endless:
    """A call that goes on until it is told to end; `begin` is what it does first."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin
        self.told = threading.Event()
        self.came_back = threading.Event()

    def __call__(self) -> None:
        self._begin()
        self.told.wait()
        self.came_back.set()


MakeEndless = Callable[[AbandonReason], Endless]


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def endless(time: Time) -> Iterator[MakeEndless]:
    """Calls that will be abandoned, for this reason."""
    made: list[Endless] = []

    def use_a_processor() -> None:
        time.used += LONG_SECONDS

    def wait_for_one() -> None:
        time.seconds += LONG_SECONDS

    def make(reason: AbandonReason) -> Endless:
        made.append(Endless(use_a_processor if reason == "slow" else wait_for_one))
        return made[-1]

    yield make
    for call in made:
        call.told.set()


def test_calls_are_made_in_their_order_and_by_one_thread() -> None:
    runner, made = UninterruptibleCalls(), list[tuple[int, int]]()
    calls = [
        lambda number=number: made.append((number, threading.get_ident())) for number in range(50)
    ]
    assert make(runner, calls[:20]) == make(runner, []) == make(runner, calls[20:]) == []
    assert [number for number, _ in made] == list(range(50))
    (thread,) = {thread for _, thread in made}
    assert thread != threading.get_ident()
    assert runner.busy == 0


@pytest.mark.parametrize("reason", ["slow", "starved"])
def test_overdue_calls_are_abandoned_and_the_others_made(
    time: Time, endless: MakeEndless, reason: AbandonReason
) -> None:
    runner, made = time.runner(), list[int]()
    calls: list[Callable[[], None]] = [partial(made.append, number) for number in range(6)]
    stuck = calls[1], calls[4] = endless(reason), endless(reason)
    assert make(runner, calls, 0.02) == [AbandonedCall(1, reason), AbandonedCall(4, reason)]
    assert made == [0, 2, 3, 5]
    assert runner.busy == 2
    for call in stuck:
        call.told.set()
        call.came_back.wait()
    while runner.busy:
        sleep(0)
    assert make(runner, [lambda: made.append(6)]) == []
    assert made == [0, 2, 3, 5, 6]


def test_after_two_slow_calls_of_a_kind_the_others_are_skipped(
    time: Time, endless: MakeEndless
) -> None:
    runner, made = time.runner(), list[int]()
    calls = [endless("slow") for _ in range(5)]
    left = make(runner, [*calls, lambda: made.append(1)], 0.02, kinds=[7] * 5 + [8])
    assert [one.reason for one in left] == ["slow"] * 2 + ["skipped"] * 3
    assert runner.busy == 2
    assert made == [1]


def test_starved_calls_are_no_reason_to_skip_others_of_their_kind(
    time: Time, endless: MakeEndless
) -> None:
    runner, made = time.runner(), list[int]()
    calls = [endless("starved") for _ in range(5)]
    left = make(runner, [*calls, lambda: made.append(1)], 0.02, kinds=[7] * 6)
    assert [one.reason for one in left] == ["starved"] * 5
    assert made == [1]


def test_the_number_of_abandoned_threads_is_bounded(time: Time, endless: MakeEndless) -> None:
    runner, made = time.runner(), list[int]()
    calls = [endless("starved") for _ in range(MAX_ABANDONED + 3)]
    left = make(runner, [*calls, lambda: made.append(1)], 1e-3)
    assert runner.busy == MAX_ABANDONED
    reasons = [one.reason for one in left]
    assert reasons == ["starved"] * MAX_ABANDONED + ["skipped"] * 4
    assert made == []


def test_many_calls_may_last_longer_together(time: Time) -> None:
    runner, made = time.runner(), list[int]()

    def work() -> None:
        time.used += 0.03
        time.seconds += 0.03
        made.append(1)

    assert make(runner, [work] * 10, 0.05) == []
    assert len(made) == 10


def test_a_thread_that_waits_has_used_no_processor() -> None:
    """By the clocks of this machine: it is starved, and a thread that computes is slow."""
    ended = threading.Event()

    def waiting() -> None:
        ended.wait()

    def spin() -> None:
        while not ended.is_set():
            hashlib.sha256(_MUCH)  # without the interpreter's lock, as the library

    try:
        waits = make(UninterruptibleCalls(), [waiting], 0.1)
        assert waits == [AbandonedCall(0, "starved")]
        spins = make(UninterruptibleCalls(), [spin], 0.1)
        assert [one.reason for one in spins] in (["slow"], ["starved"]), "on a busy machine"
    finally:
        ended.set()


def test_what_a_call_raises_is_raised_and_the_thread_lives() -> None:
    runner, made = UninterruptibleCalls(), list[int]()
    with pytest.raises(ZeroDivisionError):
        make(runner, [lambda: made.append(1), lambda: made.append(1 // 0), lambda: made.append(2)])
    assert make(runner, [lambda: made.append(3)]) == []
    assert made == [1, 3]


def test_its_thread_ends_with_it() -> None:
    runner, threads = UninterruptibleCalls(), list[threading.Thread]()
    make(runner, [lambda: threads.append(threading.current_thread())])
    del runner
    threads[0].join()
