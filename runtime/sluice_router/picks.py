"""Why requests went where they went: counts by reason, the last picks, and a log line for each at
debug.

Knows no engine; what is told it was decided elsewhere.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from typing import Final, NamedTuple

from sluice_router.targets import TargetChoice

logger = logging.getLogger("sluice.router.pick")

KEPT: Final = 256
"""How many of the last picks can be asked for."""


class Pick(NamedTuple):
    """Whom one attempt of a request asks, and why."""

    request_id: str
    reason: str
    message: str
    """Names the engines and their loads, for people."""


class Picks:
    """Of one router, since its start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By reason."""
        self._recent: deque[Pick] = deque(maxlen=KEPT)

    @property
    def last(self) -> str | None:
        """The last one, with the request's id."""
        return _line(self._recent[-1]) if self._recent else None

    def add(self, request_id: str, choice: TargetChoice) -> None:
        """A request goes to the choice's engines."""
        self.counts[choice.reason] += 1
        pick = Pick(request_id, choice.reason, choice.message)
        self._recent.append(pick)
        logger.debug("%s", _line(pick))

    def recent(self, request_id: str | None = None) -> list[Pick]:
        """The last ones, of one request or of all, newest first."""
        return [p for p in reversed(self._recent) if request_id in (None, p.request_id)]


def _line(pick: Pick) -> str:
    return f"{pick.request_id}: {pick.message}"
