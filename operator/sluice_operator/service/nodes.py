"""Which services a change of nodes concerns: those that ask for an accelerator of a changed node.

Changes are collected for a moment, so that a group of new nodes causes one check. Services without
an accelerator are never concerned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from sluice_operator.accelerators.find import has_accelerator
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.validate import with_stored_spec
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import NodeChange
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest

COLLECT_SECONDS: Final = 2.0


class NodeReactions:
    """Queues the services that changed nodes concern."""

    def __init__(
        self,
        services: Callable[[], Iterable[Manifest]],
        clock: Clock,
        add: Callable[[Key], None],
    ) -> None:
        self._services = services
        self._clock = clock
        self._add = add
        self._changes: list[NodeChange] = []
        self._news = asyncio.Event()

    def changed(self, changes: Iterable[NodeChange]) -> None:
        """Adds changes; those of nodes without devices are dropped, as they concern no service."""
        self._changes += filter(_has_devices, changes)
        if self._changes:
            self._news.set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        while True:
            await self._news.wait()
            await self._clock.sleep(COLLECT_SECONDS)
            self._news.clear()
            changes, self._changes = self._changes, []
            for service in self._services():
                if concerns(service, changes):
                    metadata = service["metadata"]
                    self._add(Key(INFERENCE_SERVICE.kind, metadata["namespace"], metadata["name"]))


def concerns(service: Manifest, changes: Iterable[NodeChange]) -> bool:
    """Whether one of the nodes has, or had, what a pool of the service asks for."""
    try:
        spec = parse(InferenceServiceSpec, with_stored_spec(service)["spec"], "spec")
    except InvalidSpecError as error:
        if not isinstance(error.parsed, InferenceServiceSpec):
            return False
        spec = error.parsed
    pools = [spec.pool(role) for role in spec.roles]
    nodes = [node for change in changes for node in change if node is not None]
    return any(has_accelerator(node, pool) for pool in pools for node in nodes)


def _has_devices(change: NodeChange) -> bool:
    """Whether the node has or had devices: resources with a domain in their names, as
    `nvidia.com/gpu`."""
    nodes = (node for node in change if node is not None)
    return any("/" in name for node in nodes for name in node["status"]["allocatable"])
