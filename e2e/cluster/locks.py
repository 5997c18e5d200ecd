"""Takes a file lock, and says so when that means waiting. The kernel frees it with the process.

The holder of a lock writes its process id into the file; with a directory the holder is unknown.
"""

from __future__ import annotations

import fcntl
import os
import stat

from e2e.cluster.progress import Step


def lock(descriptor: int, waiting_for: str) -> None:
    """Returns once the file, open for reading and writing, or the directory is locked by this
    process alone; `waiting_for` is what holds it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with Step(f"Waiting for {waiting_for}{_holder(descriptor)}"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    if _is_file(descriptor):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)


def _holder(descriptor: int) -> str:
    written = os.pread(descriptor, 20, 0) if _is_file(descriptor) else b""
    return f" (process {int(written)})" if written.isdigit() else ""


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)
