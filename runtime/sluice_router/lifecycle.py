"""How requests end when the router leaves: refuse new ones late, let the running ones finish.

After SIGTERM new requests are still served for a moment, because the cluster takes that long to
stop sending them; then they are refused; streams get the rest of the drain time. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from asyncio import sleep
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sluice_router.errors import DrainingError, RouterError, TimeLimitError


class Lifecycle:
    """Counts requests in flight and limits how long each may take."""

    def __init__(self, request_timeout_seconds: float) -> None:
        self._request_timeout_seconds = request_timeout_seconds
        self._limits: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusing = False
        self._expired = False
        self.draining = False
        """Whether the router told the cluster that it leaves."""

    @property
    def inflight(self) -> int:
        """Requests being served."""
        return len(self._limits)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[None]:
        """Serve one request, or refuse it; it is ended when its time or the drain time is over.

        Raises:
            DrainingError: no new requests, or the drain time is over.
            TimeLimitError: the request's own limit is over.
        """
        if self._refusing:
            raise DrainingError("this router is shutting down")
        try:
            async with asyncio.timeout(self._request_timeout_seconds) as limit:
                self._limits.add(limit)
                self._idle.clear()
                try:
                    yield
                finally:
                    self._limits.discard(limit)
                    if not self._limits:
                        self._idle.set()
        except TimeoutError:
            raise self._cause() from None

    async def drain(self, lame_duck_seconds: float, drain_seconds: float) -> None:
        """Returns when the last request is over; ends what is left after `drain_seconds`."""
        self.draining = True
        await sleep(lame_duck_seconds)
        self._refusing = True
        try:
            async with asyncio.timeout(max(0.0, drain_seconds - lame_duck_seconds)):
                await self._idle.wait()
        except TimeoutError:
            self._expire()
            await self._idle.wait()

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
