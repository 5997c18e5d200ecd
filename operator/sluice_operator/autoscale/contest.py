"""Whether somebody else scales a pool too, so that two would write against each other.

One write from outside is replaced: a person tried something. Another soon after is a
HorizontalPodAutoscaler or a script, and the pool is left to it until it has been silent for long.
Knows no cluster; who has written is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

AGAIN_SECONDS: Final = 300.0
"""Two writes from outside within so many seconds are a contest."""
SILENT_SECONDS: Final = 600.0
"""After the last of them the pool is scaled again."""

Write = tuple[str, str]
"""A field manager, and when it wrote last."""


@dataclass
class _Outside:
    writes: frozenset[Write]
    times: list[float] = field(default_factory=list)
    managers: tuple[str, ...] = ()


class Contests:
    """Writes from outside, by the uid of the EnginePool."""

    def __init__(self) -> None:
        self._seen: dict[str, _Outside] = {}

    def seen(self, uid: str, writes: frozenset[Write], now: float) -> None:
        """Who but the operator owns the replicas of a pool, since when. What is there at first is
        of whoever scaled it before."""
        known = self._seen.setdefault(uid, _Outside(writes))
        if writes - known.writes:
            known.times = [*known.times[-1:], now]
            known.managers = tuple(sorted({manager for manager, _ in writes}))
        known.writes = writes

    def rivals(self, uid: str, now: float) -> tuple[str, ...]:
        """Who else scales the pool; empty where nobody does."""
        known = self._seen.get(uid)
        if known is None or len(known.times) < 2:
            return ()
        first, last = known.times
        contested = last - first <= AGAIN_SECONDS and now - last <= SILENT_SECONDS
        return known.managers if contested else ()

    def forget(self, uid: str) -> None:
        """The pool is gone."""
        self._seen.pop(uid, None)
