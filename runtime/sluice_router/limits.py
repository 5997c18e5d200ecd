"""Limits of the router: the bytes that it holds for clients, the requests that it serves at once,
how long each takes, and how much of all that one tenant may have.

One byte budget covers bodies, heads of requests that are served, and answers that are held until
they are whole. Unfinished heads have another, since they come without an API key: they take no
bytes of a tenant's body. A body is held until an engine has begun to answer, because until then
another engine may need it. After that a body whose answer can be resumed stays as evictable, with
what came of the answer: when a new request needs the bytes, the oldest evictable body is dropped.

After SIGTERM every request that still arrives is answered, and its answer asks the client to
connect again. Connections are accepted for as long as a request is served. The router leaves when
no connection is left, or when the drain time is over: then what still runs is ended with an error.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import aiohttp

from sluice_router.errors import DrainingError, OverloadedError, RouterError, TimeLimitError

SMALL_BYTES: Final = 65_536
LARGE_SHARE: Final = 0.75
"""Share of the budget that requests above `SMALL_BYTES` may fill: the rest lets others pass."""
HEADS_DIVISOR: Final = 8
"""Unfinished heads have an eighth of `server.maxBufferedBytes`, requests and answers the rest."""
RESERVE: Final = 0.25
"""Share of a capacity that is for tenants below their share."""


class Shares:
    """Amount that each tenant holds of one capacity, in requests or in bytes.

    A share is the capacity divided by the number of tenants that hold some of it, plus one for the
    next tenant. The last quarter of the capacity is for tenants below their share. So such a tenant
    is not refused because of another tenant's requests, until others below their share have filled
    that quarter.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def held(self, tenant: str) -> int:
        """Amount that the tenant holds."""
        return self._held.get(tenant, 0)

    def share(self, capacity: float) -> int:
        """Amount that a tenant may always hold, whatever other tenants hold; at least 1."""
        return max(1, int(capacity) // (len(self._held) + 1))

    def largest(self) -> str | None:
        """The tenant that holds most; None if none holds anything."""
        return max(self._held, key=self._held.__getitem__, default=None)

    def limit(self, tenant: str | None, coming: int, capacity: float) -> float:
        """How much may be held in all, including `coming` more of the tenant. For None, without API
        keys, the whole capacity."""
        if tenant is None or self.held(tenant) + coming <= self.share(capacity):
            return capacity
        return capacity * (1 - RESERVE)

    def add(self, tenant: str | None, count: int) -> None:
        """Adds `count` to what the tenant holds; `count` may be negative."""
        if tenant is None:
            return
        held = self.held(tenant) + count
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)


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


@dataclass(frozen=True, eq=False, slots=True)
class _Upload:
    tenant: str
    end: Callable[[RouterError], None]


class Uploads:
    """Bodies that are on their way, each on a connection of a tenant, and which of them is ended
    when there are too many connections."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._shares = Shares()
        self._uploads: dict[_Upload, None] = {}
        """First the oldest."""

    @contextmanager
    def upload(self, tenant: str, end: Callable[[RouterError], None]) -> Iterator[None]:
        """A body of the tenant is on its way. `end` is called at most once: it must close the
        connection and end the request with that error."""
        upload = _Upload(tenant, end)
        self._uploads[upload] = None
        self._shares.add(tenant, 1)
        try:
            yield
        finally:
            self._remove(upload)

    def end_one(self) -> bool:
        """End the oldest of the tenant that has most; False if that has no more than its share of
        all connections."""
        tenant, limit = self._shares.largest(), self._max_connections
        if tenant is None or self._shares.held(tenant) <= self._shares.share(limit):
            return False
        upload = next(upload for upload in self._uploads if upload.tenant == tenant)
        held = self._shares.held(tenant)
        self._remove(upload)
        upload.end(
            OverloadedError(
                f"the router has {limit} connections (server.maxConnections), and on {held} of them"
                " bodies of yours are on their way; this was the oldest"
            )
        )
        return True

    def _remove(self, upload: _Upload) -> None:
        if upload in self._uploads:
            del self._uploads[upload]
            self._shares.add(upload.tenant, -1)


class Lifecycle:
    """Limits how long each request may take, from its head on, and how many are served at once."""

    def __init__(self, request_timeout_seconds: float, max_requests: int) -> None:
        self._request_timeout_seconds = request_timeout_seconds
        self._max_requests = max_requests
        self._limits: set[asyncio.Timeout] = set()
        self._served = 0
        self._shares = Shares()
        self._idle = asyncio.Event()
        self._idle.set()
        self._not_quiet = asyncio.Event()
        self._expired = False
        self.draining = False
        """Whether the router is leaving."""

    @property
    def inflight(self) -> int:
        """Requests being served: those whose body is here."""
        return self._served

    @property
    def is_idle(self) -> bool:
        """Whether there is no request, also none whose body is on its way."""
        return self._idle.is_set()

    async def quiet(self, seconds: float) -> None:
        """Returns after `seconds`, or sooner: once a request is served or the router leaves."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._not_quiet.wait()

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """One request; it is ended when its time or the drain time is over.

        Raises:
            DrainingError: the drain time is over.
            TimeLimitError: the request's own limit is over.
        """
        if self._expired:
            raise self._cause()
        try:
            async with asyncio.timeout(self._request_timeout_seconds) as limit:
                self._limits.add(limit)
                self._idle.clear()
                self._not_quiet.set()
                try:
                    yield
                finally:
                    self._limits.discard(limit)
                    if not self._limits:
                        self._idle.set()
                        if not self.draining:
                            self._not_quiet.clear()
        except TimeoutError:
            raise self._cause() from None

    @contextmanager
    def served(self, tenant: str | None) -> Iterator[None]:
        """Serve a request whose body is here. A client that still sends its body does not count.

        Raises:
            OverloadedError: as many requests as are allowed, in all or to the tenant, are being
                served.
        """
        if self._served + 1 > self._shares.limit(tenant, 1, self._max_requests):
            raise OverloadedError(self._full(tenant))
        self._served += 1
        self._shares.add(tenant, 1)
        try:
            yield
        finally:
            self._served -= 1
            self._shares.add(tenant, -1)

    async def drain(
        self,
        lame_duck_seconds: float,
        drain_seconds: float,
        connections_end: Callable[[], Awaitable[None]],
    ) -> None:
        """Wait until the cluster sends no new connections, then until `connections_end` returns.

        What still runs `drain_seconds` after that is ended.
        """
        self.draining = True
        self._not_quiet.set()
        await sleep(lame_duck_seconds)
        try:
            async with asyncio.timeout(drain_seconds):
                await connections_end()
        except TimeoutError:
            self._expire()
            await self._idle.wait()

    def _full(self, tenant: str | None) -> str:
        if tenant is None or self._served >= self._max_requests:
            return f"the router serves {self._max_requests} requests (server.maxRequests)"
        return (
            f"your requests: {self._shares.held(tenant)} are served and 1 more comes; allowed "
            f"while less than a quarter of {self._max_requests} (server.maxRequests) is free: "
            f"{self._shares.share(self._max_requests)}, your share"
        )

    def _expire(self) -> None:
        self._expired = True
        now = asyncio.get_running_loop().time()
        for limit in self._limits:
            limit.reschedule(now)

    def _cause(self) -> RouterError:
        if self._expired:
            return DrainingError("this router is shutting down and its drain time is over")
        limit = self._request_timeout_seconds
        return TimeLimitError(f"the request took longer than {limit:g} seconds")
