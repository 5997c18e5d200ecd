"""Growing text for parsers that are generators, which yield when they need more text.

Text read since the last `mark` is kept, because it may turn out to be ordinary text. No step costs
as much as the whole text: read text is not copied again when more comes, and a search continues
where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Hashable, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

ResultT = TypeVar("ResultT")

Reading = Generator[None, None, ResultT]
"""Type of a parser step, which yields while it needs more text."""


class Lookahead(NamedTuple):
    """Result of a search in text that is not read yet. Positions count from the beginning of the
    answer."""

    begin: int
    reached: int
    """How far the search read."""
    end: int | None
    """End of what the search found; None: it found nothing."""


class CallSource:
    """Growing text and the position up to which it has been read."""

    def __init__(self) -> None:
        self._read: list[str] = []
        """Text read since the mark that is no longer in `_text`."""
        self._text = ""
        self._offset = 0
        """Position of `_text` in the answer."""
        self._at = 0
        """How much of `_text` is read."""
        self._mark = 0
        self._read_again = 0
        self.ended = False
        self.cut = False
        """Whether it ended where the model would have gone on."""
        self.lookaheads: dict[Hashable, Lookahead] = {}
        """The last search of each kind: a later one within it has the same result."""

    @property
    def position(self) -> int:
        """Number of characters read since the beginning of the answer."""
        return self._offset + self._at

    @property
    def available(self) -> int:
        """Number of characters that have arrived but are not read yet."""
        return len(self._text) - self._at

    def add(self, text: str) -> None:
        """Appends text."""
        if kept := self._text[max(0, self._mark - self._offset) : self._at]:
            self._read.append(kept)
        self._offset += self._at
        self._text = self._text[self._at :] + text
        self._at = 0

    def mark(self) -> None:
        """Sets the mark here; text before it is forgotten."""
        self._mark = self.position
        self._read.clear()

    def since_mark(self) -> str:
        """Returns the text read since the mark, and sets the mark here."""
        text = self.behind(self.position - self._mark)
        self.mark()
        return text

    def rewind(self) -> None:
        """Goes back to the mark."""
        self.go_back(self._mark)

    def go_back(self, position: int) -> None:
        """Goes back to `position`, which is not before the mark."""
        if position < self._offset:
            parts = [self._text]
            while self._offset > position:
                parts.append(self._read.pop())
                self._offset -= len(parts[-1])
            self._text = "".join(reversed(parts))
        self._at = position - self._offset

    def may_read_again(self, reached: int) -> bool:
        """Whether text up to `reached` may be read again from here. Limits re-reading: altogether
        no more of an answer is read twice than once."""
        characters = reached - self.position
        if self._read_again + characters > reached:
            return False
        self._read_again += characters
        return True

    def behind(self, characters: int) -> str:
        """The last characters before the position, at most `characters`, and none before the
        mark."""
        parts = [self._text[max(0, self._at - characters) : self._at]]
        missing = characters - len(parts[0])
        number = len(self._read)
        while missing > 0:
            number -= 1
            parts.append(self._read[number][-missing:])
            missing -= len(parts[-1])
        return "".join(reversed(parts))

    def ahead(self, characters: int, at: int = 0) -> str:
        """The next characters, at most `characters`, from `at` characters after the position on.
        They are not read."""
        return self._text[self._at + at : self._at + at + characters]

    def find(self, pattern: re.Pattern[str]) -> tuple[int, str] | None:
        """Number of characters before the pattern's first match, and the matched text; None without
        a match."""
        match = pattern.search(self._text, self._at)
        return None if match is None else (match.start() - self._at, match[0])

    def rest(self) -> str:
        """All text that has arrived and is not read yet."""
        return self._text[self._at :]

    def advance(self, characters: int) -> None:
        """Skips this many characters."""
        self._at += characters

    def peek(self) -> Reading[str]:
        """The next character; "" at the end."""
        while self._at == len(self._text) and not self.ended:
            yield
        return self._text[self._at : self._at + 1]

    @property
    def cut_here(self) -> bool:
        """Whether the text was cut off, and all of it is read."""
        return self.cut and self.ended and not self.available

    def at_any(self, literals: Sequence[str]) -> Reading[bool]:
        """Whether one of `literals` comes next."""
        longest = max(map(len, literals), default=0)
        while True:
            head = self.ahead(longest)
            if any(head.startswith(literal) for literal in literals):
                return True
            if self.ended or not any(literal.startswith(head) for literal in literals):
                return False
            yield

    def take(self, literal: str) -> Reading[bool]:
        """Reads `literal`, if it comes next."""
        if not (yield from self.at_any([literal])):
            return False
        self.advance(len(literal))
        return True

    def take_while(self, belongs: Callable[[str], bool], most: int | None = None) -> Reading[str]:
        """Reads characters while `belongs` holds, up to `most`."""
        taken: list[str] = []
        while len(taken) != most and (character := (yield from self.peek())) and belongs(character):
            taken.append(character)
            self.advance(1)
        return "".join(taken)

    def skip_space(self) -> Reading[None]:
        """Reads white space."""
        yield from self.take_while(str.isspace)

    def skip_to(self, literals: Sequence[str]) -> Reading[str | None]:
        """Reads to the first of `literals` and returns it; None: to the end of the text."""
        pattern = any_of(tuple(literals))
        while (match := self.find(pattern)) is None:
            self.advance(self.available - (0 if self.ended else self.possible_start(literals)))
            if self.ended:
                return None
            yield
        self.advance(match[0])
        return match[1]

    def skip_past(self, literal: str) -> Reading[None]:
        """Reads to the end of `literal`, or of the text."""
        if (yield from self.skip_to([literal])) is not None:
            self.advance(len(literal))

    def until(self, literals: Sequence[str], sink: Callable[[str], None]) -> Reading[str | None]:
        """Passes to `sink` the text before the first of `literals`, without its trailing white
        space. Reads the literal and returns it, with the mark set before that white space; None:
        the text ended first."""
        pattern = any_of(tuple(literals))
        self.mark()
        while True:
            match = self.find(pattern)
            before = match[0] if match else self.available - self.possible_start(literals)
            text = self.ahead(before)
            certain = text.rstrip()
            if certain:
                self.advance(len(certain))
                sink(self.since_mark())
            self.advance(before - len(certain))
            if match is not None:
                self.advance(len(match[1]))
                return match[1]
            if self.ended:
                self.rewind()
                return None
            yield

    def possible_start(self, literals: Sequence[str]) -> int:
        """Number of characters at the end of the available text that may begin one of
        `literals`."""
        longest = min(self.available, max(map(len, literals), default=0))
        return possible_start(self.ahead(longest, self.available - longest), literals)


@cache
def any_of(literals: tuple[str, ...]) -> re.Pattern[str]:
    """Pattern that matches any of `literals`; it never matches if there are none."""
    return re.compile("|".join(map(re.escape, literals)) or r"(?!)")


def possible_start(text: str, literals: Sequence[str]) -> int:
    """Length of the longest suffix of `text` that is a prefix of one of `literals`."""
    longest = min(len(text), max(map(len, literals), default=0) - 1)
    for length in range(longest, 0, -1):
        if any(literal.startswith(text[-length:]) for literal in literals):
            return length
    return 0
