"""The operator's life: stand by, lead, stop. Puts the parts together and runs them.

Knows every part's place and none of their work.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from sluice_operator.client import ApiClient
from sluice_operator.clock import Clock
from sluice_operator.dispatch import Dispatcher, Reconcile
from sluice_operator.errors import DefinitionsMissingError, OperatorError, RequestError
from sluice_operator.execute import executor
from sluice_operator.keys import RECONCILED, Key
from sluice_operator.lease import Leadership, LeaseName, LeaseTiming
from sluice_operator.listeners import Health, listening
from sluice_operator.metrics import OperatorMetrics
from sluice_operator.observe import Nodes, Observer
from sluice_operator.observed import ENGINE_POOL, INFERENCE_SERVICE, Images, Kind
from sluice_operator.pool.reconcile import PoolReconcile
from sluice_operator.service.reconcile import ServiceReconcile
from sluice_operator.settings import Settings
from sluice_operator.tasks import until_one_ends
from sluice_operator.transport import Transport
from sluice_operator.watch import inform, take_signals
from sluice_operator.workqueue import WorkQueue

DEFINITIONS_SECONDS: Final = 20.0
"""The kinds may be installed in the same breath as the operator."""

LOOK_SECONDS: Final = 1.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """What one process is made of."""

    settings: Settings
    client: ApiClient
    clock: Clock
    metrics: OperatorMetrics
    health: Health
    stop: asyncio.Event


async def run(settings: Settings, transport: Transport, clock: Clock) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises:
        Exception: the process cannot go on, and should be started again.
    """
    metrics = OperatorMetrics()
    client = ApiClient(transport, metrics.wrote)
    parts = Parts(settings, client, clock, metrics, Health(), asyncio.Event())
    take_signals(parts.stop.set)
    ports = (settings.health_port, settings.metrics_port)
    async with listening(settings.pod_ip, ports, parts.health, metrics.exposition):
        await _first_of(parts.stop.wait(), _serve(parts))


async def _serve(parts: Parts) -> None:
    await _await_definitions(parts)
    parts.health.state, parts.health.ready = "standing by", True
    leadership = _leadership(parts)
    try:
        await leadership.acquire()
        logger.info("leading")
        parts.health.state = "leading"
        parts.metrics.leads(True)
        await _lead(parts, leadership)
    finally:
        parts.metrics.leads(False)
        await leadership.release()


async def _lead(parts: Parts, leadership: Leadership) -> None:
    """Everything that only the leader does. Ends, and ends all of it, when any part fails."""
    queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop())
    dispatcher = _dispatcher(parts, queue)
    await _first_of(
        leadership.hold(),
        *(dispatcher.work() for _ in range(parts.settings.workers)),
        _resync(parts, queue),
        inform(queue.add, parts.settings.namespaces, parts.stop.set),
    )


async def _resync(parts: Parts, queue: WorkQueue[Key]) -> None:
    """Looks at everything again now and then: an event may have been missed."""
    while True:
        await parts.clock.sleep(parts.settings.resync_seconds)
        try:
            for namespace in parts.settings.namespaces or (None,):
                for kind in RECONCILED:
                    for where, name in await parts.client.names(kind, namespace):
                        queue.add(Key(kind.kind, where, name))
        except OperatorError as error:
            logger.warning("resync left for the next time: %s", error)


async def _await_definitions(parts: Parts) -> None:
    """Returns when our kinds are served; waits for an API server that is away.

    Raises:
        DefinitionsMissingError: they are not installed, also after a while.
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
            # For a moment after its start an API server may refuse what it will allow.
            logger.warning("waiting for the API server: %s", error)
            await parts.clock.sleep(LOOK_SECONDS)


def _leadership(parts: Parts) -> Leadership:
    settings = parts.settings
    name = LeaseName(settings.pod_namespace, settings.lease_name, settings.pod_name)
    return Leadership(parts.client, name, LeaseTiming(settings.lease_seconds), parts.clock)


def _dispatcher(parts: Parts, queue: WorkQueue[Key]) -> Dispatcher:
    settings, clock = parts.settings, parts.clock
    images = Images(settings.engine_image, settings.router_image)
    nodes = Nodes(parts.client, clock)
    observer = Observer(parts.client, images, nodes, settings.api_server_ports)
    carrying_out = executor(parts.client, clock, settings.pod_name)
    reconciles: dict[str, Reconcile] = {
        INFERENCE_SERVICE.kind: ServiceReconcile(observer, carrying_out, clock),
        ENGINE_POOL.kind: PoolReconcile(observer, carrying_out, clock),
    }
    for kind in reconciles:
        parts.metrics.watch_depth(kind, partial(_depth, queue, kind))
    return Dispatcher(queue, reconciles, parts.metrics, clock, random.random)


def _depth(queue: WorkQueue[Key], kind: str) -> int:
    return sum(key.kind == kind for key in queue.waiting())


async def _first_of(*parts: Coroutine[Any, Any, Any]) -> None:
    """Runs all of `parts` until one ends or fails, and stops the others; raises its error."""
    await until_one_ends([asyncio.create_task(part) for part in parts])
