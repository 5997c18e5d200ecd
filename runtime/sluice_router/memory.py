"""How much of its clients' bytes the router holds at once: one budget for heads, bodies and answers
that are held until they are whole.

A body is held until an engine has begun to answer, because until then the request may have to be
offered to another engine. After that it may stay as a spare, with what came of the answer: it is
dropped, the oldest first, when a new request needs its bytes. Knows no routes and no engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import aiohttp

from sluice_router.errors import OverloadedError
from sluice_router.tenants import Shares

SMALL_BYTES: Final = 65_536
LARGE_SHARE: Final = 0.75
"""Share of the budget that requests above `SMALL_BYTES` may fill: the rest lets others pass."""


class ByteBudget:
    """Counts the bytes that are held."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._spare: dict[Body, None] = {}
        self.held = 0
        self.shares = Shares()
        """Bytes of tenants' bodies and answers, without those that may be dropped."""

    def take(self, count: int, holder_bytes: int, tenant: str | None = None) -> None:
        """Count `count` more bytes of a request that then holds `holder_bytes`.

        Raises:
            OverloadedError: they are beyond the budget, or the tenant's; nothing was counted.
        """
        capacity = self._max_bytes * (1.0 if holder_bytes <= SMALL_BYTES else LARGE_SHARE)
        limit = self.shares.limit(tenant, count, capacity)
        if not self._make_room(count, limit):
            raise OverloadedError(self._full(tenant if limit < capacity else None, count, capacity))
        self.held += count

    def take_spare(self, count: int) -> bool:
        """Count bytes that nobody needs now, if there is room for them."""
        if self.held + count > self._max_bytes * LARGE_SHARE:
            return False
        self.held += count
        return True

    def set_spare(self, body: Body, *, spare: bool) -> None:
        """Whether the body may be dropped when bytes run short."""
        if spare:
            self._spare[body] = None
        else:
            self._spare.pop(body, None)

    def _full(self, tenant: str | None, count: int, capacity: float) -> str:
        if tenant is None:
            return (
                f"the router holds {self.held} bytes of requests; allowed: {self._max_bytes} "
                "(server.maxBufferedBytes)"
            )
        return (
            f"your requests: {self.shares.held(tenant)} bytes are held and {count} more come; "
            f"allowed while less than a quarter of {capacity:.0f} bytes (server.maxBufferedBytes) "
            f"is free: {self.shares.share(capacity)}, your share"
        )

    def _make_room(self, count: int, limit: float) -> bool:
        """Drop what must be dropped for `count` more bytes; nothing if that is not enough."""
        missing = self.held + count - limit
        if missing > 0 and missing > sum(body.held for body in self._spare):
            return False
        while self.held + count > limit:
            next(iter(self._spare)).drop()
        return True

    def give_back(self, count: int) -> None:
        """Bytes are no longer held."""
        self.held -= count


class Body:
    """A request's body, or an answer that is passed on when it is whole: counted against the budget
    from its first byte until it is released."""

    def __init__(self, budget: ByteBudget, tenant: str | None = None) -> None:
        """`tenant`: whose it is, where keys are asked for."""
        self._budget = budget
        self._tenant = tenant
        self._of_tenant = 0
        """Bytes that count for the tenant."""
        self._pieces: list[bytes] = []
        self._dropped: Callable[[], None] | None = None
        self.held = 0
        """Bytes that it counts, with those of the answer."""
        self.content = b""

    async def read(self, stream: aiohttp.StreamReader, max_bytes: int) -> bool:
        """Read it to its end; False when it is longer than `max_bytes`.

        Raises:
            OverloadedError: it does not fit into the budget.
        """
        while not stream.at_eof():
            self.add(await stream.readany())
            if self.held > max_bytes:
                return False
        self.content = b"".join(self._pieces)
        self._pieces.clear()
        return True

    def pieces(self) -> Iterator[bytes]:
        """What was added, each piece held until the next is asked for."""
        self._pieces.reverse()
        while self._pieces:
            yield self._pieces[-1]
            size = len(self._pieces.pop())
            self._budget.give_back(size)
            self.held -= size

    def release(self) -> None:
        """The body is no longer needed."""
        self.content = b""
        self._pieces.clear()
        self._budget.set_spare(self, spare=False)
        self._budget.give_back(self.held)
        self.held = 0
        self._count_for_tenant(0)

    def spare(self, dropped: Callable[[], None]) -> None:
        """It may be dropped from now on; `dropped` is then called."""
        self._dropped = dropped
        self._budget.set_spare(self, spare=True)
        self._count_for_tenant(0)

    def keep(self) -> None:
        """It is needed again."""
        self._budget.set_spare(self, spare=False)
        self._count_for_tenant(self.held)

    def grow(self, count: int) -> None:
        """A spare body counts so many bytes more; it is dropped if there is no room for them."""
        if self._budget.take_spare(count):
            self.held += count
        else:
            self.drop()

    def drop(self) -> None:
        """Let a spare body go."""
        self.release()
        if self._dropped is not None:
            self._dropped()

    def add(self, piece: bytes) -> None:
        """Hold more of it.

        Raises:
            OverloadedError: it does not fit into the budget.
        """
        self._budget.take(len(piece), self.held + len(piece), self._tenant)
        self.held += len(piece)
        self._pieces.append(piece)
        self._count_for_tenant(self.held)

    def _count_for_tenant(self, count: int) -> None:
        self._budget.shares.add(self._tenant, count - self._of_tenant)
        self._of_tenant = count
