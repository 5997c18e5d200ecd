"""A mask worker in the test process."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from sluice_runtime.grammar.follow.mask_worker import MaskWriter
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorkerPool
from sluice_runtime.grammar.follow.turns import Turn, Turned
from sluice_runtime.grammar.native import CompiledGrammar, TokenizerInfo

LINES = 64


class MaskWorkerHere:
    """Like `process.MaskWorkerProcess`, without a process."""

    def __init__(self, tokenizer: bytes, size: int, clock: Callable[[], float]) -> None:
        self._tokenizer = TokenizerInfo.deserialize_json(tokenizer.decode())
        self.grammars: dict[int, CompiledGrammar] = {}
        self._followed = MaskWriter(self.grammars, clock)
        self.masks = np.zeros((LINES, -(-size // 32)), np.int32)

    def keep(self, grammar: int, text: bytes) -> str:
        self.grammars[grammar] = CompiledGrammar.deserialize_json(text.decode(), self._tokenizer)
        return ""

    def turn(self, turn: Turn) -> Turned:
        return self._followed.turn(turn, self.masks)

    def kill(self) -> None: ...

    def close(self) -> None: ...


def mask_workers_here(size: int, clock: Callable[[], float] = time.thread_time) -> MaskWorkerPool:
    """`size`: of the vocabulary."""
    return MaskWorkerPool(lambda tokenizer: MaskWorkerHere(tokenizer, size, clock))
