"""Budget of retries for all requests together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from sluice_router.errors import RetryReason

ENGINE_LOST: Final[frozenset[RetryReason]] = frozenset(
    {"connect", "broken", "unavailable", "prefill", "prefill_unavailable"}
)
"""Failures of all the requests that an engine has when it is lost, or leaves."""
LOST_TIMES: Final = 2
"""Retries of these failures, apart from all others, as a multiple of those of the others."""
RETRIED_SHARE: Final = 0.2
"""Retries that each request adds to the budget."""
RETRIES_PER_SECOND: Final = 10
"""Retries that each second adds to it, so that a few requests may always be retried."""
EXPIRY_SECONDS: Final = 10.0
"""Time constant with which retries that were not needed expire."""


class TokenBucket:
    """Retries that are left: each second adds some, and unused ones expire."""

    def __init__(self, clock: Callable[[], float], per_second: float, tokens: float) -> None:
        self._clock = clock
        self._per_second = per_second
        self._tokens = tokens
        self._counted_seconds = clock()

    def add(self, count: float) -> None:
        """Adds `count` to the retries that are left."""
        now = self._clock()
        kept = math.exp((self._counted_seconds - now) / EXPIRY_SECONDS)
        came = self._per_second * EXPIRY_SECONDS * (1 - kept)
        self._tokens, self._counted_seconds = self._tokens * kept + came + count, now

    def take(self) -> bool:
        """Take one; False if none is left."""
        self.add(0)
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class RetryBudget:
    """Retries that all requests together have left: each request adds to them.

    Where an engine is lost, all of its requests are retried at once, so these failures have retries
    of their own, and need the others only after them.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._others = TokenBucket(clock, RETRIES_PER_SECOND, RETRIES_PER_SECOND)
        lost_per_second = LOST_TIMES * RETRIES_PER_SECOND
        self._lost = TokenBucket(clock, lost_per_second, lost_per_second * EXPIRY_SECONDS)

    def request(self) -> None:
        """A request came."""
        self._others.add(RETRIED_SHARE)
        self._lost.add(LOST_TIMES * RETRIED_SHARE)

    def take(self, reason: RetryReason) -> TokenBucket | None:
        """Take one after such a failure, and return the bucket it came from; None if none is
        left."""
        buckets = (self._lost, self._others) if reason in ENGINE_LOST else (self._others,)
        return next((bucket for bucket in buckets if bucket.take()), None)
