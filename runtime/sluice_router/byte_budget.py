"""Byte budgets: what the router may hold for clients, and what it drops when that is too much.

One budget covers bodies, heads of requests that are served, and answers that are held until they
are whole. Unfinished heads have another, since they come without an API key: they take no bytes of
a tenant's body. A body is held until an engine has begun to answer, because until then another
engine may need it. After that a body whose answer can be resumed stays as evictable, with what came
of the answer: when a new request needs the bytes, the oldest evictable body is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import aiohttp

from sluice_router.errors import OverloadedError
from sluice_router.tenants import Shares

SMALL_BYTES: Final = 65_536
LARGE_SHARE: Final = 0.75
"""Share of the budget that requests above `SMALL_BYTES` may fill: the rest lets others pass."""
HEADS_DIVISOR: Final = 8
"""Unfinished heads have an eighth of `server.maxBufferedBytes`, requests and answers the rest."""


class ByteBudget:
    """Counts the bytes that are held."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._evictable: dict[Body, None] = {}
        self.held_bytes = 0
        self.shares = Shares()
        """Bytes of tenants' bodies and answers, without those that may be dropped."""

    def take(self, count: int, holder_bytes: int, tenant: str | None = None) -> None:
        """Count `count` more bytes of a request that then holds `holder_bytes`.

        Raises:
            OverloadedError: they are beyond the budget, or the tenant's; nothing was counted.
        """
        if count <= 0:
            self.held_bytes += count
            return
        capacity = self._max_bytes * (1.0 if holder_bytes <= SMALL_BYTES else LARGE_SHARE)
        limit = self.shares.limit(tenant, count, capacity)
        if not self._evict_for(count, limit):
            raise OverloadedError(self._full(tenant if limit < capacity else None, count, capacity))
        self.held_bytes += count

    def take_if_free(self, count: int) -> bool:
        """Count bytes of an evictable body; False, and nothing is counted, if they do not fit into
        the part of the budget that large requests may fill."""
        if self.held_bytes + count > self._max_bytes * LARGE_SHARE:
            return False
        self.held_bytes += count
        return True

    def add_evictable(self, body: Body) -> None:
        """The body may be dropped when bytes run short, after those that were added before it."""
        self._evictable[body] = None

    def remove_evictable(self, body: Body) -> None:
        """The body is not dropped; nothing happens if it was not evictable."""
        self._evictable.pop(body, None)

    def _full(self, tenant: str | None, count: int, capacity: float) -> str:
        if tenant is None:
            return (
                f"the router holds {self.held_bytes} bytes of requests; allowed: {self._max_bytes} "
                "(server.maxBufferedBytes without its eighth for heads)"
            )
        return (
            f"your requests: {self.shares.held(tenant)} bytes are held and {count} more come; "
            f"allowed while less than a quarter of {capacity:.0f} bytes (server.maxBufferedBytes) "
            f"is free: {self.shares.share(capacity)}, your share"
        )

    def _evict_for(self, count: int, limit: float) -> bool:
        """Drop what must be dropped for `count` more bytes; nothing if that is not enough."""
        missing = self.held_bytes + count - limit
        if missing > 0 and missing > sum(body.held_bytes for body in self._evictable):
            return False
        while self.held_bytes + count > limit:
            next(iter(self._evictable)).evict()
        return True

    def give_back(self, count: int) -> None:
        """Bytes are no longer held."""
        self.held_bytes -= count


