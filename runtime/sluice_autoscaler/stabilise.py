"""Fast up, slow down: how much a pool may change in one decision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.decision import engines
from sluice_autoscaler.history import History, Tick

DOWN_SECONDS: Final = 60.0
"""Shortest window over which a pool's need must have been smaller before it shrinks."""
BOOT_TIMES: Final = 2
"""Length of the window in start times, because a removed engine takes one start time to return."""
ANSWER_TIMES: Final = 3
"""Length of the window in answers, because a removed engine holds its GPU until its last answer
ends."""
MAX_DOWN_SECONDS: Final = 300.0
RATE_SECONDS: Final = 15.0
MAX_ADDED: Final = 4
"""Most engines that a pool adds within `RATE_SECONDS`, if doubling its size does not allow more."""
SHRINK_SECONDS: Final = 90.0
"""Least time between two shrinks of a pool; each removes all engines that are not needed."""
SMALLEST_SHARE: Final = 0.5
"""Smallest size after a shrink, as a share of the size before; one engine may always go. So 64
engines become one in nine minutes."""


@dataclass(frozen=True, slots=True)
class LimitedChange:
    """A change after limits, and why it was limited."""

    engines: int
    reason: str = ""
    message: str = ""


def window_seconds(boot_seconds: float, answer_seconds: float) -> float:
    """Time for which a pool's need must have been smaller before the pool shrinks. `boot_seconds`:
    length of an engine's start; `answer_seconds`: length of an answer."""
    longest = max(DOWN_SECONDS, BOOT_TIMES * boot_seconds, ANSWER_TIMES * answer_seconds)
    return min(MAX_DOWN_SECONDS, longest)


def stabilised(
    history: History, role: Role, now: float, current: int, desired: int, down_seconds: float
) -> LimitedChange:
    """`desired` engines, limited by the changes of the last minutes. `down_seconds`: see
    `window_seconds`."""
    if desired > current:
        return _grown(history, role, now, current, desired)
    if desired < current:
        return _shrunk(history, role, now, current, desired, down_seconds)
    return LimitedChange(current)


def _grown(history: History, role: Role, now: float, current: int, desired: int) -> LimitedChange:
    lately = _sizes(history.since(now - RATE_SECONDS), role)
    start = min((*lately, current))
    most = max(start + MAX_ADDED, 2 * start)
    if desired <= most:
        return LimitedChange(desired)
    text = f"at most {engines(most)} within {RATE_SECONDS:.0f} s"
    return LimitedChange(max(current, most), "RateLimited", text)


def _shrunk(
    history: History, role: Role, now: float, current: int, desired: int, down_seconds: float
) -> LimitedChange:
    if not _knows(history, role, now - down_seconds, now):
        text = f"a pool shrinks once its load is known for {down_seconds:.0f} s"
        return LimitedChange(current, "Stabilising", text)
    before = [_need_of(tick, role, current) for tick in history.since(now - down_seconds)]
    least = max(desired, *before) if before else desired
    if least >= current:
        text = f"{engines(least, ('was', 'were'))} wanted in the last {down_seconds:.0f} s"
        return LimitedChange(current, "Stabilising", text)
    if max(_sizes(history.since(now - SHRINK_SECONDS), role), default=0) > current:
        text = f"it has shrunk in the last {SHRINK_SECONDS:.0f} s"
        return LimitedChange(current, "RateLimited", text)
    floor = min(current - 1, int(current * SMALLEST_SHARE))
    if least >= floor:
        return LimitedChange(least)
    text = f"at least {engines(floor)} for {SHRINK_SECONDS:.0f} s"
    return LimitedChange(floor, "RateLimited", text)


def _knows(history: History, role: Role, since: float, now: float) -> bool:
    """Whether the pool's need is known from `since` on."""
    first = next(iter(history.ticks), None)
    return first is not None and role in first.decision.pools and history.covers(since, now)


def _need_of(tick: Tick, role: Role, current: int) -> int:
    """The pool's need at a tick; `current` if it is unknown."""
    pool = tick.decision.pools.get(role)
    return current if pool is None or pool.wanted is None else pool.wanted


def _sizes(ticks: Iterable[Tick], role: Role) -> list[int]:
    return [tick.decision.pools[role].desired for tick in ticks if role in tick.decision.pools]
