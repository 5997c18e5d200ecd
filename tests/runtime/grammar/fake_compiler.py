"""Grammars without a compile process."""

from __future__ import annotations

from sluice_runtime.grammar.compile.pool import Compiled
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorker, MaskWorkerPool
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.grammar.keys import GrammarKey
from sluice_runtime.grammar.waiting import GrammarQueue


class FakeCompiler:
    """Compiles when a test says so."""

    def __init__(self) -> None:
        self.submitted: list[GrammarKey] = []
        self.begun: set[GrammarKey] = set()
        self.done: list[Compiled] = []

    def submit(self, key: GrammarKey) -> None:
        self.submitted.append(key)

    def withdraw(self, key: GrammarKey) -> bool:
        if key in self.begun or key not in self.submitted:
            return False
        self.submitted.remove(key)
        return True

    def finished(self) -> list[Compiled]:
        done, self.done = self.done, []
        return done


def no_workers() -> MaskWorkerPool:
    """A pool without workers."""

    def start(tokenizer: bytes) -> MaskWorker:
        raise AssertionError("nobody has a grammar")

    return MaskWorkerPool(start)


def no_grammars() -> GrammarQueue:
    """For engines without structured output."""
    return GrammarQueue(FakeCompiler(), Matchers(0, no_workers()))
