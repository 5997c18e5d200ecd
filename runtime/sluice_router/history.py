"""The failed attempts of one call: whom to leave out next, and when to give up; and how many
attempts all calls together have left.

Pure state; sends nothing and picks nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from sluice_router.engines import EngineState
from sluice_router.errors import AttemptFailedError, RetryReason, RouterError, soonest
from sluice_router.targets import Target

ENGINE_NOT_AT_FAULT: Final[frozenset[RetryReason]] = frozenset(
    {"queue_full", "uncompiled", "out_of_memory", "mismatch", "signature", "slow_client"}
)
PREFILL_AT_FAULT: Final[frozenset[RetryReason]] = frozenset({"prefill", "prefill_unavailable"})
"""Of a pair; of any other failure its decode engine is."""
MAY_BE_THE_REQUEST: Final[frozenset[RetryReason]] = frozenset(
    {"broken", "uncompiled", "out_of_memory", "prefill", "slow_client"}
)
"""Failures that the request, or its client, may have caused."""
MAX_SUCH_FAILURES: Final = 2
"""After as many of them a request is not retried: it is unlikely that every engine is at fault."""
RETRIED_SHARE: Final = 0.2
"""Retries that each request adds to the budget."""
RETRIES_PER_SECOND: Final = 10
"""Retries that each second adds to it: so few requests may all be retried."""
EXPIRY_SECONDS: Final = 10.0
"""Time constant with which retries that were not needed expire."""


class RetryBudget:
    """How many more attempts there may be, of all requests together: a bucket of tokens. There are
    never more than it held, and what requests and seconds have added since."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tokens = float(RETRIES_PER_SECOND)
        self._counted_seconds = clock()

    @property
    def empty(self) -> bool:
        """Whether there is none to be had now."""
        return self._left(self._clock()) < 1

    def request(self) -> None:
        """A request came."""
        self._add(RETRIED_SHARE)

    def retry(self) -> None:
        """One was retried."""
        self._add(-1)

    def _add(self, count: float) -> None:
        now = self._clock()
        self._tokens, self._counted_seconds = self._left(now) + count, now

    def _left(self, now: float) -> float:
        kept = math.exp((self._counted_seconds - now) / EXPIRY_SECONDS)
        return self._tokens * kept + RETRIES_PER_SECOND * EXPIRY_SECONDS * (1 - kept)


@dataclass
class History:
    """The failed attempts of one call."""

    met: set[str] = field(default_factory=set)
    """Keys of engines that took part in one."""
    tried: set[str] = field(default_factory=set)
    """Keys of engines that failed: they are asked again only after all others."""
    failure: AttemptFailedError | None = None
    """The last one."""
    full: list[RouterError] = field(default_factory=list)
    """What engines with a full queue said."""
    caused: int = 0
    """Failures that the request may have caused."""

    def add(self, target: Target, failure: AttemptFailedError) -> None:
        """Record one more failed attempt.

        Raises:
            RouterError: the call is not retried.
        """
        self.met.update(target.keys)
        self.tried.add(blamed(target, failure).key)
        self.failure = failure
        if failure.reason == "queue_full":
            self.full.append(failure.error)
        self.caused += failure.reason in MAY_BE_THE_REQUEST
        if self.caused >= MAX_SUCH_FAILURES:
            raise failure.error

    @property
    def queue_is_full(self) -> bool:
        """Whether the last failure says so."""
        return self.failure is not None and self.failure.reason == "queue_full"

    @property
    def error(self) -> RouterError:
        """What the client is told when nobody else is asked."""
        assert self.failure is not None, "somebody was asked"
        return soonest(self.full) if self.queue_is_full else self.failure.error

    def left_out(self) -> list[set[str]]:
        """Keys of engines that the next attempt is made without: the first of these that leaves
        anyone to ask."""
        if self.met == self.tried:
            return [self.met]
        others = self.met - self.tried
        # A 429 does not say which of two queues is full: perhaps that of the engine not blamed.
        return [self.met, self.tried, *([others] if self.queue_is_full else [])]

    def forget_engines(self) -> None:
        """All were tried: any may be asked again."""
        self.met.clear()
        self.tried.clear()


def blamed(target: Target, failure: AttemptFailedError) -> EngineState:
    """The engine of a failed attempt that did not do its part."""
    if failure.reason in PREFILL_AT_FAULT and target.prefill is not None:
        return target.prefill
    return target.engine