class HeadBudget:
    """Counts the bytes of clients' connections that belong to no request yet: of unfinished heads,
    and of bytes behind a request that is being answered."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    def missing(self, count: int) -> int:
        """How many bytes must be given back before `count` more fit; not positive if they fit."""
        return self.held_bytes + count - self._max_bytes

    def refusal(self) -> OverloadedError:
        """The error for bytes that do not fit."""
        return OverloadedError(
            f"the router holds {self.held_bytes} bytes of heads; allowed: {self._max_bytes} "
            "(an eighth of server.maxBufferedBytes)"
        )


class Budgets(NamedTuple):
    """Budgets of what the router may hold for clients, in bytes."""

    bodies: ByteBudget
    heads: HeadBudget

    @property
    def held_bytes(self) -> int:
        """Bytes held in both budgets."""
        return self.bodies.held_bytes + self.heads.held_bytes


def split_budget(max_bytes: int) -> Budgets:
    """The budgets for `server.maxBufferedBytes`."""
    heads = max_bytes // HEADS_DIVISOR
    return Budgets(ByteBudget(max_bytes - heads), HeadBudget(heads))


class Body:
    """A request's body, or an answer that is passed on when it is whole: counted against the budget
    from its first byte until it is released."""

    def __init__(self, budget: ByteBudget, tenant: str | None = None) -> None:
        """`tenant`: who sends the request, where API keys are required."""
        self._budget = budget
        self._tenant = tenant
        self._of_tenant = 0
        """Bytes that count for the tenant."""
        self._pieces: list[bytes] = []
        self._on_eviction: Callable[[], None] | None = None
        self.held_bytes = 0
        """Bytes that it counts, including those of the answer (`charge`)."""
        self.content = b""

    async def read(self, stream: aiohttp.StreamReader, max_bytes: int) -> bool:
        """Read it to its end; False when it is longer than `max_bytes`.

        Raises:
            OverloadedError: it does not fit into the budget.
        """
        while not stream.at_eof():
            self.add(await stream.readany())
            if self.held_bytes > max_bytes:
                return False
        self.content = b"".join(self._pieces)
        self._pieces.clear()
        return True

    def pieces(self) -> Iterator[bytes]:
        """Pieces that were added. Each piece is held until the next one is requested."""
        self._pieces.reverse()
        while self._pieces:
            yield self._pieces[-1]
            size = len(self._pieces.pop())
            self._budget.give_back(size)
            self.held_bytes -= size

    def release(self) -> None:
        """The body is no longer needed."""
        self.content = b""
        self._pieces.clear()
        self._budget.remove_evictable(self)
        self._budget.give_back(self.held_bytes)
        self.held_bytes = 0
        self._count_for_tenant(0)

    def make_evictable(self, on_eviction: Callable[[], None]) -> None:
        """The budget may drop it from now on, and then calls `on_eviction`."""
        self._on_eviction = on_eviction
        self._budget.add_evictable(self)
        self._count_for_tenant(0)

    def pin(self) -> None:
        """Pins the body, which is needed again: the budget does not drop it."""
        self._budget.remove_evictable(self)
        self._count_for_tenant(self.held_bytes)

    def charge(self, count: int) -> None:
        """Count `count` more bytes of the answer for an evictable body. It is dropped if they do
        not fit."""
        if self._budget.take_if_free(count):
            self.held_bytes += count
        else:
            self.evict()

    def hold(self, count: int) -> None:
        """Count `count` bytes in all, which are kept elsewhere, instead of those before.

        Raises:
            OverloadedError: they do not fit into the budget.
        """
        self._budget.take(count - self.held_bytes, count, self._tenant)
        self.held_bytes = count
        self._count_for_tenant(count)

    def evict(self) -> None:
        """Drop an evictable body."""
        self.release()
        if self._on_eviction is not None:
            self._on_eviction()

    def add(self, piece: bytes) -> None:
        """Hold more of it.

        Raises:
            OverloadedError: it does not fit into the budget.
        """
        self._budget.take(len(piece), self.held_bytes + len(piece), self._tenant)
        self.held_bytes += len(piece)
        self._pieces.append(piece)
        self._count_for_tenant(self.held_bytes)

    def _count_for_tenant(self, count: int) -> None:
        self._budget.shares.add(self._tenant, count - self._of_tenant)
        self._of_tenant = count
