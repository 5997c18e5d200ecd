"""What compiles and follows grammars, in the test process."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec
import numpy as np
from sluice_runtime.grammar.compile.compiling import compile_grammar
from sluice_runtime.grammar.compile.pool import CompilePool
from sluice_runtime.grammar.compile.process import CompileLimits, CompileProcess
from sluice_runtime.grammar.compile.worker import Job
from sluice_runtime.grammar.follow.mask_worker import MaskWriter
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorkerPool
from sluice_runtime.grammar.follow.turns import Turn, Turned
from sluice_runtime.grammar.native import RAW, CompiledGrammar, GrammarCompiler, TokenizerInfo
from sluice_runtime.grammar.processes import GrammarProcesses
from sluice_runtime.grammar.vocabulary import token_bytes
from sluice_runtime.model.files import resolve
from sluice_runtime.model.spec import spec_from

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


class CompileHere(CompileProcess):
    """Its jobs are done by its caller."""

    def __init__(self, uri: str, size: int) -> None:
        super().__init__((), CompileLimits())
        tokens = token_bytes(resolve(uri), size)
        tokenizer = TokenizerInfo(tokens, RAW, size, [], False)
        self.tokenizer = str(tokenizer.serialize_json()).encode()
        self._compiler = GrammarCompiler(tokenizer, 1, False, 0)
        self._lengths = np.array([len(token) for token in tokens])

    def compile(self, job: bytes) -> bytes:
        asked = msgspec.json.decode(job, type=Job)
        return compile_grammar(self._compiler, asked.kind, asked.text, self._lengths).encode()


def grammars_here(uri: str) -> GrammarProcesses:
    """For an engine of the model."""
    size = spec_from(resolve(uri).config).vocabulary_size
    workers = mask_workers_here(size)
    return GrammarProcesses(CompilePool(lambda: CompileHere(uri, size), workers.keep), workers)
