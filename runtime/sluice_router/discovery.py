"""Finds the engines: follows the EndpointSlices of their Services by list and watch.

While the API server is away or refuses, the last known engines stay, and requests are served. Knows
nothing of requests.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final

import aiohttp
import msgspec
from sluice_contract.config.router import Discovery

from sluice_router.engines import Endpoint, Fleet
from sluice_router.kube import Cluster, Event, KubeClient, KubeError, VersionExpiredError
from sluice_router.slices import SERVICE_NAME_LABEL, endpoints_of

logger = logging.getLogger("sluice.router.discovery")

FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 15.0
SHORTEST_WATCH_SECONDS: Final = 1.0
"""A watch that ends sooner, without an event, counts as refused."""
AWAY: Final = (KubeError, aiohttp.ClientError, OSError, msgspec.DecodeError, ValueError)
"""What is raised while the API server is away, being upgraded, or answers nonsense."""


def slice_client(
    session: aiohttp.ClientSession, cluster: Cluster, namespace: str, discovery: Discovery
) -> KubeClient:
    """A client for the EndpointSlices of all pools of the service."""
    names = ",".join(f"{discovery.service}-{role}" for role in discovery.roles)
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    return KubeClient(session, cluster, path, f"{SERVICE_NAME_LABEL} in ({names})")


class SliceFollower:
    """Keeps the fleet's endpoints what the EndpointSlices say."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        discovery: Discovery,
        jitter: random.Random,
        sleep: Callable[[float], Any] = asyncio.sleep,
    ) -> None:
        self._client = client
        self._fleet = fleet
        self._discovery = discovery
        self._jitter = jitter
        self._sleep = sleep
        self._slices: dict[str, dict[str, Any]] = {}
        self._version: str | None = None
        self._failures = 0

    async def run(self) -> None:
        """List, then watch from there, for ever."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._watch()
            except VersionExpiredError:
                logger.info("the API server forgot version %s: listing again", self._version)
                self._version = None
            except AWAY as error:
                await self._pause(error)

    async def _list(self) -> None:
        listing = await self._client.list()
        self._slices = {item["metadata"]["name"]: item for item in listing.items}
        self._version = listing.version
        self._publish()

    async def _watch(self) -> None:
        assert self._version is not None
        loop = asyncio.get_running_loop()
        start = loop.time()
        received = False
        async with aclosing(self._client.watch(self._version)) as events:
            async for event in events:
                self._apply(event)
                received = True
        if not received and loop.time() - start < SHORTEST_WATCH_SECONDS:
            raise KubeError("the watch ended as soon as it had begun")

    def _apply(self, event: Event) -> None:
        self._version = event.version
        self._failures = 0
        if event.type == "BOOKMARK":
            return
        name = event.object["metadata"]["name"]
        if event.type == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = event.object
        self._publish()

    def _publish(self) -> None:
        self._failures = 0
        wanted = self._discovery
        endpoints = endpoints_of(self._slices.values(), wanted.service, wanted.port_name)
        before = {engine.endpoint for engine in self._fleet.engines()}
        for endpoint in endpoints:
            if endpoint not in before:
                logger.info("engine %s at %s: %s", endpoint.name, endpoint.url, endpoint.phase)
        for gone in _gone(before, endpoints):
            logger.info("engine %s at %s: gone", gone.name, gone.url)
        self._fleet.replace_endpoints(endpoints)

    async def _pause(self, error: BaseException) -> None:
        self._failures += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 16), LONGEST_PAUSE_SECONDS)
        level = logging.WARNING if self._failures in (1, 10) else logging.DEBUG
        count = len(self._fleet.engines())
        logger.log(level, "API server: %r; going on with %d known engines", error, count)
        await self._sleep(pause * self._jitter.uniform(0.5, 1.0))


def _gone(before: set[Endpoint], after: tuple[Endpoint, ...]) -> set[Endpoint]:
    keys = {endpoint.key for endpoint in after}
    return {endpoint for endpoint in before if endpoint.key not in keys}
