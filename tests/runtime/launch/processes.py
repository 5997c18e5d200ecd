"""Processes under test: start, wait for a log line, find children, stop."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx

HANG_SECONDS: Final = 60.0
"""For what must happen at once, on a machine that is busy with other things."""
CONTEXT_TOKENS: Final = 4096
"""Of the shared engine, and of those that tests end."""
SOON_SECONDS: Final = 30.0
"""For what must not wait for a drain to run out of time, or for an engine to be silent."""


class Process:
    """A running program. Its stderr is read as it comes: a pipe that is full would stop it."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self._lines: list[str] = []
        self._unsearched: SimpleQueue[str | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="stderr", daemon=True)
        self._reader.start()

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The next log line that matches; fails when the program ends before."""
        while (line := self._unsearched.get()) is not None:
            if found := re.search(pattern, line):
                return found
        self._unsearched.put(None)
        raise AssertionError(f"ended without {pattern!r}:\n{self.rest()}")

    def url(self) -> str:
        return self.wait_for(r"Sluice serves .* at (http://\S+)")[1]

    def ready_url(self) -> str:
        """The URL, once the model is loaded."""
        url = self.url()
        until(lambda: self.popen.poll() is not None or status(url, "/ready") == 200)
        assert self.popen.poll() is None, self.rest()
        return url

    def rest(self) -> str:
        """All of stderr; returns when the program has ended, and what it started."""
        self._reader.join(HANG_SECONDS)
        assert not self._reader.is_alive(), "somebody still holds its stderr"
        return "".join(self._lines)

    def child(self, module: str) -> int:
        """Pid of the child whose command line names `module`."""
        return next(pid for pid in descendants(self.popen.pid) if module in command_line(pid))

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Sends a signal; returns the exit code and how many seconds it took."""
        began = time.monotonic()
        self.popen.send_signal(number)
        return self.popen.wait(HANG_SECONDS), time.monotonic() - began

    def _read(self) -> None:
        assert self.popen.stderr is not None
        with self.popen.stderr as lines:
            for line in lines:
                self._lines.append(line)
                self._unsearched.put(line)
        self._unsearched.put(None)


@contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[Process]:
    """A program that is stopped, and its children with it, when the context ends. Its temporary
    files go with it, however it ended."""
    with TemporaryDirectory(prefix="sluice-test-", ignore_cleanup_errors=True) as temporary:
        own = {"OMP_NUM_THREADS": "1", "TMPDIR": temporary}
        popen = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **own, **environment}
        )
        with _stopped(popen) as process:
            yield process


@contextmanager
def _stopped(popen: subprocess.Popen[str]) -> Iterator[Process]:
    process = Process(popen)
    try:
        yield process
    finally:
        popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            popen.wait(HANG_SECONDS)
        for pid in [*descendants(popen.pid), popen.pid]:
            if popen.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        popen.wait(HANG_SECONDS)
        process.rest()


def program(config: Path) -> list[str]:
    """The command line of the whole program."""
    return [sys.executable, "-m", "sluice_runtime", "--config", str(config)]


def write_config(folder: Path, **keys: Any) -> Path:
    """An engine.json for the tiny dummy model on a free port."""
    path = folder / "engine.json"
    server = {"port": 0, **keys.pop("server", {})}
    model = {"uri": "dummy://qwen3-tiny", "name": "tiny"}
    path.write_text(json.dumps({"model": model, "server": server, **keys}))
    return path


def get(url: str, path: str) -> httpx.Response:
    return httpx.get(url + path, timeout=HANG_SECONDS, verify=False)


def status(url: str, path: str) -> int:
    """Status code, 0 when nobody answers."""
    try:
        return get(url, path).status_code
    except httpx.HTTPError:
        return 0


def until(condition: Callable[[], bool], seconds: float = HANG_SECONDS) -> None:
    """Returns when `condition`, which is about another process, holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def descendants(pid: int) -> list[int]:
    """Pids of children and theirs, deepest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [*descendants(child), child]
    return found


def command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
