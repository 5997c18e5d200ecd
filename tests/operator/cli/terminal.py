"""`sluice` in a terminal of its own."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

COMMAND = "import sys; from sluice_operator.cli.entry import main; sys.exit(main())"


class Terminal:
    """What a person sees and types."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._unread = b""

    def type(self, keys: bytes) -> None:
        """Types keys."""
        os.write(self._descriptor, keys)

    def settings(self) -> list[Any]:
        """What `stty` shows, such as whether keys are echoed."""
        return termios.tcgetattr(self._descriptor)

    def until(self, part: bytes) -> bytes:
        """What is written until `part` has come, and `part`."""
        while part not in self._unread:
            self._unread += os.read(self._descriptor, 65536)
        before, _, self._unread = self._unread.partition(part)
        return before + part

    def rest(self) -> bytes:
        """What is written until the program ends: then a terminal has an error, and no end."""
        with suppress(OSError):
            while more := os.read(self._descriptor, 65536):
                self._unread += more
        return self._unread


@contextmanager
def in_terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], Terminal]]:
    """The command in a terminal, and the terminal's other end."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        # Where these tests run in the background, children are born deaf to Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    try:
        yield process, Terminal(ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
