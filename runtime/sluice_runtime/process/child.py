"""Starts a child process of the launcher. Imports nothing that takes time: see `launch`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


def started_child(
    command: Sequence[str], environment: Mapping[str, str], *, has_input: bool = False
) -> subprocess.Popen[str]:
    """A running child in a session of its own, which the kernel kills when this process ends.
    `environment`: variables beside this process's own. `has_input`: whether its standard input is a
    pipe from this process."""
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE if has_input else None,
        text=True,
        start_new_session=True,
        preexec_fn=_in_child,
    )


def _in_child() -> None:
    """Runs between fork and exec: restores the signal mask, and lets the kernel kill the child if
    the launcher dies."""
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
