"""The engine's clock, passed in wherever time is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

HEARTBEAT_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Clock:
    """`monotonic` is shared by all processes of a host; `unix` is for people and reports."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """An engine without anything to say says so this often."""
