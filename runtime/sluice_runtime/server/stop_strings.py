"""Finds stop strings in growing text, also across token borders. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string; what may be the start of one is held back.

    Which stop string wins does not depend on how the text was cut: the one that ends first, and
    of several that end together the longest.
    """

    def __init__(self, stops: Sequence[str], *, kept: bool = False) -> None:
        self._stops = tuple(stops)
        self._kept = kept
        """Whether the stop string is part of the answer."""
        self._held = ""
        self.found = False

    def push(self, text: str, *, honoured: bool = True) -> str:
        """The text that is certain to be part of the answer; "" once a stop string was found.

        One that ends in text which is not `honoured` is text like any other.
        """
        if self.found or not self._stops:
            return "" if self.found else text
        pending = self._held + text
        cut = self._first_stop(pending, len(self._held)) if honoured else None
        if cut is not None:
            self.found, self._held = True, ""
            return pending[:cut]
        held = self._possible_start(pending)
        self._held = pending[len(pending) - held :]
        return pending[: len(pending) - held]

    def finish(self) -> str:
        """The text that was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str, after: int) -> int | None:
        """Where the answer ends, for the stop string that ends first beyond `after` characters."""
        hits = []
        for stop in self._stops:
            at = text.find(stop, max(0, after - len(stop) + 1))
            if at >= 0:
                hits.append((at + len(stop), at))
        if not hits:
            return None
        end, start = min(hits)
        return end if self._kept else start

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
