"""How a process of the runtime ends: exit codes, the line on stderr, the termination message.

Knows neither what went wrong nor who reads it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from sluice_contract.cluster.termination import EXIT_REFUSED, TerminationMessage

OK: Final = 0
"""Asked to stop, and drained."""
FAILED: Final = 1
"""Something died; starting again may help."""
STARTUP: Final = EXIT_REFUSED
"""Configuration, model or memory: starting again will not help."""
ENGINE_FAILED: Final = 3
"""API process to supervisor: the engine has failed, and the reason was reported."""
ENGINE_LOST: Final = 4
"""API process to supervisor: the engine process has gone without a word."""

_LOG_VARIABLE: Final = "SLUICE_TERMINATION_LOG"
_KUBERNETES_LOG: Final = "/dev/termination-log"


def give_up(reason: str, message: str, code: int) -> int:
    """Says why on stderr, in one line, and leaves the termination message; returns `code`."""
    line = " ".join(message.split())
    print(f"error: {line}", file=sys.stderr, flush=True)
    leave_message(TerminationMessage(reason=reason, message=line))
    return code


def leave_message(message: TerminationMessage) -> None:
    """Writes the termination message where Kubernetes looks for it, unless one is there.

    The process nearest to the failure writes first and knows most.
    """
    path = Path(os.environ.get(_LOG_VARIABLE) or _KUBERNETES_LOG)
    try:
        if path.stat().st_size == 0:
            path.write_bytes(message.to_bytes())
    except OSError:
        return  # there is no such file outside Kubernetes
