"""How much of its clients' bytes the router holds at once: one budget for heads and bodies.

A body is held until an engine has begun to answer, because until then the request may have to be
offered to another engine. Knows no routes and no engines.
"""

from __future__ import annotations

from typing import Final

import aiohttp

from sluice_router.errors import OverloadedError

SMALL_BYTES: Final = 65_536
LARGE_SHARE: Final = 0.75
"""Share of the budget that requests above `SMALL_BYTES` may fill: the rest lets others pass."""


class ByteBudget:
    """Counts the bytes that are held."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held = 0

    def take(self, count: int, holder_bytes: int) -> None:
        """Count `count` more bytes of a request that then holds `holder_bytes`.

        Raises:
            OverloadedError: they are beyond the budget; nothing was counted.
        """
        share = 1.0 if holder_bytes <= SMALL_BYTES else LARGE_SHARE
        if self.held + count > self._max_bytes * share:
            message = (
                f"the router holds {self.held} bytes of requests; allowed: {self._max_bytes} "
                "(server.maxBufferedBytes)"
            )
            raise OverloadedError(message)
        self.held += count

    def give_back(self, count: int) -> None:
        """Bytes are no longer held."""
        self.held -= count


class Body:
    """A request's body, counted against the budget from its first byte until it is released."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._pieces: list[bytes] = []
        self._taken = 0
        self.content = b""

    async def read(self, stream: aiohttp.StreamReader, max_bytes: int) -> bool:
        """Read it to its end; False when it is longer than `max_bytes`.

        Raises:
            OverloadedError: it does not fit into the budget.
        """
        while not stream.at_eof():
            self._add(await stream.readany())
            if self._taken > max_bytes:
                return False
        self.content = b"".join(self._pieces)
        self._pieces.clear()
        return True

    def release(self) -> None:
        """The body is no longer needed."""
        self.content = b""
        self._pieces.clear()
        self._budget.give_back(self._taken)
        self._taken = 0

    def _add(self, piece: bytes) -> None:
        self._budget.take(len(piece), self._taken + len(piece))
        self._taken += len(piece)
        self._pieces.append(piece)
