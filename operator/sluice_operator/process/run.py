"""The operator's main loop: stand by, lead, stop. Creates the parts and runs them."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from sluice_operator.apply.executor import Executor, executor
from sluice_operator.autoscale.carry_out import PoolScaler, Victims
from sluice_operator.autoscale.inventory import ScalingInventory
from sluice_operator.autoscale.journals import Journals
from sluice_operator.autoscale.loops import Autoscaler
from sluice_operator.autoscale.mover import Mover
from sluice_operator.autoscale.query import RouterQuery, query_session
from sluice_operator.autoscale.tick import ScalingTick
from sluice_operator.clock import Clock
from sluice_operator.informer.blocked import BlockedKinds
from sluice_operator.informer.dispatch import Dispatcher, Reconcile
from sluice_operator.informer.keys import RECONCILED, Key
from sluice_operator.informer.nodes import Nodes, NodeWatch
from sluice_operator.informer.reader import Reader, StoreReader
from sluice_operator.informer.rights import Rights
from sluice_operator.informer.watch import Informer
from sluice_operator.informer.workqueue import WorkQueue
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection, Streams
from sluice_operator.kube.errors import DefinitionsMissingError, OperatorError, RequestError
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, Kind
from sluice_operator.log import fields
from sluice_operator.pool.observe import PoolObserver
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.probes.accelerators import AcceleratorReports, fetch_over_http
from sluice_operator.probes.adapters import AdapterReports
from sluice_operator.probes.downloads import DownloadProgress
from sluice_operator.probes.handover_wires import HandoverReports
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.network_isolation import NetworkIsolation, connect_over_tcp
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.probes.refused_pods import RefusedPods
from sluice_operator.probes.router_ledgers import RouterLedgers
from sluice_operator.process.admission import Admission, Endpoint
from sluice_operator.process.canaries import CanaryLoop
from sluice_operator.process.defects import Defects
from sluice_operator.process.lease import (
    RELEASE_SECONDS,
    Heartbeat,
    Leadership,
    LeaseName,
    LeaseTiming,
)
from sluice_operator.process.listeners import Health, listening
from sluice_operator.process.metrics import OperatorMetrics
from sluice_operator.process.settings import Settings
from sluice_operator.process.tasks import ThreadRun, take_signals, until_one_ends
from sluice_operator.process.watches import Watches
from sluice_operator.service.nodes import NodeReactions
from sluice_operator.service.observe import Images, Installation, ServiceObserver
from sluice_operator.service.reconcile import ServiceReconcile
from sluice_operator.service.resolve.spec_errors import spec_errors

DEFINITIONS_SECONDS: Final = 20.0
"""How long to wait for the CRDs, which may be installed together with the operator."""

LOOK_SECONDS: Final = 1.0
LEASE_END_SECONDS: Final = RELEASE_SECONDS + 1.0
"""How long the thread with the Lease may take to release it and to end."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of one process."""

    settings: Settings
    client: ApiClient
    leadership: Leadership
    lease: Connection
    """Connections of the thread that renews the Lease, also when the workers use all of theirs."""
    nodes: Nodes
    optional_kinds: OptionalKinds
    streams: Streams
    rights: Rights
    clock: Clock
    metrics: OperatorMetrics
    health: Health
    stop: asyncio.Event


async def run(settings: Settings, work: Connection, lease: Connection, clock: Clock) -> None:
    """Runs until SIGTERM or SIGINT. `lease` belongs to a thread, which closes it.

    Raises:
        LeaseLostError: another process leads, or may lead.
        Exception: the process cannot go on, and should be started again.
    """
    metrics = OperatorMetrics()
    leadership = _leadership(settings, ApiClient(lease, metrics.wrote), clock)
    work.write_seconds = leadership.write_seconds
    client = ApiClient(work, metrics.wrote)
    blocked = BlockedKinds(clock)
    metrics.blocked.follow(blocked.now)
    rights = Rights(client, work, clock, blocked, settings.namespaces)
    parts = Parts(
        settings=settings,
        client=client,
        leadership=leadership,
        lease=lease,
        nodes=Nodes(client),
        optional_kinds=OptionalKinds(client, clock, settings.namespaces),
        streams=work,
        rights=rights,
        clock=clock,
        metrics=metrics,
        health=Health(ready=rights.are_complete.is_set, blocked=blocked.reason),
        stop=asyncio.Event(),
    )
    take_signals(parts.stop.set)
    ports = (settings.health_port, settings.metrics_port)
    async with listening(settings.pod_ip, ports, parts.health, metrics.exposition):
        await _first_of(parts.stop.wait(), _serve(parts))


