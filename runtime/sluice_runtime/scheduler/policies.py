"""The order in which waiting requests are offered to admission: a registry of pure functions.

A policy only orders. What fits is decided by `admission`, which stops at the first request that
does not, so the head of the order cannot starve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sluice_runtime.scheduler.request import Request

Policy = Callable[[Iterable[Request], float], Iterable[Request]]
"""(waiting requests in arrival order, now in seconds) → the same requests in order of admission."""


def first_come_first_served(waiting: Iterable[Request], now: float) -> Iterable[Request]:
    """As they arrived; retracted requests, which arrived earlier, are in front already."""
    del now
    return waiting


POLICIES: Final[Mapping[str, Policy]] = {"fcfs": first_come_first_served}
