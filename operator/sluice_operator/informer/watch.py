"""Kopf as the informer: every event of a watched kind becomes keys in the queue.

Only raw-event handlers, so Kopf stores nothing in objects: no annotation, no finalizer. Knows
which kinds concern a reconcile; not what it does.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

import kopf
from sluice_contract import labels

from sluice_operator.informer.keys import RECONCILED, Key, keys_of
from sluice_operator.kube.client import PAGE_ITEMS
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import OPTIONAL_CHILDREN, POD, SERVICE_CHILDREN, Kind
from sluice_operator.kube.transport import SILENCE_SECONDS, log_in

CHILDREN: Final = tuple(kind for kind in (*SERVICE_CHILDREN, POD) if kind not in RECONCILED)
IDLE_SECONDS: Final = 0.5
"""Kopf keeps a task for every object until no event has come for this long."""
CONNECT_SECONDS: Final = 10.0


class EndlessBackoffs:
    """Delays between attempts at one request: endless, and each iteration starts from the first.

    Kopf ends the process when its delays run out, which a list or a generator would.
    """

    def __init__(self, first_seconds: float, cap_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._cap_seconds = cap_seconds

    def __iter__(self) -> Iterator[float]:
        delay = self._first_seconds
        while True:
            yield delay
            delay = min(2 * delay, self._cap_seconds)


def event_registry(
    add: Callable[[Key], None], optional: Iterable[Kind] = ()
) -> kopf.OperatorRegistry:
    """Kopf's handlers: one per watched kind, all alike, and the log-in. `optional`: further kinds
    of children, which the cluster has."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(_log_in)
    for kind in (*RECONCILED, *CHILDREN, *optional):
        group, _, version = kind.api_version.rpartition("/")
        kopf.on.event(group, version, kind.plural, registry=registry)(_handler(kind, add))
    return registry


def informer_settings() -> kopf.OperatorSettings:
    """Watches that survive outages, notice dead connections, and select only our objects."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.error_backoffs = EndlessBackoffs(0.25, 5.0)
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = PAGE_ITEMS
    settings.queueing.idle_timeout = IDLE_SECONDS
    for kind in (*CHILDREN, *OPTIONAL_CHILDREN):
        group, _, version = kind.api_version.rpartition("/")
        settings.watching.label_selectors[group, version, kind.plural] = labels.SERVICE
    return settings


async def inform(
    add: Callable[[Key], None],
    namespaces: tuple[str, ...],
    optional: Iterable[Kind],
    on_signal: Callable[[], None],
) -> None:
    """Watches until cancelled; `add` is called with every key that may need a reconcile.

    Raises:
        Exception: a watch failed for good. The process should end, and be started again.
    """
    bystanders = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=event_registry(add, optional),
        settings=informer_settings(),
        standalone=True,
        # By default Kopf looks up the user's name, and a container's user has none.
        identity=cast(Any, labels.FIELD_MANAGER),
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    # Kopf has just installed its own handlers, which would stop the informer only.
    take_signals(on_signal)
    await kopf.run_tasks(tasks, ignored=bystanders)
    raise OperatorError("the informer ended unexpectedly")


def take_signals(on_signal: Callable[[], None]) -> None:
    """Calls `on_signal` on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


def _handler(kind: Kind, add: Callable[[Key], None]) -> Callable[..., Any]:
    async def enqueue(body: kopf.Body, **_: Any) -> None:
        for key in keys_of(kind, body):
            add(key)

    return enqueue


async def _log_in(**_: Any) -> kopf.ConnectionInfo:
    return log_in()
