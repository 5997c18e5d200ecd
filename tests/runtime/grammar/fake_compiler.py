"""Grammars that nobody compiles."""

from __future__ import annotations

from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.waiting import Compiled, GrammarKey, GrammarQueue


class FakeCompiler:
    """Compiles when a test says so."""

    def __init__(self) -> None:
        self.submitted: list[GrammarKey] = []
        self._jobs: list[tuple[int, GrammarKey]] = []
        self._done: list[tuple[int, Compiled]] = []

    def submit(self, job: int, key: GrammarKey) -> None:
        self.submitted.append(key)
        self._jobs.append((job, key))

    def finish(self, *done: Compiled) -> None:
        """The oldest jobs."""
        for one in done:
            self._done.append((self._jobs.pop(0)[0], one))

    def finished(self) -> list[tuple[int, Compiled]]:
        done, self._done = self._done, []
        return done


def no_grammars() -> GrammarQueue:
    """For engines without structured output."""
    return GrammarQueue(FakeCompiler(), Matchers(0), 1)
