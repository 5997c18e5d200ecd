"""Finds the engines, and asks each for its load report.

`SliceFollower` follows the EndpointSlices of the engines' Services by list and watch. While the API
server is away or refuses, the last known engines stay, and requests are served. A pod may be in
several slices (address families, slices being rewritten); `endpoints_of` names it once.

`LoadPoller` asks every engine about once a second. An engine that cannot be connected to gets no
requests until it can be. Where a report does not arrive or cannot be read, the last one becomes
stale and the engine counts as average; a ready engine without reports is logged once. An engine may
be newer than this router: unknown keys of its report are ignored.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import aiohttp
import msgspec
from pydantic import ValidationError
from sluice_contract.cluster.labels import (
    CANARY,
    CanaryShare,
    Role,
    canary_share,
)
from sluice_contract.cluster.list_watch import ListWatch
from sluice_contract.config.router import Discovery, LoadFollowing
from sluice_contract.wire.load import ROUTER_HEADER, LoadReport, router_name

from sluice_router.attempts import read_at_most
from sluice_router.engines import Endpoint, EngineState, Fleet, Phase
from sluice_router.kube import Cluster, KubeClient

logger = logging.getLogger("sluice.router.discovery")
load_logger = logging.getLogger("sluice.router.load")
AWAY: Final = (aiohttp.ClientError, OSError, msgspec.DecodeError)
"""Errors while the API server is away, is being upgraded, or sends an answer that cannot be
read."""
SERVICE_NAME_LABEL: Final = "kubernetes.io/service-name"
_PREFERENCE: Final = {Phase.READY: 0, Phase.TERMINATING: 1, Phase.UNREADY: 2}
WARNED_POLLS: Final = 3
"""Polls in a row without a report after which the log warns of a ready engine."""
_REPORT_BYTES = 1 << 20
"""Most bytes of a load report: it has hundreds of adapters, and why each could not be loaded."""
Manifest = Mapping[str, Any]


def slice_client(
    session: aiohttp.ClientSession, cluster: Cluster, namespace: str, discovery: Discovery
) -> KubeClient:
    """A client for the EndpointSlices of all pools of the service."""
    names = ",".join(f"{discovery.service}-{role}" for role in discovery.roles)
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    return KubeClient(session, cluster, path, f"{SERVICE_NAME_LABEL} in ({names})")


class SliceFollower:
    """Keeps the fleet's endpoints as the EndpointSlices have them."""

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

    async def run(self) -> None:
        """Follows the slices for ever."""
        monotonic = asyncio.get_running_loop().time
        await ListWatch(self, AWAY, monotonic, self._sleep, self._jitter.random).run()

    async def list(self) -> str:
        """Lists the slices."""
        items, version = await self._client.list()
        self._slices = {item["metadata"]["name"]: item for item in items}
        self._publish()
        return version

    def lines(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Watches the slices."""
        return self._client.lines(query)

    def take(self, change: str, item: dict[str, Any]) -> None:
        """Takes over a slice that has changed."""
        name = item["metadata"]["name"]
        if change == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = item
        self._publish()

    def failed(self, error: Exception, failures: int) -> None:
        """Logs that the API server is away, or refuses: once, and again if it stays so."""
        level = logging.WARNING if failures in (1, 10) else logging.DEBUG
        count = len(self._fleet.engines())
        logger.log(level, "API server: %r; going on with %d known engines", error, count)

    def _publish(self) -> None:
        service, port_name = self._discovery.service, self._discovery.port_name
        endpoints = endpoints_of(self._slices.values(), service, port_name)
        before = {engine.endpoint for engine in self._fleet.engines()}
        for endpoint in endpoints:
            if endpoint not in before:
                logger.info("engine %s at %s: %s", endpoint.name, endpoint.url, endpoint.phase)
        for gone in _gone(before, endpoints):
            logger.info("engine %s at %s: gone", gone.name, gone.url)
        canary = shares_of(self._slices.values(), service, self._discovery.roles)
        if canary != self._fleet.canary:
            shares = ", ".join(f"pool {role}: {share.label}" for role, share in canary.items())
            logger.info("canary: %s", shares or "none")
        self._fleet.replace_endpoints(endpoints, canary)


def _gone(before: set[Endpoint], after: tuple[Endpoint, ...]) -> set[Endpoint]:
    keys = {endpoint.key for endpoint in after}
    return {endpoint for endpoint in before if endpoint.key not in keys}


def endpoints_of(slices: Iterable[Manifest], service: str, port_name: str) -> tuple[Endpoint, ...]:
    """The engines named by `slices` of the Services `SERVICE-ROLE`, one entry a pod, by name."""
    endpoints = [entry for slice_ in slices for entry in _endpoints_in(slice_, service, port_name)]
    by_name: dict[str, Endpoint] = {}
    for endpoint in sorted(endpoints, key=lambda e: (_PREFERENCE[e.phase], "[" in e.url, e.url)):
        by_name.setdefault(endpoint.name, endpoint)
    return tuple(sorted(by_name.values(), key=lambda e: e.name))


def shares_of(
    slices: Iterable[Manifest], service: str, roles: Iterable[Role]
) -> dict[Role, CanaryShare]:
    """The share of a new revision by pool, without pools that state none; empty where none does. Of
    the slices of a pool the smallest share counts. While a change is on its way to some slices or
    pools, all shares are 0 percent."""
    stated: dict[Role, list[CanaryShare | None]] = {role: [] for role in roles}
    for slice_ in slices:
        role = _role_of(slice_, service)
        if role in stated:
            stated[role].append(canary_share(slice_["metadata"]["labels"].get(CANARY, "")))
    shares = {
        role: min(filter(None, labels), key=lambda share: (share.percent, share))
        for role, labels in stated.items()
        if any(labels)
    }
    if all(labels and all(labels) for labels in stated.values()):
        return shares
    return {role: CanaryShare(new, former, 0) for role, (new, former, _) in shares.items()}


def _endpoints_in(slice_: Manifest, service: str, port_name: str) -> Iterator[Endpoint]:
    role = _role_of(slice_, service)
    port = _port_of(slice_, port_name)
    family = slice_.get("addressType")
    if role is None or port is None or family not in ("IPv4", "IPv6"):
        return
    for entry in slice_.get("endpoints") or ():
        address = entry["addresses"][0]  # the API allows no other, and no empty list
        host = f"[{address}]" if family == "IPv6" else address
        name = (entry.get("targetRef") or {}).get("name") or address
        yield Endpoint(name, f"http://{host}:{port}", role, _phase_of(entry))


def _role_of(slice_: Manifest, service: str) -> Role | None:
    labels = slice_.get("metadata", {}).get("labels") or {}
    name = labels.get(SERVICE_NAME_LABEL, "")
    suffix = name.removeprefix(f"{service}-")
    return Role(suffix) if suffix != name and suffix in set(Role) else None


def _port_of(slice_: Manifest, port_name: str) -> int | None:
    for port in slice_.get("ports") or ():
        if port.get("name") == port_name and port.get("port"):
            return int(port["port"])
    return None


def _phase_of(entry: Manifest) -> Phase:
    conditions = entry.get("conditions") or {}
    if conditions.get("terminating"):
        return Phase.TERMINATING
    ready = conditions.get("ready")
    return Phase.UNREADY if ready is False else Phase.READY  # absent means ready


class LoadPoller:
    """Keeps the fleet's load reports fresh."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        settings: LoadFollowing,
        jitter: random.Random,
        polled: Callable[[], None] | None = None,
    ) -> None:
        """`polled` is called once all engines were asked."""
        self._fleet = fleet
        self._session = session
        self._polled = polled
        name = router_name(jitter.getrandbits(64), settings.interval_seconds)
        self._headers = {ROUTER_HEADER: name}
        self._settings = settings
        self._jitter = jitter
        self._missed: dict[str, int] = {}
        """Engine's key → polls in a row that a ready engine answered without a report."""

    async def run(self) -> None:
        """Poll for ever, from the first list of engines on; replicas of the router drift apart by
        jitter."""
        if not self._fleet.discovered:
            await self._fleet.wait_for_change(self._settings.interval_seconds)
        while True:
            await self.poll_all()
            await asyncio.sleep(self._settings.interval_seconds * self._jitter.uniform(0.8, 1.2))

    async def poll_all(self) -> None:
        """Ask every engine once, all at the same time."""
        async with asyncio.TaskGroup() as group:
            for engine in self._fleet.engines():
                group.create_task(self._poll(engine))
        there = {engine.key for engine in self._fleet.engines()}
        self._missed = {key: polls for key, polls in self._missed.items() if key in there}
        if self._polled is not None:
            self._polled()

    async def _poll(self, engine: EngineState) -> None:
        own_inflight = engine.inflight
        try:
            report = await self._ask(engine)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            load_logger.debug("%s cannot be reached: %r", engine.endpoint.name, error)
            self._fleet.unreachable(engine.key)
        except (aiohttp.ClientError, OSError, ValidationError) as error:
            self._missing(engine, error)
        else:
            self._missed.pop(engine.key, None)
            self._fleet.report(engine.key, report, own_inflight)

    def _missing(self, engine: EngineState, error: Exception) -> None:
        if isinstance(error, aiohttp.ClientResponseError | ValidationError):
            self._fleet.reached(engine.key)
        else:
            self._fleet.timed_out(engine.key)
        polls = self._missed.get(engine.key, 0) + (engine.endpoint.phase is Phase.READY)
        self._missed[engine.key] = polls
        level = logging.WARNING if polls == WARNED_POLLS else logging.DEBUG
        load_logger.log(level, "no load report from %s: %r", engine.endpoint.name, error)

    async def _ask(self, engine: EngineState) -> LoadReport:
        limit = self._settings.timeout_seconds
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=limit, sock_read=limit)
        url = engine.endpoint.url + "/load"
        async with self._session.get(url, headers=self._headers, timeout=timeout) as response:
            response.raise_for_status()
            body = await read_at_most(response, _REPORT_BYTES)
        return LoadReport.model_validate_json(body, extra="ignore")
