"""What the engine and the process that follows its grammars say to each other.

Over one pair of pipes grammar by grammar, its number and its text, and `Kept` for an answer; over
another `Turn` and `Turned`, one of each for a step. Masks are not in them: they lie in memory that
both have mapped, the mask of a turn's n-th line at the n-th place.
"""

from __future__ import annotations

from typing import Literal

import msgspec

LeftReason = Literal["slow", "starved", "crowded", "broken"]


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A grammar can be opened by turns now, or has an error."""

    error: str


class Opened(msgspec.Struct, frozen=True, array_like=True):
    """A new answer, of no tokens yet."""

    answer: int
    grammar: int
    end_token_ids: list[int]


class Line(msgspec.Struct, frozen=True, array_like=True):
    """An answer whose next mask is wanted. It has `kept` of the tokens that were told before, and
    then `drawn`."""

    answer: int
    kept: int
    drawn: list[int]
    most_seconds: float
    """Of a processor; after that it is not waited for."""


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """What changed since the last turn, and the lines of this one."""

    closed: list[int]
    forgotten: list[int]
    """Grammars."""
    opened: list[Opened]
    lines: list[Line]


class LeftLine(msgspec.Struct, frozen=True, array_like=True):
    """A line without a mask; its answer must not be asked for again."""

    place: int
    reason: LeftReason


class Turned(msgspec.Struct, frozen=True, array_like=True):
    """The masks of a turn's lines have been written."""

    seconds: list[float]
    """Of a processor, by line."""
    left: list[LeftLine]
    stuck: int
    """Threads that are still at work with lines that were left."""
