"""Lets Ctrl-C end a command without output while it starts or computes.

Imports nothing else of ours, so that a command can call it before its own imports.
"""

from __future__ import annotations

import signal


def end_quietly() -> None:
    """Makes SIGINT end the process at once, without a traceback. If SIGINT is ignored, as in the
    background of a shell, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
