"""Calls in threads that can be abandoned."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest
from sluice_runtime.grammar.follow.uninterruptible_calls import (
    MAX_ABANDONED,
    AbandonedCall,
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


class Endless:
    """A call that uses a processor, or none, until it is told to end."""

    def __init__(self, *, sleeps: bool) -> None:
        self._sleeps = sleeps
        self.told = threading.Event()
        self.came_back = threading.Event()

    def __call__(self) -> None:
        while not self.told.is_set():
            if self._sleeps:
                self.told.wait()
            hashlib.sha256(_MUCH)  # without the interpreter's lock, as the library
        self.came_back.set()


@pytest.fixture
def endless() -> Iterator[Callable[..., Endless]]:
    made: list[Endless] = []

    def make(*, sleeps: bool) -> Endless:
        made.append(Endless(sleeps=sleeps))
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


@pytest.mark.parametrize("sleeps", [False, True])
def test_overdue_calls_are_abandoned_and_the_others_made(
    endless: Callable[..., Endless], sleeps: bool
) -> None:
    runner, made = UninterruptibleCalls(), list[int]()
    calls: list[Callable[[], None]] = [partial(made.append, number) for number in range(6)]
    stuck = calls[1], calls[4] = endless(sleeps=sleeps), endless(sleeps=sleeps)
    left = make(runner, calls, 0.02)
    assert [one.place for one in left] == [1, 4]
    if sleeps:  # a spinning call may be starved too, on a busy machine
        assert {one.reason for one in left} == {"starved"}
    assert made == [0, 2, 3, 5]
    assert runner.busy == 2
    for call in stuck:
        call.told.set()
        call.came_back.wait()
    while runner.busy:
        time.sleep(0)
    assert make(runner, [lambda: made.append(6)]) == []
    assert made == [0, 2, 3, 5, 6]


def test_after_two_slow_calls_of_a_kind_the_others_are_skipped(
    endless: Callable[..., Endless],
) -> None:
    runner, made = UninterruptibleCalls(), list[int]()
    calls = [endless(sleeps=False) for _ in range(5)]
    left = make(runner, [*calls, lambda: made.append(1)], 0.02, kinds=[7] * 5 + [8])
    assert [one.place for one in left] == list(range(5))
    assert runner.busy < 5
    assert made == [1]


def test_the_number_of_abandoned_threads_is_bounded(endless: Callable[..., Endless]) -> None:
    runner, made = UninterruptibleCalls(), list[int]()
    calls = [endless(sleeps=True) for _ in range(MAX_ABANDONED + 3)]
    left = make(runner, [*calls, lambda: made.append(1)], 1e-3)
    assert runner.busy == MAX_ABANDONED
    reasons = [one.reason for one in left]
    assert reasons == ["starved"] * MAX_ABANDONED + ["skipped"] * 4
    assert made == []


def test_many_calls_may_last_longer_together() -> None:
    runner, made = UninterruptibleCalls(), list[int]()

    def work() -> None:
        ends = time.thread_time() + 0.01
        while time.thread_time() < ends:
            pass
        made.append(1)

    assert make(runner, [work] * 10, 0.05) == []
    assert len(made) == 10


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
