"""Grammars without a compile process."""

from __future__ import annotations

from sluice_runtime.grammar.matchers import Matchers
from sluice_runtime.grammar.pool import Compiled, GrammarKey
from sluice_runtime.grammar.waiting import GrammarQueue


class FakeCompiler:
    """Compiles when it is told to."""

    def __init__(self) -> None:
        self.submitted: list[GrammarKey] = []
        self.done: list[Compiled] = []

    def submit(self, key: GrammarKey) -> None:
        self.submitted.append(key)

    def finished(self) -> list[Compiled]:
        done, self.done = self.done, []
        return done


def no_grammars() -> GrammarQueue:
    """For engines that are asked for none."""
    return GrammarQueue(FakeCompiler(), Matchers(0))
