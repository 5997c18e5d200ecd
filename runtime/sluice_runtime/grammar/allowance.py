"""How much of a processor following a grammar may take, in one call and over an answer.

The library cannot be interrupted, and an ambiguous grammar costs more with every token: so what an
answer took is counted, and it is given up before the next token would take more. Reads no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_CALL_SECONDS: Final = 0.05
"""Of one mask, or of one token taken in. With 150,000 tokens ordinary schemas need up to 12 ms,
and 0.02 to 4 on average."""
MOST_MEAN_SECONDS: Final = 0.015
"""For each token of an answer, beyond a first `MOST_CALL_SECONDS`."""
MOST_STEP_SECONDS: Final = 0.1
"""Of all rows of a step."""
FREE_SECONDS: Final = 0.01
"""A row that takes less is never given up for the sake of the others."""

SLOW_CALL: Final = (
    "following it takes more than {0:g} ms of a processor for one token; allowed: at most {0:g} ms"
).format(MOST_CALL_SECONDS * 1e3)
SLOW_ANSWER: Final = (
    "following it takes more than {0:g} ms of a processor a token; allowed: at most {0:g} ms "
    "on average, and {1:g} ms once"
).format(MOST_MEAN_SECONDS * 1e3, MOST_CALL_SECONDS * 1e3)
CROWDED: Final = (
    f"following the grammars of all requests takes more than {MOST_STEP_SECONDS * 1e3:g} ms of a "
    "processor a token, and this one takes most of it"
)


class Allowance:
    """What one answer took so far."""

    def __init__(self) -> None:
        self._tokens = 0
        self._seconds = 0.0

    def masked(self, seconds: float) -> str | None:
        """One more mask was made; what is wrong with that, if anything."""
        self._tokens += 1
        return self.took(seconds)

    def took(self, seconds: float) -> str | None:
        """So long by one call; what is wrong with that, if anything."""
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
