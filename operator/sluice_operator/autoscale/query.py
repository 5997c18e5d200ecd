"""Asks the routers of a service for its load, all at the same time.

A router that does not answer in time, or not with a load, is left out. One may be newer than this
operator: keys that are unknown are ignored. Knows nothing of what the loads are for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

import aiohttp
from pydantic import ValidationError
from sluice_contract.ports import ROUTER_METRICS
from sluice_contract.service_load import ServiceLoad

from sluice_operator.log import fields

TIMEOUT_SECONDS: Final = 1.0
MAX_BYTES: Final = 8 * 2**20
"""Of one answer: ten thousand engines."""

logger = logging.getLogger(__name__)


class LoadQuery(Protocol):
    """Reads the load of services."""

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        """What those of the routers say that answer."""
        ...


class RouterQuery:
    """Over HTTP, at the routers' monitoring port; connections stay open."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        """See `LoadQuery`."""
        found = await asyncio.gather(*(self._ask(address) for address in routers))
        return tuple(load for load in found if load is not None)

    async def _ask(self, address: str) -> ServiceLoad | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{ROUTER_METRICS}/load"
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS), self._session.get(url) as response:
                response.raise_for_status()
                body = await response.content.read(MAX_BYTES)
                while chunk := await response.content.read(MAX_BYTES - len(body)):
                    body += chunk
            return ServiceLoad.model_validate_json(body, extra="ignore")
        except (TimeoutError, aiohttp.ClientError, OSError, ValidationError) as error:
            logger.debug("no load", extra=fields(router=address, error=repr(error)))
            return None


def query_session() -> aiohttp.ClientSession:
    """A session of its own, as routers are not the API server; never through a proxy."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60), trust_env=False
    )
