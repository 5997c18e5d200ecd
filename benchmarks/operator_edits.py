"""Edits of InferenceServices, and when the Deployments of their engines follow.

Knows the API server only: what carries the edits out is not looked at.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sluice_contract.cluster import labels
from sluice_operator.kube.client import path
from sluice_operator.kube.connection import Request
from sluice_operator.kube.kinds import DEPLOYMENT

from benchmarks.operator_fleet import in_parallel, scale
from tests.operator.harness.cluster import Cluster

Place = tuple[str, str]
PATIENCE_SECONDS = 600.0
SELECTOR = f"{labels.SERVICE},{labels.ROLE}=mixed"


class Replicas:
    """How many engines each service's Deployment asks for, followed by a watch."""

    def __init__(self) -> None:
        self._engines: dict[Place, int] = {}
        self._since: dict[Place, float] = {}
        self._news = asyncio.Condition()

    @classmethod
    @asynccontextmanager
    async def followed(cls, cluster: Cluster) -> AsyncIterator[Replicas]:
        """Follows every service until the `async with` block ends."""
        replicas = cls()
        query = {"labelSelector": SELECTOR}
        found = await cluster.send(Request("GET", path(DEPLOYMENT, None), query))
        for item in found["items"]:
            replicas._note(item)
        task = asyncio.create_task(replicas._follow(cluster, found["metadata"]["resourceVersion"]))
        try:
            yield replicas
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, places: Sequence[Place], engines: int) -> None:
        """Returns once the Deployments of all `places` ask for `engines`."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._news:
            await self._news.wait_for(
                lambda: all(self._engines.get(place) == engines for place in places)
            )

    def since(self, place: Place) -> float:
        """Monotonic seconds at which the Deployment of `place` began to ask for its present
        engines."""
        return self._since[place]

    async def _follow(self, cluster: Cluster, version: str) -> None:
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "labelSelector": SELECTOR,
        }
        async for line in cluster.transport.lines(Request("GET", path(DEPLOYMENT, None), query)):
            event = json.loads(line)
            if event["type"] in ("ADDED", "MODIFIED") and self._note(event["object"]):
                async with self._news:
                    self._news.notify_all()

    def _note(self, deployment: Mapping[str, Any]) -> bool:
        metadata = deployment["metadata"]
        place = (metadata["namespace"], metadata["labels"][labels.SERVICE])
        engines = deployment["spec"]["replicas"]
        if self._engines.get(place) == engines:
            return False
        self._engines[place], self._since[place] = engines, time.monotonic()
        return True


async def edit_latencies(
    cluster: Cluster, replicas: Replicas, places: Sequence[Place], engines: int
) -> list[float]:
    """Seconds from each edit's request to its Deployment, one edit after the other."""
    latencies = []
    for place in places:
        started = time.monotonic()
        await scale(cluster, place, engines)
        await replicas.until([place], engines)
        latencies.append(replicas.since(place) - started)
    return latencies


async def storm_seconds(
    cluster: Cluster, replicas: Replicas, places: Sequence[Place], engines: int
) -> float:
    """Seconds until the last Deployment follows, when all edits are sent as fast as the API server
    takes them."""
    started = time.monotonic()
    await in_parallel(lambda place: scale(cluster, place, engines), places)
    await replicas.until(places, engines)
    return time.monotonic() - started
