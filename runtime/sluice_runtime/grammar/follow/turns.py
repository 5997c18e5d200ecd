"""Messages between the engine and a mask worker.

One pair of pipes carries grammars, each a number and a text, with `Kept` as the reply; another
carries `Turn` and `Turned`, one of each a step. Masks are in shared memory, the mask of a turn's
n-th line in row n.
"""

from __future__ import annotations

from typing import Literal

import msgspec

LeftReason = Literal["slow", "starved", "crowded", "broken", "refused"]
"""`refused`: the grammar forbids a token that was drawn; only where another engine drew it."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """Turns can open answers of a grammar now, or it has an error."""

    error: str


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """A new answer, of no tokens yet."""

    answer: int
    grammar: int
    end_token_ids: list[int]


class Line(msgspec.Struct, frozen=True, array_like=True):
    """An answer whose next mask is wanted. Its tokens are the first `kept` that were sent before,
    and then `drawn`."""

    answer: int
    kept: int
    drawn: list[int]
    max_seconds: float
    """Processor time, after which the line is abandoned."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """What changed since the last turn, and the lines of this one."""

    closed: list[int]
    forgotten: list[int]
    """Grammars."""
    opened: list[Opened]
    lines: list[Line]


class LeftLine(msgspec.Struct, frozen=True, array_like=True):
    """A line without a mask; later turns must not have lines of its answer."""

    place: int
    reason: LeftReason


class Turned(msgspec.Struct, frozen=True, array_like=True):
    """The masks of a turn's lines have been written."""

    seconds: list[float]
    """Processor time, by line."""
    left: list[LeftLine]
    stuck: int
    """Threads that are still busy with abandoned lines."""
