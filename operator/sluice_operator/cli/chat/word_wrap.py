"""Breaks streamed text between words at the edge of a terminal.

Holds no text back: a word that reaches the edge is erased, and written again on the next line.
"""

from __future__ import annotations

import unicodedata
from typing import Final

TAB_CELLS: Final = 8
ERASE: Final = "\x1b[{}D\x1b[K"
"""Moves the cursor back by cells, and clears the line from there."""


class WordWrap:
    """One answer that begins at the left edge of a terminal. A word longer than a line is broken by
    the terminal."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._before = 0
        """Cells of the line before the word that is being written."""
        self._word, self._cells = "", 0

    def chunk(self, text: str) -> str:
        """What shows the next piece of the text."""
        return "".join(map(self._sign, text))

    def _sign(self, sign: str) -> str:
        if sign == "\n":
            self._end_word(0)
            return sign
        cells = cells_of(sign)
        if sign == "\t":
            cells = TAB_CELLS - (self._before + self._cells) % TAB_CELLS
        if sign.isspace():
            self._end_word((self._before + self._cells + cells) % self._columns)
            return sign
        if cells == 2:  # lines may break on both sides of it
            self._end_word(self._before + self._cells)
        # The last cell stays free, since terminals differ in where the cursor is behind it.
        is_over = self._before + self._cells + cells >= self._columns
        moved = self._next_line() if self._before and is_over else ""
        self._word, self._cells = self._word + sign, self._cells + cells
        if cells == 2:
            self._end_word(self._before + self._cells)
        return moved + sign

    def _next_line(self) -> str:
        """What moves the word to the next line."""
        self._before = 0
        return (ERASE.format(self._cells) if self._cells else "") + "\n" + self._word

    def _end_word(self, before: int) -> None:
        self._before, self._word, self._cells = before, "", 0


def cells_of(sign: str) -> int:
    """Cells of a printable character in a terminal."""
    if unicodedata.combining(sign):
        return 0
    return 2 if unicodedata.east_asian_width(sign) in "WF" else 1
