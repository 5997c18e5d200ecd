"""Kinds that a cluster may lack: which of them the API server serves now, and lets us list.

The API server is asked at most once a minute, so a kind or a right added later is used without a
restart. Only watching a new kind needs a restart of the process. Plans leave out objects of absent
kinds.
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
USED: Final = "used"
ABSENT: Final = "not installed"
FORBIDDEN: Final = "no right to list it"

logger = logging.getLogger(__name__)


class OptionalKinds:
    """The optional kinds that the cluster has. `namespaces`: the served namespaces; none means
    all."""

    def __init__(self, client: ApiClient, clock: Clock, namespaces: tuple[str, ...] = ()) -> None:
        self._client = client
        self._clock = clock
        self._scopes = namespaces or (None,)
        self._lock = asyncio.Lock()
        self._asked_at: float | None = None
        self._verdicts: dict[Kind, str] = {}

    async def served(self) -> tuple[Kind, ...]:
        """Kinds of `OPTIONAL_CHILDREN` that the cluster has; the former answer when asking
        fails."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._asked_at is None or now - self._asked_at >= REFRESH_SECONDS:
                try:
                    verdicts = {kind: await self._verdict(kind) for kind in OPTIONAL_CHILDREN}
                except RequestError as error:
                    logger.warning("discovery of optional kinds failed", extra=fields(error=error))
                else:
                    self._log_changes(verdicts)
                    self._verdicts, self._asked_at = verdicts, now
            return tuple(kind for kind, verdict in self._verdicts.items() if verdict == USED)

    async def _verdict(self, kind: Kind) -> str:
        if not await self._client.serves(kind):
            return ABSENT
        for namespace in self._scopes:
            if not await self._client.may_list(kind, namespace):
                return FORBIDDEN
        return USED

    def _log_changes(self, verdicts: dict[Kind, str]) -> None:
        for kind, verdict in verdicts.items():
            if verdict == self._verdicts.get(kind):
                continue
            event = "optional kind used" if verdict == USED else "optional kind left out"
            why = {} if verdict == USED else {"reason": verdict}
            extra = fields(kind=kind.kind, api_version=kind.api_version, **why)
            logger.info(event, extra=extra)
