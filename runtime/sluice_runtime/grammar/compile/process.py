"""The engine's side of one compile process: started when there is work, killed when it takes long.

Blocks its caller, a thread of `pool`. Knows frames, not requests.
"""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_runtime.errors import (
    CompileKilledError,
    GrammarError,
    GrammarLimitError,
    GrammarProcessError,
)
from sluice_runtime.grammar.bounds import SHARE
from sluice_runtime.grammar.frames import (
    DONE,
    MAX_BYTES,
    TOO_LARGE,
    BrokenFrameError,
    LargeFrameError,
    Patience,
    read_frame,
    write_frame,
)

_LESS: Final = "; fewer optional properties and choices, and smaller repeats, take less"
_ENDED: Final = "the engine has ended"
_CPUCLOCK_SCHED: Final = 2
"""Linux: a process's clock id is made of its pid and this."""


@dataclass(frozen=True)
class CompileLimits:
    """Limits of a compile process."""

    start_seconds: float = 60.0
    compile_seconds: float = 5.0
    """Processor time, so that a busy machine does not fail a grammar."""
    memory_bytes: int = 2 << 30
    """Set by the process for itself; here only for messages."""


class CompileProcess:
    """One process at a time; the next job starts a new one if it was killed or died."""

    def __init__(self, command: Sequence[str], limits: CompileLimits) -> None:
        self._command = command
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._starting = threading.Lock()
        self.tokenizer = b""
        """Serialized by the first process; empty before it has started."""

    def compile(self, job: bytes) -> bytes:
        """The compiled grammar.

        Raises:
            GrammarError: it is refused.
            GrammarLimitError: it took too much time or memory; the process is gone.
            CompileKilledError: its process was killed from outside.
            GrammarProcessError: no process can be started, or the machine is too busy.
        """
        process = self._living()
        before = processor_seconds(process.pid)
        try:
            answer = self._ask(process, job)
        except TimeoutError:
            raise self._out_of_time(processor_seconds(process.pid) - before) from None
        except LargeFrameError:
            self.stop()
            raise GrammarError(
                f"compiled it has too many bytes; allowed: at most {MAX_BYTES >> 20} MiB{_LESS}"
            ) from None
        except BrokenFrameError:
            raise self._died() from None
        if answer == TOO_LARGE:
            raise self._out_of_memory()
        return _result(answer)

    def stop(self) -> int:
        """Kills and reaps the process, if there is one; returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return process.wait()

    def close(self) -> None:
        """Kills the process for good; a pending `compile` fails. From any thread."""
        with self._starting:
            self._closed, process = True, self._process
        if process is not None:
            process.kill()

    def _living(self) -> subprocess.Popen[bytes]:
        """The process; one that died between two jobs is started again, as neither is at fault."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        return self._process or self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        process = self._started()
        assert process.stdout is not None
        ends = time.monotonic() + self._limits.start_seconds
        try:
            first = read_frame(process.stdout.fileno(), lambda: ends - time.monotonic())
            self.tokenizer = _result(first)
        except (BrokenFrameError, LargeFrameError, TimeoutError):
            self.stop()
            raise GrammarProcessError("the compile process does not start") from None
        except GrammarError as error:
            self.stop()
            raise GrammarProcessError(f"the compile process does not start: {error}") from None
        return process

    def _started(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._closed:
                raise GrammarProcessError(_ENDED)
            try:
                self._process = subprocess.Popen(
                    self._command,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C is for the engine, which ends it when it drained
                )
            except OSError as error:
                raise GrammarProcessError(f"the compile process does not start: {error}") from None
            return self._process

    def _ask(self, process: subprocess.Popen[bytes], job: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        patience = self._patience(process)
        write_frame(process.stdin.fileno(), job)
        return read_frame(process.stdout.fileno(), patience)

    def _patience(self, process: subprocess.Popen[bytes]) -> Patience:
        """Until the process has used its processor time, or gets too little of it."""
        most = self._limits.compile_seconds
        used_until, ends = processor_seconds(process.pid) + most, time.monotonic() + most / SHARE
        return lambda: min(used_until - processor_seconds(process.pid), ends - time.monotonic())

    def _out_of_time(self, used_seconds: float) -> Exception:
        self.stop()
        most = self._limits.compile_seconds
        if used_seconds < most:
            return GrammarProcessError(
                f"the machine is too busy to compile its grammar: {used_seconds:.1f} s of a "
                f"processor within {most / SHARE:g} s"
            )
        return GrammarLimitError(
            f"compiling it takes more than {most:g} s of a processor; "
            f"allowed: at most {most:g} s (grammarCompileSeconds){_LESS}"
        )

    def _out_of_memory(self) -> GrammarLimitError:
        self.stop()  # memory that it still holds would be missing for the next job
        most = self._limits.memory_bytes >> 20
        return GrammarLimitError(
            f"compiling it takes more than {most} MiB of memory; "
            f"allowed: at most {most} MiB (grammarCompileBytes){_LESS}"
        )

    def _died(self) -> Exception:
        code = self.stop()
        if self._closed:
            return GrammarProcessError(_ENDED)
        if code == -signal.SIGKILL:
            return CompileKilledError(
                "the process that compiled its grammar was killed, as the kernel does where a pod "
                "has no memory left"
            )
        return GrammarLimitError(f"compiling it ends the compile process (exit code {code})")


def processor_seconds(pid: int) -> float:
    """Processor time of all threads of a process that has not been reaped."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def _result(answer: bytes) -> bytes:
    if answer[:1] != DONE:
        raise GrammarError(answer[1:].decode())
    return answer[1:]
