"""Separates growing text into reasoning and the text after it.

White space around the reasoning belongs to neither.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sluice_runtime.server.tools.source import CallSource, Reading


class SeparatedText(NamedTuple):
    """Text separated into reasoning and answer."""

    reasoning: str
    text: str


class ReasoningParser:
    """Separates reasoning from text in one answer. `begun`: the answer starts inside the reasoning,
    or needs no marker for it."""

    def __init__(self, begin: str, end: str, *, begun: bool) -> None:
        self._source = CallSource()
        self._pushed = 0
        """Characters."""
        self._border: float | None = None
        """Characters before the end of the reasoning; None: not known whether there is any."""
        self._uncounted: list[int] = []
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._reading = self._read(begin, end, begun)

    def push(self, text: str) -> SeparatedText:
        """Adds text; returns the parts that are certainly reasoning or certainly answer."""
        self._source.add(text)
        self._pushed += len(text)
        return self._read_on()

    @property
    def over(self) -> bool:
        """Whether all further text is certainly answer; once true, stays true."""
        return self._border is not None and self._border < math.inf

    def finish(self) -> SeparatedText:
        """Text that was held back until the end."""
        self._source.ended = True
        return self._read_on()

    def count(self, starts: Sequence[int]) -> int:
        """Number of further tokens that are certainly reasoning, including markers. `starts`:
        position in characters of each token pushed since the last call."""
        self._uncounted += starts
        if self._border is None:
            return 0
        counted = sum(start < self._border for start in self._uncounted)
        self._uncounted.clear()
        return counted

    def _read_on(self) -> SeparatedText:
        next(self._reading, None)
        parted = SeparatedText("".join(self._reasoning), "".join(self._text))
        self._reasoning.clear()
        self._text.clear()
        return parted

    def _read(self, begin: str, end: str, begun: bool) -> Reading[None]:
        source = self._source
        yield from source.skip_space()
        marked = yield from source.take(begin)
        self._border = math.inf if marked or begun else 0
        if marked or begun:
            yield from source.skip_space()
            source.mark()
            if (yield from source.until([end], self._reasoning.append)) is None:
                rest = source.rest()  # white space, or the beginning of a marker
                self._reasoning.append(rest if rest.strip() else "")
                return
            self._border = self._pushed - len(source.rest())
            source.mark()
            yield from source.skip_space()
            source.mark()
        while True:
            source.advance(len(source.rest()))
            self._text.append(source.since_mark())
            if source.ended:
                return
            yield
