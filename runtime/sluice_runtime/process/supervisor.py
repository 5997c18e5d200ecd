"""PID 1 of an engine pod: two child processes; when one ends, the other is stopped.

Waits for signals with sigwaitinfo: no thread, no handler, no polling. Reaps orphaned processes.
Knows the exit codes of its children, not what they do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_runtime.process import exits
from sluice_runtime.process.child import started_child

_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD})
_SECOND_END_SECONDS: Final = 10.0
"""Time that the second child gets to end by itself after the first, to answer clients or deliver
its last messages."""
_STOP_SECONDS: Final = 2.0
"""Seconds between SIGTERM and SIGKILL for a child that outlived the other."""


@dataclass(frozen=True)
class Ending:
    """How a child ended: its wait status, as exit code and message."""

    name: str
    status: int

    @property
    def code(self) -> int:
        """Exit code of the child; negative: the number of the signal that ended it."""
        return os.waitstatus_to_exitcode(self.status)

    def __str__(self) -> str:
        if self.code >= 0:
            return f"the {self.name} process ended with exit code {self.code}"
        hint = " (out of memory?)" if -self.code == signal.SIGKILL else ""
        return f"the {self.name} process was ended by {signal.Signals(-self.code).name}{hint}"


class Supervisor:
    """Runs an API process beside an engine process until one of them ends."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._running: dict[int, str] = {}
        self._stop_requested = False

    def run(self, api: Sequence[str], engine: subprocess.Popen[str]) -> int:
        """Starts the API command beside the running engine, and forwards signals to the API
        process, which then drains. Returns the supervisor's exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        engine_pid = self._added("engine", engine)
        api_pid = self._added("API", started_child(api, self._environment))
        first = self._first_end(api_pid)
        if first.name == "engine":
            # The API process notices too, sends errors to its clients, and ends.
            verdict = self._verdict(self._await_end(api_pid, _SECOND_END_SECONDS), first)
        elif first.code == exits.ENGINE_LOST:
            verdict = self._verdict(first, self._await_end(engine_pid, _SECOND_END_SECONDS))
        else:
            verdict = self._verdict(first, None)
        self._stop(api_pid)
        self._stop(engine_pid)
        return verdict

    def _verdict(self, api: Ending | None, engine: Ending | None) -> int:
        """The supervisor's exit code. Writes the termination message if no child has. An argument
        is None if that child had to be stopped."""
        if api is not None and api.code in (exits.OK, exits.STARTUP):
            return api.code
        if api is not None and api.code == exits.ENGINE_FAILED:
            return exits.FAILED
        if self._stop_requested and api is not None and api.code == -signal.SIGTERM:
            return exits.OK  # the forwarded SIGTERM ended it before it had a handler
        if engine is not None:
            return exits.give_up("EngineDied", str(engine), exits.FAILED)
        return exits.give_up("ApiProcessDied", str(api), exits.FAILED)

    def _added(self, name: str, process: subprocess.Popen[str]) -> int:
        self._running[process.pid] = name
        process.returncode = 0  # this class reaps, not Popen
        return process.pid

    def _first_end(self, api_pid: int) -> Ending:
        """Waits for the first child to end; forwards signals to stop to the API process."""
        while (ending := self._reap()) is None:  # the engine may have ended before
            if signal.sigwaitinfo(_SIGNALS).si_signo != signal.SIGCHLD:
                self._stop_requested = True
                self._signal(api_pid, signal.SIGTERM)
        return ending

    def _await_end(self, pid: int, seconds: float) -> Ending | None:
        """How a child ended; None if it still runs after `seconds`."""
        deadline = time.monotonic() + seconds
        while pid in self._running:
            if ending := self._reap():
                return ending
            signal.sigtimedwait(_SIGNALS, max(0.0, deadline - time.monotonic()))
            if time.monotonic() >= deadline:
                break
        return self._reap()

    def _stop(self, pid: int) -> None:
        """SIGTERM, then SIGKILL, to the child's whole process group."""
        if pid in self._running:
            self._signal(pid, signal.SIGTERM)
            self._await_end(pid, _STOP_SECONDS)
        if pid in self._running:
            self._signal(pid, signal.SIGKILL)
            self._await_end(pid, _STOP_SECONDS)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        if pid in self._running:
            os.killpg(pid, number)

    def _reap(self) -> Ending | None:
        """Reaps ended processes until one of our children is found; call again for the other."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return None
            if pid == 0:
                return None
            if name := self._running.pop(pid, None):
                return Ending(name, status)
