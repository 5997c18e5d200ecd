"""What a policy may look at besides the waiting requests. Values only; made anew for each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from sluice_runtime.scheduler.request import Request


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose requests were admitted last: a routing key, and how many of its requests in a row."""

    key: str = ""
    picks: int = 0


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The engine as it is before a step."""

    now: float
    """Seconds, on the clock of `Request.arrival_seconds`."""
    load: float = 0.0
    """Share of the rows or of the pages in use, whichever is larger: 0 idle, 1 full."""
    running: Collection[Request] = ()
    matched_tokens: Callable[[Request], int] | None = None
    """Leading tokens of a request that the prefix cache holds; None: there is no prefix cache."""
    matched_path: Callable[[Request], Sequence[int]] | None = None
    """Numbers of the cache's nodes on a request's path, from the root; None as above."""
    turn: Turn = Turn()
    seed: int = 0

    def prefill_tokens(self, request: Request) -> int:
        """Tokens that would have to be computed before the request's next token."""
        cached = self.matched_tokens(request) if self.matched_tokens else 0
        return request.uncomputed_tokens - cached


Policy = Callable[[Sequence[Request], PolicyContext], Iterable[Request]]
"""(waiting requests, retracted ones first and then as they arrived; context) → the same requests in
the order in which they are offered to admission."""