async def _serve(parts: Parts) -> None:
    await _await_definitions(parts)
    admission = _admission(parts)
    await _first_of(parts.rights.run(), _elected(parts), *([admission.run()] if admission else ()))


async def _elected(parts: Parts) -> None:
    """Stands by, and then leads, while a thread of its own holds the Lease. That thread ends the
    process if this function does not end soon after the Lease was lost."""
    await parts.rights.has_looked.wait()
    parts.health.state = "standing by"
    parts.leadership.heartbeat.beat()
    leading, loop = asyncio.Event(), asyncio.get_running_loop()
    lost: asyncio.Queue[BaseException] = asyncio.Queue()

    def on_lost(error: BaseException) -> None:
        loop.call_soon_threadsafe(lost.put_nowait, error)

    async def hold_lease() -> None:
        async with aclosing(parts.lease):
            on_leading = partial(loop.call_soon_threadsafe, leading.set)
            await parts.leadership.run(on_leading, on_lost)
            logger.critical("the main loop does not end: the process ends")
            os._exit(1)

    beat = asyncio.create_task(parts.leadership.heartbeat.run())
    lease = ThreadRun("lease", hold_lease)
    try:
        await _first_of(_fail_with(lost), _lead_after(leading, parts))
    finally:
        parts.metrics.leads(False)
        lease.cancel()
        await asyncio.wait([lease.ended], timeout=LEASE_END_SECONDS)
        beat.cancel()


async def _fail_with(errors: asyncio.Queue[BaseException]) -> None:
    raise await errors.get()


async def _lead_after(leading: asyncio.Event, parts: Parts) -> None:
    await leading.wait()
    parts.health.state = "leading"
    parts.metrics.leads(True)
    await _lead(parts)


async def _lead(parts: Parts) -> None:
    """Everything that only the leader does. When one part fails, the others are stopped."""
    optional = [k for k in await parts.optional_kinds.served() if await parts.rights.can_follow(k)]
    queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop())
    writes = executor(parts.client, parts.clock, parts.settings.pod_name, parts.metrics.statuses)
    namespaces = parts.settings.namespaces
    informer = Informer(parts.client, parts.clock, namespaces, optional, queue.add)
    watches = Watches(informer, parts.rights, parts.clock)
    parts.client.written = informer.written
    reactions = NodeReactions(informer.services, parts.clock, informer.add)
    node_watch = NodeWatch(parts.nodes, parts.streams, parts.clock, reactions.changed)
    reader = StoreReader(informer.objects, parts.client)
    async with query_session() as session:
        journals = Journals(parts.client, parts.clock)
        query = RouterQuery(session)
        autoscaler = _autoscaler(parts, queue, writes, query, journals)
        canaries = CanaryLoop(query, queue.add, parts.clock)
        dispatcher = _dispatcher(parts, queue, writes, autoscaler, canaries, reader)
        try:
            await _first_of(
                watches.run(),
                *(dispatcher.work() for _ in range(parts.settings.workers)),
                _resync(parts, informer),
                node_watch.run(),
                reactions.run(),
                autoscaler.run(),
                canaries.run(),
                journals.run(),
            )
        except asyncio.CancelledError:
            if parts.leadership.is_held:  # ended by a signal, not by the loss of the Lease
                await journals.flush()
            raise


async def _resync(parts: Parts, informer: Informer) -> None:
    """Reconciles every object at regular intervals, in case an event was missed."""
    while True:
        await parts.clock.sleep(parts.settings.resync_seconds)
        try:
            await informer.verify()
        except OperatorError as error:
            logger.warning("resync failed", extra=fields(error=error))


async def _await_definitions(parts: Parts) -> None:
    """Waits until the API server is reachable and serves our kinds.

    Raises:
        DefinitionsMissingError: they are still not installed after `DEFINITIONS_SECONDS`.
    """
    deadline = parts.clock.monotonic() + DEFINITIONS_SECONDS
    while missing := await _missing_definitions(parts):
        if parts.clock.monotonic() >= deadline:
            names = ", ".join(f"{k.plural}.{k.api_version.partition('/')[0]}" for k in missing)
            raise DefinitionsMissingError(f"not installed: {names}; apply Sluice's crds/ first")
        await parts.clock.sleep(LOOK_SECONDS)


