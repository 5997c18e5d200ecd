"""Which engines had best go first when their pool shrinks: told to their ReplicaSet, as a hint.

Kubernetes removes pods of the lowest deletion cost first, among those that are ready. A hint that
cannot be written stops nothing. Knows nothing of how victims are chosen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import POD, Manifest
from sluice_operator.log import fields
from sluice_operator.scaled import DELETION_COST, VICTIM, PoolPods

VICTIMS_MANAGER: Final = "sluice-operator-victims"

logger = logging.getLogger(__name__)


class Victims:
    """Marks pods, and takes back the marks of those that have stayed, also those of an operator
    before this."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._marked: dict[str, frozenset[str]] = {}

    async def mark(self, namespace: str, pool: str, pods: PoolPods, names: Iterable[str]) -> None:
        """Has those of `pods` that are in `names` go first, and no other of the pool, which is
        named by its uid. Routers say the names: those that are none of the pool's do not count."""
        wanted = pods.names & frozenset(names)
        before = pods.victims | self._marked.pop(pool, frozenset())
        for name in sorted(before - wanted):
            await self._write(namespace, name, {})
        for name in sorted(wanted):
            await self._write(namespace, name, {"annotations": {DELETION_COST: VICTIM}})
        if wanted:
            self._marked[pool] = wanted

    async def _write(self, namespace: str, name: str, metadata: Manifest) -> None:
        manifest = {
            "apiVersion": POD.api_version,
            "kind": POD.kind,
            "metadata": {"name": name, "namespace": namespace, **metadata},
        }
        try:
            await self._client.apply(POD, manifest, manager=VICTIMS_MANAGER)
        except RequestError as error:  # one that has gone cannot be made of a hint
            logger.debug("deletion cost not written", extra=fields(pod=name, error=error))
