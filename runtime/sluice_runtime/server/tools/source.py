"""Growing text, for parsers written as generators: they yield when they need more.

Text read since the last `mark` is kept, because it may turn out to be ordinary text.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

ResultT = TypeVar("ResultT")

Reading = Generator[None, None, ResultT]
"""A parser step; yields while the text does not suffice."""


class Source:
    """Growing text and the position up to which it has been read."""

    def __init__(self) -> None:
        self._text = ""
        """The text from the mark on."""
        self._at = 0
        self.ended = False
        self.cut = False
        """Whether it ended where the model would have gone on."""

    def add(self, text: str) -> None:
        """Appends text."""
        self._text += text

    def mark(self) -> None:
        """Forgets what was read so far."""
        self._text = self._text[self._at :]
        self._at = 0

    def since_mark(self) -> str:
        """Returns and forgets what was read since the mark."""
        text = self._text[: self._at]
        self.mark()
        return text

    def rewind(self) -> None:
        """Goes back to the mark."""
        self._at = 0

    def rest(self) -> str:
        """What has not been read yet."""
        return self._text[self._at :]

    def advance(self, characters: int) -> None:
        """Skips so many characters."""
        self._at += characters

    def peek(self) -> Reading[str]:
        """The next character; "" at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    @property
    def cut_here(self) -> bool:
        """Whether all is read of a text that was cut."""
        return self.cut_after(0)

    def cut_after(self, characters: int) -> bool:
        """Whether the text was cut, and no more than so many characters are left."""
        return self.cut and self.ended and len(self._text) - self._at <= characters

    def at_any(self, literals: Sequence[str]) -> Reading[bool]:
        """Whether one of `literals` comes next."""
        while True:
            rest = self.rest()
            if any(rest.startswith(literal) for literal in literals):
                return True
            if self.ended or not any(literal.startswith(rest) for literal in literals):
                return False
            yield

    def take(self, literal: str) -> Reading[bool]:
        """Reads `literal`, if it comes next."""
        while not self.ended and len(self.rest()) < len(literal):
            if not literal.startswith(self.rest()):
                return False
            yield
        if not self._text.startswith(literal, self._at):
            return False
        self._at += len(literal)
        return True

    def take_while(self, belongs: Callable[[str], bool]) -> Reading[str]:
        """Reads characters while `belongs` holds."""
        taken = ""
        while (character := (yield from self.peek())) and belongs(character):
            taken += character
            self._at += 1
        return taken

    def skip_space(self) -> Reading[None]:
        """Reads white space."""
        yield from self.take_while(str.isspace)

    def skip_past(self, literal: str) -> Reading[None]:
        """Reads to the end of `literal`, or of the text."""
        searched = self._at
        while (at := self._text.find(literal, searched)) < 0 and not self.ended:
            searched = max(self._at, len(self._text) - len(literal) + 1)
            yield
        self._at = len(self._text) if at < 0 else at + len(literal)

    def until(self, literals: Sequence[str], sink: Callable[[str], None]) -> Reading[str | None]:
        """Passes to `sink` what comes before the first of `literals`, without the white space at
        its end. Reads that literal and returns it, with the mark before the white space; None at
        the end of the text."""
        while True:
            rest = self.rest()
            first = min(
                [(at, literal) for literal in literals if (at := rest.find(literal)) >= 0],
                default=None,
            )
            if first is not None:
                before = rest[: first[0]].rstrip()
                sink(before)
                self._at += len(before)
                self.mark()
                self._at = first[0] - len(before) + len(first[1])
                return first[1]
            held_characters = possible_start(rest, literals)
            certain = rest[: len(rest) - held_characters].rstrip()
            sink(certain)
            self._at += len(certain)
            self.mark()
            if self.ended:
                return None
            yield


def possible_start(text: str, literals: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a prefix of one of `literals`."""
    longest = min(len(text), max(map(len, literals)) - 1)
    for length in range(longest, 0, -1):
        if any(literal.startswith(text[-length:]) for literal in literals):
            return length
    return 0
