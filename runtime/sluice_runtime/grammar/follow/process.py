"""The engine's side of one mask worker. Knows pipes, neither requests nor replacements."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from sluice_runtime.errors import GrammarProcessError
from sluice_runtime.grammar.follow.turns import Kept, Turn, Turned
from sluice_runtime.grammar.frames import (
    BrokenFrameError,
    LargeFrameError,
    Patience,
    read_frame,
    write_frame,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENDED: Final = "the process that follows grammars has ended"
SILENT: Final = "the process that follows grammars does not answer"
_START_SECONDS: Final = 60.0
_TURN_SECONDS: Final = 10.0
"""More than a turn may take: the worker itself abandons calls that are slow."""
_SMALL: Final = {"OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""Otherwise each thread reserves 64 MiB of the address space that the process may have."""


@dataclass(frozen=True)
class MaskWorkerSizes:
    """`lines`: masks of one turn, at most. `words`: of 32 tokens each, in a mask."""

    lines: int
    words: int
    memory_bytes: int


class MaskWorkerProcess:
    """`turn` is called by one thread, `keep` by one thread at a time."""

    def __init__(self, sizes: MaskWorkerSizes, tokenizer: bytes) -> None:
        """Starts the process; `keep` waits until it is up.

        Raises:
            GrammarProcessError: no process can be started.
        """
        self._keep_lock = threading.Lock()
        with ExitStack() as theirs, ExitStack() as ours:
            masks = _closed_by(theirs, os.memfd_create("masks"))
            os.ftruncate(masks, sizes.lines * sizes.words * 4)
            turns, self._turns = os.pipe()
            self._turned, turned = os.pipe()
            for end in (turns, turned):
                _closed_by(theirs, end)
            for end in (self._turns, self._turned):
                _closed_by(ours, end)
            shared = mmap.mmap(masks, 0)
            self.masks: NDArray[np.int32] = np.frombuffer(shared, np.int32).reshape(
                sizes.lines, sizes.words
            )
            command = [sys.executable, "-m", "sluice_runtime.grammar.follow.mask_worker"]
            command += ["--memory-bytes", str(sizes.memory_bytes), "--lines", str(sizes.lines)]
            command += ["--words", str(sizes.words), "--masks", str(masks)]
            command += ["--turns", str(turns), "--turned", str(turned)]
            self._process = _started(command, (masks, turns, turned))
            ours.pop_all()
        self._tokenizer: bytes | None = tokenizer

    def keep(self, grammar: int, text: bytes) -> str:
        """Waits until turns can open answers of this grammar; returns its error, or "".

        Raises:
            GrammarProcessError: the process has ended, or does not start.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._keep_lock:
            try:
                patience, to = _within(_START_SECONDS), self._process.stdin.fileno()
                if self._tokenizer is not None:
                    write_frame(to, self._tokenizer, patience)
                    self._tokenizer = None
                write_frame(to, str(grammar).encode(), patience)
                write_frame(to, text, patience)
                kept = read_frame(self._process.stdout.fileno(), patience)
            except TimeoutError:
                raise GrammarProcessError(SILENT) from None
            except (BrokenFrameError, LargeFrameError, ValueError):
                raise GrammarProcessError(ENDED) from None
        return msgspec.msgpack.decode(kept, type=Kept).error

    def turn(self, turn: Turn) -> Turned:
        """Runs one turn; the masks of its lines are then the first rows of `masks`.

        Raises:
            GrammarProcessError: the process has ended.
        """
        try:
            patience = _within(_TURN_SECONDS)
            write_frame(self._turns, msgspec.msgpack.encode(turn), patience)
            turned = read_frame(self._turned, patience)
        except TimeoutError:
            raise GrammarProcessError(SILENT) from None
        except (BrokenFrameError, LargeFrameError):
            raise GrammarProcessError(ENDED) from None
        return msgspec.msgpack.decode(turned, type=Turned)

    def kill(self) -> None:
        """Ends it at once; calls that wait for it raise GrammarProcessError. From any thread."""
        self._process.kill()

    def close(self) -> None:
        """Kills it and closes its pipes. Called once, and never during a turn."""
        self.kill()
        with self._keep_lock:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
        os.close(self._turns)
        os.close(self._turned)
        self._process.wait()


def _closed_by(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _started(command: list[str], descriptors: tuple[int, ...]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=descriptors,
            process_group=0,  # Ctrl-C is for the engine, which ends it when it drained
            env={**os.environ, **_SMALL},
        )
    except OSError as error:
        raise GrammarProcessError(f"no process can follow grammars: {error}") from None


def _within(seconds: float) -> Patience:
    ends = time.monotonic() + seconds
    return lambda: ends - time.monotonic()
