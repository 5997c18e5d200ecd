"""The role of an engine: hooks for everything that the loop does with requests besides computing
them.

In a mixed engine the hooks do almost nothing. Prefill and decode engines communicate in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from sluice_contract.cluster.labels import Role as Role
from sluice_contract.wire.load import HandoverQueues

from sluice_runtime.scheduler.batch import FinishedChunk
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import Generate, HandBack, HandoverLoad, TokenDelta

LAME_DUCK_SECONDS: Final = 3.0
"""Time for which a prefill engine that will end still accepts new rooms, so that routers learn of
it."""


class EngineRole(Protocol):
    """Hooks that the loop calls between steps, in this order; no method waits."""

    @property
    def busy(self) -> bool:
        """Whether other engines or requests still need this engine."""
        ...

    def refusal(self, message: Generate) -> str | None:
        """Explains why a request of the API process is not accepted; None if it is."""
        ...

    def abort(self, request_id: str) -> None:
        """Called when the API process ends a request; the loop informs grammars and scheduler
        itself."""
        ...

    def hand_back(self, message: HandBack, now: float) -> int:
        """Ends requests that have not begun; returns their number."""
        ...

    def drain(self, lame_duck_seconds: float) -> None:
        """Begins draining: accepted work is finished, and nothing new is accepted.
        `lame_duck_seconds`: how long other engines may still ask for more."""
        ...

    def give_up(self, error: str) -> None:
        """Ends the work for which other engines still need this one."""
        ...

    def receive(self, now: float) -> None:
        """Processes messages from other engines."""
        ...

    def admit(self, message: Generate) -> None:
        """Admits a request that has no grammar, or whose grammar is compiled."""
        ...

    def plan(self, now: float) -> None:
        """Prepares for the next batch, which is about to be made."""
        ...

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        """Called with chunks of prompts whose pages are complete now."""
        ...

    def takes(self, delta: TokenDelta, now: float) -> bool:
        """Whether a result is for another engine, and not for the API process."""
        ...

    def queues(self, status: Status) -> HandoverQueues:
        """Requests on their way between engines."""
        ...

    def load(self, status: Status) -> HandoverLoad | None:
        """Counts of the hand-over, for metrics."""
        ...


class MixedRole:
    """Role of an engine that computes prompts and decodes."""

    busy = False

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def refusal(self, message: Generate) -> str | None:
        if message.prefill is None:
            return None
        return "this engine computes prompts itself; it takes none from a prefill engine"

    def abort(self, request_id: str) -> None:
        """Does nothing: no other engine knows of the request."""

    def hand_back(self, message: HandBack, now: float) -> int:
        if message.waits_for is not Role.MIXED:
            return 0
        return self._scheduler.hand_back(message.requests, message.most, now)

    def drain(self, lame_duck_seconds: float) -> None:
        """Does nothing: the loop refuses new requests."""

    def give_up(self, error: str) -> None:
        """Does nothing: no other engine needs this one."""

    def receive(self, now: float) -> None:
        """Does nothing: there are no other engines."""

    def admit(self, message: Generate) -> None:
        self._scheduler.add(message)

    def plan(self, now: float) -> None:
        """Does nothing: there is nothing to request from other engines."""

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        """Does nothing: no other engine waits for the chunks."""

    def takes(self, delta: TokenDelta, now: float) -> bool:
        return False

    def queues(self, status: Status) -> HandoverQueues:
        return HandoverQueues()

    def load(self, status: Status) -> HandoverLoad | None:
        return None
