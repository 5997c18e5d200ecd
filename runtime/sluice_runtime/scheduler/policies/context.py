"""What a policy may look at besides the waiting requests. Values only; made anew for each step."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_runtime.scheduler.request import Request

MAX_LOOKED_UP: Final = 128
"""Above so many waiting requests, looking each of them up in the prefix cache would cost more than
it gains."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Whose requests were admitted last, and how many of them in a row."""

    key: tuple[str, str] = ("", "")
    """`Request.turn_key`."""
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
    ttft_seconds: float | None = None
    """In which a request should have its first token, from its arrival; None: nothing is promised.
    """
    token_seconds: float = 0.0
    """Predicted time to compute a prompt token; 0 while unknown."""
    ahead_seconds: float = 0.0
    """Predicted time for the rest of the prompt that is being computed."""

    def prefill_tokens(self, waiting: Sequence[Request]) -> Callable[[Request], int]:
        """Tells of each of `waiting` the tokens to compute before its next one: less those that are
        cached, where so many can be looked up."""
        matched = self.matched_tokens
        if matched is None or len(waiting) > MAX_LOOKED_UP:
            return lambda request: request.uncomputed_tokens
        return lambda request: request.uncomputed_tokens - matched(request)


Policy = Callable[[Sequence[Request], PolicyContext], Iterable[Request]]
"""(waiting requests, retracted ones first and then as they arrived; context) → the same requests in
the order in which they are offered to admission."""