async def _missing_definitions(parts: Parts) -> list[Kind]:
    while True:
        try:
            return [kind for kind in RECONCILED if not await parts.client.serves(kind)]
        except RequestError as error:
            # Shortly after its start an API server may refuse requests that it will allow later.
            logger.warning("waiting for the API server", extra=fields(error=error))
            await parts.clock.sleep(LOOK_SECONDS)


def _leadership(settings: Settings, client: ApiClient, clock: Clock) -> Leadership:
    name = LeaseName(settings.pod_namespace, settings.lease_name, settings.pod_name)
    heartbeat = Heartbeat(clock, settings.lease_seconds)
    return Leadership(client, name, LeaseTiming(settings.lease_seconds), heartbeat, clock)


def _images(settings: Settings) -> Images:
    return Images(
        settings.engine_image,
        settings.router_image,
        settings.gpu_engine_image,
        settings.fetch_image,
    )


def _admission(parts: Parts) -> Admission | None:
    """Admission of a replica, whether it leads or not; None where it is off."""
    settings = parts.settings
    if not settings.admission_port:
        return None
    folder = Path(settings.admission_folder)
    endpoint = Endpoint(settings.pod_ip, settings.admission_port, folder)
    return Admission(endpoint, partial(spec_errors, _images(settings)), parts.clock)


def _dispatcher(
    parts: Parts,
    queue: WorkQueue[Key],
    writes: Executor,
    autoscaler: Autoscaler,
    canaries: CanaryLoop,
    reader: Reader,
) -> Dispatcher:
    settings, clock = parts.settings, parts.clock
    services = ServiceObserver(
        reader,
        _images(settings),
        parts.nodes,
        parts.optional_kinds,
        ImageVolumes(parts.client, clock, settings.pod_namespace),
        Installation(
            settings.api_server_ports,
            settings.pod_namespace,
            settings.runbook_url_base,
            settings.hub,
        ),
        DownloadProgress(fetch_over_http, clock),
        NetworkIsolation(connect_over_tcp, clock, in_cluster=settings.is_in_pod),
        RouterLedgers(fetch_over_http, clock),
        RefusedPods(parts.client, clock),
        canaries,
    )
    pools = PoolObserver(
        reader,
        AcceleratorReports(fetch_over_http, clock),
        AdapterReports(fetch_over_http, clock),
        HandoverReports(fetch_over_http, clock),
    )
    reconciles: dict[Kind, Reconcile] = {
        INFERENCE_SERVICE: ServiceReconcile(services, writes, clock, autoscaler),
        ENGINE_POOL: PoolReconcile(pools, writes, clock, autoscaler),
    }
    defects = Defects(reader, writes.reporter, clock)
    reported = {kind.kind: defects.reported(kind, made) for kind, made in reconciles.items()}
    for kind in reported:
        parts.metrics.watch_depth(kind, partial(_depth, queue, kind))
    return Dispatcher(queue, reported, parts.metrics, clock, random.random)


def _autoscaler(
    parts: Parts,
    queue: WorkQueue[Key],
    writes: Executor,
    query: RouterQuery,
    journals: Journals,
) -> Autoscaler:
    scaling_tick = ScalingTick(
        inventory=ScalingInventory(parts.clock),
        query=query,
        carry_out=PoolScaler(parts.client, Victims(parts.client), Mover(parts.client, parts.clock)),
        record=writes.reporter.record,
        journals=journals,
        decided=parts.metrics.decided,
        changed=queue.add,
        clock=parts.clock,
    )
    autoscaler = Autoscaler(scaling_tick, parts.clock, journals.forget)
    parts.metrics.scaled.follow(autoscaler.pools)
    return autoscaler


def _depth(queue: WorkQueue[Key], kind: str) -> int:
    return sum(key.kind == kind for key in queue.waiting())


async def _first_of(*parts: Coroutine[Any, Any, Any]) -> None:
    """Runs all of `parts` until one ends or fails, then cancels the others; raises its error."""
    await until_one_ends([asyncio.create_task(part) for part in parts])
