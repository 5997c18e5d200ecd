"""How long each wait of a hand-over may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HandoverLimits:
    """Deadlines, in seconds."""

    total_seconds: float = 300.0
    """Seconds from a request's arrival until it decodes, and of a prefill engine's work for a
    room."""
    hold_seconds: float = 60.0
    """How long a prefill engine keeps the pages of a prompt that is computed."""
    transfer_seconds: float = 60.0
    """Seconds from the first token until all pages are read."""
    attest_seconds: float = 15.0
    """Seconds from the last page until the prefill engine attests that it held them."""
    check_seconds: float = 0.5
    """How often deadlines are looked at."""
