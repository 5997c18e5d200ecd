"""Runs short commands to their end. Knows nothing of what they do; long-lived processes are
`daemon.py` (on the host) and `init.py` (in the node)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.cluster.errors import CommandFailedError


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
) -> str:
    """Standard output of a command that must succeed; all its output is kept in `log` if given.

    Raises CommandFailedError with all its output.
    """
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, input=stdin, env=env, cwd=cwd, text=True, capture_output=True, check=False
    )
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(done.stdout + done.stderr)
    if done.returncode != 0:
        raise CommandFailedError(words, done.returncode, done.stdout + done.stderr)
    return done.stdout


def succeeds(argv: Sequence[str | Path]) -> bool:
    """Whether the command exits with 0; its output is dropped."""
    words = [str(word) for word in argv]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0
