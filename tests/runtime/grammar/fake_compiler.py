"""Grammars that nobody compiles."""

from __future__ import annotations

from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.waiting import Compiled, CompileThread, GrammarQueue
from sluice_runtime.wire.messages import Grammar


class FakeCompiler(CompileThread):
    """Compiles when a test says so."""

    def __init__(self) -> None:
        super().__init__(list, lambda: None)
        self.submitted: list[str] = []
        self._numbers: list[int] = []

    def submit(self, job: int, grammar: Grammar) -> None:
        self.submitted.append(grammar.text)
        self._numbers.append(job)

    def finish(self, *done: Compiled) -> None:
        """The oldest jobs."""
        self._finished += [(self._numbers.pop(0), outcome) for outcome in done]


def no_grammars() -> GrammarQueue:
    """For engines without structured output."""
    return GrammarQueue(FakeCompiler(), Matchers(0), 1)
