"""Grammars that nobody compiles."""

from __future__ import annotations

from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.waiting import Compiled, GrammarKey, GrammarQueue


class FakeCompiler:
    """Compiles when a test says so."""

    def __init__(self) -> None:
        self.submitted: list[GrammarKey] = []
        self.done: list[Compiled] = []

    def submit(self, key: GrammarKey) -> None:
        self.submitted.append(key)

    def finished(self) -> list[Compiled]:
        done, self.done = self.done, []
        return done


def no_grammars() -> GrammarQueue:
    """For engines without structured output."""
    return GrammarQueue(FakeCompiler(), Matchers(0))
