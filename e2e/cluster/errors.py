"""The harness's exceptions: one tree, every message fit to be shown to a person as it is."""

from __future__ import annotations

from pathlib import Path

LOG_TAIL_LINES = 15


class ClusterError(Exception):
    """Something the harness could not do; `str(error)` says what, where and what to try."""


class CommandFailedError(ClusterError):
    """A command of ours ended with an exit status other than 0."""

    def __init__(self, argv: list[str], status: int, output: str) -> None:
        self.argv = argv
        self.status = status
        self.output = output
        super().__init__(f"{' '.join(argv)}: exit status {status}\n{output.strip()}")


class ProcessDiedError(ClusterError):
    """A process that should be running has ended; carries the last lines of its log."""

    def __init__(self, name: str, log: Path) -> None:
        super().__init__(f"{name} ended early; last lines of {log}:\n{tail(log)}")


class NotReadyError(ClusterError):
    """Something did not become ready within its time."""


class NoNodeImageError(ClusterError):
    """kind cannot pull an image for its node, and none can be made."""


def tail(log: Path, lines: int = LOG_TAIL_LINES) -> str:
    """The last lines of a log file, or a word about its absence."""
    if not log.exists():
        return "(no log was written)"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
