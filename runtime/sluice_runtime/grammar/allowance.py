"""How much of a processor following a grammar may take, in one call and over an answer.

An ambiguous grammar costs more with every token: so what an answer took is counted, and it is given
up before the next token would take more. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

MOST_CALL_SECONDS: Final = 0.05
"""Of one token taken in and the mask behind it. With 150,000 tokens ordinary schemas need up to
12 ms, and 0.02 to 4 on average."""
MOST_MEAN_SECONDS: Final = 0.015
"""For each token of an answer, beyond a first `MOST_CALL_SECONDS`."""
MOST_STEP_SECONDS: Final = 0.1
"""Of all rows of a step."""
FREE_SECONDS: Final = 0.01
"""A row that takes less is never given up for the sake of the others."""

SlowReason = Literal["slow", "crowded", "starved", "broken", "lost", "stuck"]


class TooSlow(NamedTuple):
    """Why an answer's grammar is not followed any further."""

    reason: SlowReason
    error: str

    @property
    def own_fault(self) -> bool:
        """And not that of the other requests, of a busy machine, or of nobody."""
        return self.reason in ("slow", "stuck")

    @property
    def lasts(self) -> bool:
        """Whether the next answer would fare no better."""
        return self.reason == "slow"


SLOW_CALL: Final = TooSlow(
    "slow",
    f"following it takes more than {MOST_CALL_SECONDS * 1e3:g} ms of a processor for one token; "
    f"allowed: at most {MOST_CALL_SECONDS * 1e3:g} ms",
)
SLOW_ANSWER: Final = TooSlow(
    "slow",
    "following it takes more than {0:g} ms of a processor a token; allowed: at most {0:g} ms "
    "on average, and {1:g} ms once".format(MOST_MEAN_SECONDS * 1e3, MOST_CALL_SECONDS * 1e3),
)
CROWDED: Final = TooSlow(
    "crowded",
    f"following the grammars of all requests takes more than {MOST_STEP_SECONDS * 1e3:g} ms of a "
    "processor a token, and this one takes most of it",
)
STARVED: Final = TooSlow("starved", "the machine is too busy to follow its grammar")
BROKEN: Final = TooSlow("broken", "following it failed, as for want of memory")
STUCK: Final = TooSlow(
    "stuck",
    "no token may follow what was drawn, and the answer is not complete; allowed: a grammar of "
    "which every beginning can be completed",
)
LOST: Final = TooSlow("lost", "the process that followed its grammar has ended")


class Allowance:
    """What one answer took so far."""

    def __init__(self) -> None:
        self._tokens = 0
        self._seconds = 0.0

    def took(self, seconds: float) -> TooSlow | None:
        """So long for one more token; what is wrong with that, if anything."""
        self._tokens += 1
        self._seconds += seconds
        if seconds > MOST_CALL_SECONDS:
            return SLOW_CALL
        if self._seconds > MOST_CALL_SECONDS + MOST_MEAN_SECONDS * self._tokens:
            return SLOW_ANSWER
        return None


def crowding(seconds: Sequence[float]) -> list[int]:
    """Of rows that took so long each in one step, the places of those to give up: the dearest, as
    few as bring the step below its limit."""
    total, chosen = sum(seconds), []
    for place in sorted(range(len(seconds)), key=lambda place: -seconds[place]):
        if total <= MOST_STEP_SECONDS or seconds[place] < FREE_SECONDS:
            break
        chosen.append(place)
        total -= seconds[place]
    return chosen
