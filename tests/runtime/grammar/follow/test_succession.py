"""Answers change only between turns while a replacement is brought up to date."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from sluice_runtime.errors import GrammarProcessError
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorker, MaskWorkerPool
from sluice_runtime.grammar.follow.turns import LeftLine, Line, Turn, Turned

from tests.patience import PATIENCE_SECONDS

EMPTY = Turn([], [], [], [])


class FakeWorker:
    """The first one ends over its turn."""

    def __init__(self, *, ends: bool) -> None:
        self._ends = ends
        self.masks = np.zeros((1, 1), np.int32)

    def keep(self, grammar: int, text: bytes) -> str:
        return ""

    def turn(self, turn: Turn) -> Turned:
        if self._ends:
            raise GrammarProcessError("ended")
        return Turned([], [LeftLine(0, "slow")], 0)

    def kill(self) -> None: ...

    def close(self) -> None: ...


class WatchedAnswers:
    """Notes whether turns are held up while answers change."""

    def __init__(self, pool: MaskWorkerPool) -> None:
        self._pool = pool
        self.held: list[bool] = []
        self.done = threading.Event()

    def updates_for(self, worker: MaskWorker) -> Sequence[Turn]:
        self.held.append(self._pool._turn_lock.locked())
        return [Turn([], [], [], [Line(0, 0, [1], 1.0)])]

    def update_done(self, turn: Turn, turned: Turned) -> None:
        self.held.append(self._pool._turn_lock.locked())
        if len(self.held) == 4:
            self.done.set()


def test_answers_change_only_between_turns() -> None:
    workers = iter([FakeWorker(ends=True), FakeWorker(ends=False)])
    pool = MaskWorkerPool(lambda tokenizer: next(workers))
    pool.keep(b"grammar", b"tokenizer")
    answers = pool.answers = WatchedAnswers(pool)
    with pytest.raises(GrammarProcessError):
        pool.turn(lambda worker, forgotten: EMPTY)
    assert answers.done.wait(PATIENCE_SECONDS)
    assert answers.held == [True] * 4
    pool.close()
