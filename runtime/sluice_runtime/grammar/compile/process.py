"""The engine's end of one compile process: started when there is work, killed when it takes long.

Blocks its caller, who is a thread of `pool`. Knows frames, and no request.
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
    MOST_BYTES,
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
"""Linux names the clock of a process by its number and this one."""


@dataclass(frozen=True)
class CompileLimits:
    """What a compile process may take."""

    start_seconds: float = 60.0
    compile_seconds: float = 5.0
    """Of a processor's time, so that a busy machine is not held against a grammar."""
    memory_bytes: int = 2 << 30
    """For the process to bound, and for this one to say."""


class CompileProcess:
    """One process at a time; the next one starts when the one before it was killed or died."""

    def __init__(self, command: Sequence[str], limits: CompileLimits) -> None:
        self._command = command
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._starting = threading.Lock()
        self.tokenizer = b""
        """The tokenizer as the first process described it; empty before."""

    def compile(self, job: bytes) -> bytes:
        """The compiled grammar.

        Raises:
            GrammarError: it is refused.
            GrammarLimitError: it took too much time or memory; the process is gone.
            CompileKilledError: its process was killed, by whomever.
            GrammarProcessError: there is no process, or no processor, that could compile it.
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
                f"compiled it has too many bytes; allowed: at most {MOST_BYTES >> 20} MiB{_LESS}"
            ) from None
        except BrokenFrameError:
            raise self._died() from None
        if answer == TOO_LARGE:
            raise self._out_of_memory()
        return _result(answer)

    def stop(self) -> int:
        """Kills the process, if there is one, and reaps it; returns what it exited with."""
        process, self._process = self._process, None
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        return process.wait()

    def close(self) -> None:
        """From any thread: whoever waits for the process hears that it is gone, and none starts
        any more."""
        with self._starting:
            self._closed, process = True, self._process
        if process is not None:
            process.kill()

    def _living(self) -> subprocess.Popen[bytes]:
        """The process. One that died between two grammars is started again: neither is at fault."""
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
        """Until the process had its time of a processor, or is kept from it."""
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
        self.stop()  # what it still holds would be missing for the next one
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
    """That all threads of a process have used; it may have ended, but not have been waited for."""
    return time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)


def _result(answer: bytes) -> bytes:
    if answer[:1] != DONE:
        raise GrammarError(answer[1:].decode())
    return answer[1:]
