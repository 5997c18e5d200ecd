"""A long-lived child process of this one: started, awaited, killed. It dies with its parent.

Knows nothing of what runs. The bare node's processes are not children of ours: see `init.py`.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster.errors import NotReadyError, ProcessDiedError

POLL_SECONDS = 0.05


class Daemon:
    """One process, restartable with the same command line; its output is appended to `log`.

    The kernel kills it when the thread that started it ends, so start it from the main thread.
    """

    def __init__(self, name: str, argv: Sequence[str | Path], log: Path) -> None:
        self.name = name
        self.log = log
        self._argv = ["setpriv", "--pdeathsig", "SIGKILL", *map(str, argv)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Starts the process; the caller waits for a sign that it is ready."""
        assert not self.running, f"{self.name} is running already"
        with self.log.open("ab") as log:
            # A session of its own keeps the terminal's Ctrl-C from it: the owner decides.
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool], timeout_seconds: float) -> None:
        """Returns once `ready()` is true. Raises ProcessDiedError or NotReadyError."""
        deadline = time.monotonic() + timeout_seconds
        while not ready():
            if not self.running:
                raise ProcessDiedError(self.name, self.log)
            if time.monotonic() > deadline:
                raise NotReadyError(f"{self.name} is not ready after {timeout_seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def kill(self) -> None:
        """Sends SIGKILL, and returns when the process is gone; harmless if it was not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
