"""Kinds that a cluster may not have: which of them the API server serves now.

Discovery runs at most once a minute, so a kind that is installed later is used without a restart;
only its watch starts with the next process. Plans leave out objects of absent kinds.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sluice_operator.clock import Clock
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import OPTIONAL_CHILDREN, Kind
from sluice_operator.log import fields

REFRESH_SECONDS: Final = 60.0

logger = logging.getLogger(__name__)


class OptionalKinds:
    """The optional kinds that are served."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None
        self._served: tuple[Kind, ...] = ()

    async def served(self) -> tuple[Kind, ...]:
        """Those of `OPTIONAL_CHILDREN` that there are; the former answer when asking fails."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked_at is None or now - self._asked_at >= REFRESH_SECONDS:
                try:
                    found = [k for k in OPTIONAL_CHILDREN if await self._client.serves(k)]
                except RequestError as error:
                    logger.warning("discovery of optional kinds failed", extra=fields(error=error))
                    return self._served
                self._log_changes(tuple(found))
                self._served, self._asked_at = tuple(found), now
            return self._served

    def _log_changes(self, found: tuple[Kind, ...]) -> None:
        for kind in OPTIONAL_CHILDREN:
            if self._asked_at is None or (kind in found) != (kind in self._served):
                event = "optional kind used" if kind in found else "optional kind left out"
                logger.info(event, extra=fields(kind=kind.kind, api_version=kind.api_version))
