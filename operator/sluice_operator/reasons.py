"""The reasons of Ready and Updated that more than one module has to know, and what they mean.

Others are said in one place only, beside the check that finds them.
"""

from __future__ import annotations

from typing import Final

SERVING: Final = "Serving"
"""Of Ready, where it is True."""
ALL_READY: Final = "AllReady"
"""Of Updated, where it is True and engines are asked for."""
SCALED_TO_ZERO: Final = "ScaledToZero"
APPLYING: Final = "Applying"
STARTING: Final = "Starting"
ROLLING_OUT: Final = "RollingOut"
"""The former revision serves meanwhile."""
PAUSED: Final = "Paused"
EDITED: Final = "Edited"
"""Somebody has changed a pool, which its service has not set back yet."""
APPLY_FAILED: Final = "ApplyFailed"
"""The API server refuses a child."""
PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
"""A Deployment's own word."""

HEALTHY: Final = frozenset(
    {ALL_READY, SCALED_TO_ZERO, APPLYING, STARTING, ROLLING_OUT, PAUSED, EDITED}
)
"""Part of an ordinary life; all others are worth a warning. (Of an edit the one who sets it back
tells.)"""
STALLING: Final = frozenset({APPLY_FAILED, PROGRESS_DEADLINE_EXCEEDED})
"""They need a person, whatever else there is."""
