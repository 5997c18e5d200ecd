"""Why requests went where they went: a log line for each pick at debug, and counts by reason.

Knows no engine; what is told it was decided elsewhere.
"""

from __future__ import annotations

import logging
from collections import Counter

from sluice_router.targets import TargetChoice

logger = logging.getLogger("sluice.router.pick")


class Picks:
    """Of one router, since its start."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By reason."""
        self.last: str | None = None
        """The last one, with the request's id."""

    def add(self, request_id: str, choice: TargetChoice) -> None:
        """A request goes to the choice's engines."""
        self.counts[choice.reason] += 1
        self.last = f"{request_id}: {choice.message}"
        logger.debug("%s", self.last)
