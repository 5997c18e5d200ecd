"""Compiles grammars outside the engine's loop: a few threads, each with a compile process.

The loop submits texts and collects results between steps, without waiting. A thread is started when
all others are busy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from sluice_runtime.errors import (
    CompileKilledError,
    GrammarError,
    GrammarLimitError,
    GrammarProcessError,
)
from sluice_runtime.grammar.compile.process import CompileProcess
from sluice_runtime.grammar.keys import GrammarKey, KeptGrammar

_log = logging.getLogger(__name__)

MAX_PROCESSES: Final = 2
"""So that a grammar whose compilation never ends does not hold up all others."""


_WARM_UP: Final = GrammarKey("regex", "warm")
"""Compared by identity: a request may have an equal one."""

CompileOutcome = Literal["compiled", "refused", "limit", "killed", "failed"]


@dataclass(frozen=True)
class Compiled:
    """The result of a compilation: a grammar, its error, or a failure that is not its fault."""

    key: GrammarKey
    grammar: KeptGrammar | None = None
    size_bytes: int = 0
    error: str = ""
    failure: str = ""
    accident: bool = False
    """Whether the error or failure may be chance; if it repeats, it is the grammar's fault."""
    seconds: float = 0.0
    """Wall-clock time of the compilation."""

    @property
    def outcome(self) -> CompileOutcome:
        if self.error:
            return "limit" if self.accident else "refused"
        if self.failure:
            return "killed" if self.accident else "failed"
        return "compiled"


class CompilePool:
    """`submit` and `finished` are called by the engine's thread. `keep`: loads a compiled grammar,
    with the tokenizer, into the mask worker. `on_finished`: called by other threads after each
    result."""

    def __init__(
        self,
        process: Callable[[], CompileProcess],
        keep: Callable[[bytes, bytes], KeptGrammar],
        max_processes: int = MAX_PROCESSES,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        self._process = process
        self._keep = keep
        self._max_processes = max_processes
        self._on_finished = on_finished
        self._jobs: deque[GrammarKey | None] = deque()
        """None ends the thread that takes it."""
        self._turn = threading.Condition()
        """Guards the jobs."""
        self._finished: deque[Compiled | None] = deque()
        """None: the warm-up."""
        self._threads: list[threading.Thread] = []
        self._processes: list[CompileProcess] = []
        """One for each thread."""
        self._closed = False
        self._unfinished = 0

    def submit(self, key: GrammarKey) -> None:
        """Queues a grammar; a later `finished` returns the result."""
        self._unfinished += 1
        if self._unfinished > len(self._threads) < self._max_processes:
            process = self._process()
            thread = threading.Thread(
                target=self._run, args=(process,), name="grammars", daemon=True
            )
            self._processes.append(process)
            self._threads.append(thread)
            thread.start()
        with self._turn:
            self._jobs.append(key)
            self._turn.notify()

    def withdraw(self, key: GrammarKey) -> bool:
        """Takes back a job that has not begun; False: it has begun or ended."""
        with self._turn:
            if key not in self._jobs:
                return False
            self._jobs.remove(key)
        self._unfinished -= 1
        return True

    def warm_up(self) -> None:
        """Starts one thread and its process, with a grammar that no request asked for."""
        self.submit(_WARM_UP)

    def finished(self) -> list[Compiled]:
        """Results since the last call; never waits."""
        done = [self._finished.popleft() for _ in range(len(self._finished))]
        self._unfinished -= len(done)
        return [compiled for compiled in done if compiled is not None]

    def close(self) -> None:
        """Ends the threads and their processes at once."""
        self.stop()
        self.join()

    def stop(self) -> None:
        """Kills the processes and drops all jobs."""
        self._closed = True
        for process in self._processes:
            process.close()
        with self._turn:
            self._jobs.clear()
            self._jobs.extend([None] * len(self._threads))
            self._turn.notify_all()

    def join(self) -> None:
        """Waits for the threads; one may be in `keep`."""
        for thread in self._threads:
            thread.join()

    def _run(self, process: CompileProcess) -> None:
        try:
            while (key := self._next_job()) is not None:
                compiled = self._compiled(process, key)
                self._finished.append(None if key is _WARM_UP else compiled)
                self._on_finished()
        finally:
            process.stop()

    def _next_job(self) -> GrammarKey | None:
        with self._turn:
            self._turn.wait_for(lambda: self._jobs)
            return self._jobs.popleft()

    def _compiled(self, process: CompileProcess, key: GrammarKey) -> Compiled:
        began = time.monotonic()
        try:
            text = process.compile(msgspec.json.encode(key._asdict()))
            seconds = time.monotonic() - began
            return Compiled(key, self._keep(text, process.tokenizer), len(text), seconds=seconds)
        except GrammarError as error:
            limit = isinstance(error, GrammarLimitError)
            failed = Compiled(key, error=str(error), accident=limit)
        except GrammarProcessError as error:
            if not self._closed:
                _log.warning("a grammar could not be compiled: %s", error)
            killed = isinstance(error, CompileKilledError)
            failed = Compiled(key, failure=str(error), accident=killed)
        except Exception as error:  # a request waits for a result, whatever happens
            _log.exception("a grammar could not be compiled")
            process.stop()
            failed = Compiled(key, failure=f"its grammar could not be compiled: {error}")
        return replace(failed, seconds=time.monotonic() - began)
