"""The failed attempts of one call: whom to leave out next, and when to give up.

Pure state; sends nothing and picks nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from sluice_router.engines import EngineState
from sluice_router.failures import AttemptFailedError, RetryReason
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


@dataclass
class History:
    """The failed attempts of one call."""

    met: set[str] = field(default_factory=set)
    """Keys of engines that took part in one."""
    tried: set[str] = field(default_factory=set)
    """Keys of engines that failed: they are asked again only after all others."""
    failure: AttemptFailedError | None = None
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
        self.caused += failure.reason in MAY_BE_THE_REQUEST
        if self.caused >= MAX_SUCH_FAILURES:
            raise failure.error

    def left_out(self) -> list[set[str]]:
        """Keys of engines that the next attempt is made without: the first of these that leaves
        anyone to ask."""
        if self.met == self.tried:
            return [self.met]
        others = self.met - self.tried
        # A 429 does not say which of two queues is full: perhaps that of the engine not blamed.
        either_is_full = self.failure is not None and self.failure.reason == "queue_full"
        return [self.met, self.tried, *([others] if either_is_full else [])]

    def forget_engines(self) -> None:
        """All were tried: any may be asked again."""
        self.met.clear()
        self.tried.clear()


def blamed(target: Target, failure: AttemptFailedError) -> EngineState:
    """The engine of a failed attempt that did not do its part."""
    if failure.reason in PREFILL_AT_FAULT and target.prefill is not None:
        return target.prefill
    return target.engine
