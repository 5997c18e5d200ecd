"""How much processor time a grammar may take, in one call and over an answer.

An ambiguous grammar costs more with every token, so each answer's time is summed up, and the answer
ends before its next token would cost more. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

MAX_CALL_SECONDS: Final = 0.05
"""For accepting one token and making the next mask. With 150,000 tokens ordinary schemas need up to
12 ms, and 0.02 to 4 ms on average."""
MAX_MEAN_SECONDS: Final = 0.015
"""For each token of an answer, beyond a first `MAX_CALL_SECONDS`."""
MAX_STEP_SECONDS: Final = 0.1
"""Of all rows of a step."""
FREE_SECONDS: Final = 0.01
"""A row that takes less is never given up because a step takes too long."""

SlowReason = Literal["slow", "crowded", "starved", "broken", "lost", "stuck"]


class TooSlow(NamedTuple):
    """Why an answer's grammar is given up."""

    reason: SlowReason
    error: str

    @property
    def own_fault(self) -> bool:
        """Whether the request itself is at fault, and not others or a busy machine."""
        return self.reason in ("slow", "stuck")

    @property
    def lasts(self) -> bool:
        """Whether the next answer with this grammar would be given up too."""
        return self.reason == "slow"


SLOW_CALL: Final = TooSlow(
    "slow",
    f"following it takes more than {MAX_CALL_SECONDS * 1e3:g} ms of a processor for one token; "
    f"allowed: at most {MAX_CALL_SECONDS * 1e3:g} ms",
)
SLOW_ANSWER: Final = TooSlow(
    "slow",
    "following it takes more than {0:g} ms of a processor a token; allowed: at most {0:g} ms "
    "on average, and {1:g} ms once".format(MAX_MEAN_SECONDS * 1e3, MAX_CALL_SECONDS * 1e3),
)
CROWDED: Final = TooSlow(
    "crowded",
    f"following the grammars of all requests takes more than {MAX_STEP_SECONDS * 1e3:g} ms of a "
    "processor a token, and this one takes most of it",
)
STARVED: Final = TooSlow("starved", "the machine is too busy to follow its grammar")
BROKEN: Final = TooSlow("broken", "following it failed, as for want of memory")
STUCK: Final = TooSlow(
    "stuck",
    "no token may follow what was drawn, and the answer is not complete; allowed: a grammar of "
    "which every beginning can be completed",
)
REFUSED: Final = TooSlow(
    "stuck",
    "the answer to go on from does not follow it; allowed: one that was drawn with this grammar",
)
LOST: Final = TooSlow("lost", "the process that followed its grammar has ended")


class Allowance:
    """What one answer has taken so far."""

    def __init__(self) -> None:
        self._tokens = 0
        self._seconds = 0.0

    def took(self, seconds: float) -> TooSlow | None:
        """Counts one more token; why the answer is given up, if it is."""
        self._tokens += 1
        self._seconds += seconds
        if seconds > MAX_CALL_SECONDS:
            return SLOW_CALL
        if self._seconds > MAX_CALL_SECONDS + MAX_MEAN_SECONDS * self._tokens:
            return SLOW_ANSWER
        return None


def crowding(seconds: Sequence[float]) -> list[int]:
    """The places of rows to give up, of rows that took so many seconds each in one step: the
    slowest, as few as bring the step below its limit."""
    total, chosen = sum(seconds), []
    for place in sorted(range(len(seconds)), key=lambda place: -seconds[place]):
        if total <= MAX_STEP_SECONDS or seconds[place] < FREE_SECONDS:
            break
        chosen.append(place)
        total -= seconds[place]
    return chosen
