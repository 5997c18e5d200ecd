"""The compile and mask workers of an engine, closed together."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from sluice_runtime.grammar.compile.pool import CompilePool
from sluice_runtime.grammar.compile.process import CompileLimits, CompileProcess
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorkerPool
from sluice_runtime.grammar.follow.process import MaskWorkerProcess, MaskWorkerSizes


@dataclass(frozen=True)
class GrammarProcesses:
    """The first grammar starts the processes."""

    compilers: CompilePool
    mask_workers: MaskWorkerPool

    def close(self) -> None:
        """Kills all of them at once."""
        self.compilers.stop()
        self.mask_workers.close()
        self.compilers.join()


def grammar_processes(
    model_uri: str,
    vocabulary_size: int,
    limits: CompileLimits,
    *,
    compilers: int,
    rows: int,
    on_compiled: Callable[[], None],
) -> GrammarProcesses:
    """`compilers`: at most so many compile processes. `rows`: at most so many answers a step. A
    mask worker has a compile process's memory limit. `on_compiled`: called by other threads."""
    command = (
        *(sys.executable, "-m", "sluice_runtime.grammar.compile.worker"),
        *("--model", model_uri, "--vocabulary-size", str(vocabulary_size)),
        *("--memory-bytes", str(limits.memory_bytes)),
    )
    sizes = MaskWorkerSizes(rows, -(-vocabulary_size // 32), limits.memory_bytes)
    mask_workers = MaskWorkerPool(lambda tokenizer: MaskWorkerProcess(sizes, tokenizer))
    pool = CompilePool(
        lambda: CompileProcess(command, limits), mask_workers.keep, compilers, on_compiled
    )
    return GrammarProcesses(pool, mask_workers)
