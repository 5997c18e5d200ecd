"""The engine's end of one compile process: started when there is work, killed when it takes long.

Blocks its caller, who is a thread of `pool`. Knows frames, and no request.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from sluice_runtime.errors import CompileProcessError, GrammarError
from sluice_runtime.grammar.frames import (
    DONE,
    MOST_BYTES,
    BrokenFrameError,
    read_frame,
    write_frame,
)


@dataclass(frozen=True)
class CompileLimits:
    """How long a compile process may take; what it may hold is its own to bound."""

    start_seconds: float = 60.0
    compile_seconds: float = 5.0


class CompileProcess:
    """One process at a time; the next one starts when the one before it was killed or died."""

    def __init__(self, command: Sequence[str], limits: CompileLimits) -> None:
        self._command = command
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self.tokenizer = b""
        """The tokenizer as the first process described it; empty before."""

    def compile(self, job: bytes) -> bytes:
        """The compiled grammar.

        Raises:
            GrammarError: it is refused, or took too much time or memory; the process may be gone.
            CompileProcessError: there is no process that could compile it.
        """
        process = self._living() or self._start()
        try:
            answer = self._ask(process, job, self._limits.compile_seconds)
        except TimeoutError:
            self.stop()
            raise GrammarError(
                f"compiling it takes more than {self._limits.compile_seconds:g} s"
            ) from None
        except BrokenFrameError:
            self.stop()
            raise GrammarError(
                f"compiling it takes too much memory, or gives more than {MOST_BYTES >> 20} MiB"
            ) from None
        return _result(answer)

    def stop(self) -> None:
        """Kills the process, if there is one, and reaps it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _living(self) -> subprocess.Popen[bytes] | None:
        """None when it was never started, or died between two grammars: neither is at fault."""
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            process = self._process = subprocess.Popen(
                self._command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        except OSError as error:
            raise CompileProcessError(f"the compile process does not start: {error}") from None
        assert process.stdout is not None
        try:
            self.tokenizer = _result(
                read_frame(process.stdout.fileno(), self._limits.start_seconds)
            )
        except (BrokenFrameError, TimeoutError):
            self.stop()
            raise CompileProcessError("the compile process does not start") from None
        except GrammarError:
            self.stop()
            raise
        return process

    def _ask(self, process: subprocess.Popen[bytes], job: bytes, seconds: float) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        write_frame(process.stdin.fileno(), job)
        return read_frame(process.stdout.fileno(), seconds)


def _result(answer: bytes) -> bytes:
    if answer[:1] != DONE:
        raise GrammarError(answer[1:].decode())
    return answer[1:]
