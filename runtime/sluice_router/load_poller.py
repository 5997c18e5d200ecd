"""Asks every engine for its load report, about once a second.

An engine that cannot be connected to gets no requests until it can be. A report that does not
arrive, or cannot be read, changes nothing: the last one becomes stale and the engine counts as
average. An engine may be newer than this router: keys of its report that are unknown are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import random

import aiohttp
from pydantic import ValidationError
from sluice_contract.config.router import LoadFollowing
from sluice_contract.wire.load import LoadReport

from sluice_router.engines import EngineState, Fleet
from sluice_router.upstream import read_at_most

logger = logging.getLogger("sluice.router.load")

_REPORT_BYTES = 1 << 20
"""With hundreds of adapters, and why each of them could not be loaded."""


class LoadPoller:
    """Keeps the fleet's load reports fresh."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        settings: LoadFollowing,
        jitter: random.Random,
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._settings = settings
        self._jitter = jitter

    async def run(self) -> None:
        """Poll for ever; replicas of the router drift apart by jitter."""
        while True:
            await self.poll_all()
            await asyncio.sleep(self._settings.interval_seconds * self._jitter.uniform(0.8, 1.2))

    async def poll_all(self) -> None:
        """Ask every engine once, all at the same time."""
        async with asyncio.TaskGroup() as group:
            for engine in self._fleet.engines():
                group.create_task(self._poll(engine))

    async def _poll(self, engine: EngineState) -> None:
        own_inflight = engine.inflight
        try:
            report = await self._ask(engine)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            logger.debug("%s cannot be reached: %r", engine.endpoint.name, error)
            self._fleet.unreachable(engine.key)
        except (aiohttp.ClientError, OSError, ValidationError) as error:
            logger.debug("no load report from %s: %r", engine.endpoint.name, error)
        else:
            self._fleet.report(engine.key, report, own_inflight)

    async def _ask(self, engine: EngineState) -> LoadReport:
        limit = self._settings.timeout_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limit, sock_read=limit)
        url = engine.endpoint.url + "/load"
        async with self._session.get(url, timeout=timeout) as response:
            response.raise_for_status()
            body = await read_at_most(response, _REPORT_BYTES)
        return LoadReport.model_validate_json(body, extra="ignore")
