"""Ctrl-C while a command starts or computes: it ends, and says nothing.

Knows nothing else of ours, so that a command can call it before it imports what it needs.
"""

from __future__ import annotations

import signal


def end_quietly() -> None:
    """From now on SIGINT ends the process as it ends other programs: at once, without a traceback.
    One that comes ignored, as in the background of a shell, stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
