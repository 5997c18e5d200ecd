"""What an engine does with requests besides computing them: the loop's one place for roles.

A mixed engine does nothing more. Prefill and decode engines speak with each other here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from sluice_contract.cluster.labels import Role as EngineRole
from sluice_contract.wire.load import HandoverQueues

from sluice_runtime.scheduler.batch import FinishedChunk
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import Generate, HandBack, HandoverLoad, TokenDelta

LAME_DUCK_SECONDS: Final = 3.0
"""How long a prefill engine that is to end takes new rooms: until routers know."""


class Role(Protocol):
    """Called by the loop between steps, in this order; no method waits."""

    @property
    def busy(self) -> bool:
        """Whether other engines or requests still need it."""
        ...

    def refusal(self, message: Generate) -> str | None:
        """Why a request of the API process is not taken, if so."""
        ...

    def abort(self, request_id: str) -> None:
        """The API process ends a request; the loop tells grammars and scheduler itself."""
        ...

    def hand_back(self, message: HandBack, now: float) -> int:
        """Ends requests that have not begun; returns how many."""
        ...

    def drain(self, lame_duck_seconds: float) -> None:
        """What was accepted is finished, and nothing else. `lame_duck_seconds`: how long other
        engines may still ask for more."""
        ...

    def give_up(self, error: str) -> None:
        """Ends what other engines still need it for."""
        ...

    def receive(self, now: float) -> None:
        """Takes in what has come from other engines."""
        ...

    def admit(self, message: Generate) -> None:
        """A request that has no grammar, or whose grammar is compiled."""
        ...

    def plan(self, now: float) -> None:
        """The next batch is about to be made."""
        ...

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        """Chunks of prompts whose pages are complete now."""
        ...

    def takes(self, delta: TokenDelta, now: float) -> bool:
        """Whether a result is for another engine, and not for the API process."""
        ...

    def queues(self, status: Status) -> HandoverQueues:
        """Requests on their way between engines."""
        ...

    def load(self, status: Status) -> HandoverLoad | None:
        """What the hand-over has done, for metrics."""
        ...


class MixedRole:
    """An engine that computes prompts and decodes them."""

    busy = False

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def refusal(self, message: Generate) -> str | None:
        if message.prefill is None:
            return None
        return "this engine computes prompts itself; it takes none from a prefill engine"

    def abort(self, request_id: str) -> None:
        """No other engine knows of it."""

    def hand_back(self, message: HandBack, now: float) -> int:
        if message.waits_for is not EngineRole.MIXED:
            return 0
        return self._scheduler.hand_back(message.requests, message.most, now)

    def drain(self, lame_duck_seconds: float) -> None:
        """The loop refuses new requests."""

    def give_up(self, error: str) -> None:
        """No other engine needs it."""

    def receive(self, now: float) -> None:
        """There are no other engines."""

    def admit(self, message: Generate) -> None:
        self._scheduler.add(message)

    def plan(self, now: float) -> None:
        """There is nothing to request from other engines."""

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        """No other engine waits for them."""

    def takes(self, delta: TokenDelta, now: float) -> bool:
        return False

    def queues(self, status: Status) -> HandoverQueues:
        return HandoverQueues()

    def load(self, status: Status) -> HandoverLoad | None:
        return None
