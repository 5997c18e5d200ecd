"""Finds stop strings in growing text, also across token borders. Knows no tokens."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Passes text on until a stop string; what may be the start of one is held back.

    Which stop string wins does not depend on how the text was cut: the one that ends first, and
    of several that end together the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """The text that is certain to come before any stop string; "" once one was found."""
        if self.found or not self._stops:
            return "" if self.found else text
        pending = self._held + text
        start = self._first_stop(pending)
        if start is not None:
            self.found, self._held = True, ""
            return pending[:start]
        held = self._possible_start(pending)
        self._held = pending[len(pending) - held :]
        return pending[: len(pending) - held]

    def finish(self) -> str:
        """The text that was held back and is no stop string after all."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string that ends first begins."""
        hits = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        return min(hits)[1] if hits else None

    def _possible_start(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(len(stop) for stop in self._stops) - 1)
        for length in range(longest, 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
