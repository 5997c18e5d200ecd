"""The engine's clock, passed in wherever time is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """`monotonic` is shared by all processes of a host; `unix` is for people and reports."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
