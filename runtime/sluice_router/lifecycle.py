"""Requests in progress: how many are served at once, how long each may take, and when the router
leaves.

After SIGTERM every request that still arrives is answered, and its answer asks the client to
connect again. Connections are accepted for as long as a request is served. The router leaves when
no connection is left, or when the drain time is over: then what still runs is ended with an error.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from sluice_router.errors import DrainingError, OverloadedError, RouterError, TimeLimitError
from sluice_router.tenants import Shares


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
    async def request(self) -> AsyncIterator[asyncio.Timeout]:
        """One request, with its limit: it is ended when its time or the drain time is over.

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
                    yield limit
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
