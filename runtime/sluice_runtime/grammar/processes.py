"""The processes beside an engine that compile grammars and follow them, as one thing to close."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from sluice_runtime.grammar.compile.pool import CompilePool
from sluice_runtime.grammar.compile.process import CompileLimits, CompileProcess
from sluice_runtime.grammar.follow.following import Following
from sluice_runtime.grammar.follow.process import FollowerProcess, FollowerSizes


@dataclass(frozen=True)
class GrammarProcesses:
    """Starts none by itself; the first grammar does."""

    compilers: CompilePool
    following: Following

    def close(self) -> None:
        """Ends all of them at once, whatever they do."""
        self.compilers.stop()
        self.following.close()
        self.compilers.join()


def grammar_processes(
    model_uri: str,
    vocabulary_size: int,
    limits: CompileLimits,
    *,
    compilers: int,
    rows: int,
) -> GrammarProcesses:
    """`compilers`: processes that compile, at most. `rows`: answers of one step, at most. One that
    follows may have as much memory as one that compiles."""
    command = (
        *(sys.executable, "-m", "sluice_runtime.grammar.compile.worker"),
        *("--model", model_uri, "--vocabulary-size", str(vocabulary_size)),
        *("--memory-bytes", str(limits.memory_bytes)),
    )
    sizes = FollowerSizes(rows, -(-vocabulary_size // 32), limits.memory_bytes)
    following = Following(lambda tokenizer: FollowerProcess(sizes, tokenizer))
    pool = CompilePool(lambda: CompileProcess(command, limits), following.keep, compilers)
    return GrammarProcesses(pool, following)
