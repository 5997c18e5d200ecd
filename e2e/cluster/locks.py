"""Takes a file lock, and says so when that means waiting. The kernel frees it with the process."""

from __future__ import annotations

import fcntl

from e2e.cluster.progress import Step


def lock(descriptor: int, waiting_for: str) -> None:
    """Returns once the file is locked by this process alone; `waiting_for` is what holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with Step(f"Waiting for {waiting_for}"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
