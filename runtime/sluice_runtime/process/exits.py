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
"""Exit code of a process that was told to stop and has drained."""
FAILED: Final = 1
"""Exit code after a failure that a restart may cure."""
STARTUP: Final = EXIT_REFUSED
"""Exit code if configuration, model or memory prevent the start; a restart will not help."""
ENGINE_FAILED: Final = 3
"""Exit code by which the API process tells the supervisor: the engine failed and reported its
reason."""
ENGINE_LOST: Final = 4
"""Exit code by which the API process tells the supervisor: the engine process ended without
reporting a reason."""

_LOG_VARIABLE: Final = "SLUICE_TERMINATION_LOG"
_KUBERNETES_LOG: Final = "/dev/termination-log"


def give_up(reason: str, message: str, code: int) -> int:
    """Writes the reason to stderr, in one line, and as the termination message; returns `code`."""
    line = " ".join(message.split())
    print(f"error: {line}", file=sys.stderr, flush=True)
    leave_message(TerminationMessage(reason=reason, message=line))
    return code


def leave_message(message: TerminationMessage) -> None:
    """Writes the termination message where Kubernetes looks for it, unless one is there.

    An earlier message stays: the process nearest to the failure writes first and knows most.
    """
    path = Path(os.environ.get(_LOG_VARIABLE) or _KUBERNETES_LOG)
    try:
        if path.stat().st_size == 0:
            path.write_bytes(message.to_bytes())
    except OSError:
        return  # there is no such file outside Kubernetes
