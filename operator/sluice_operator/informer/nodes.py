"""The cluster's nodes, kept up to date by a watch, if the install lets the operator read them.

Kopf does not hold this watch: the right is optional here, and a refusal is not a failure. Only the
part of a node that decides where pods can run is kept. So the frequent status updates of kubelets
are not changes.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from sluice_contract.cluster.list_watch import ListWatch

from sluice_operator.clock import Clock
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Request, Streams
from sluice_operator.kube.errors import FORBIDDEN, ApiError, OperatorError
from sluice_operator.kube.kinds import NODE, Manifest
from sluice_operator.log import fields

logger = logging.getLogger(__name__)
LONGEST_FORBIDDEN_SECONDS: Final = 60.0
"""Longest delay between two attempts to read nodes without the right, which many installs never
give."""


class NodeChange(NamedTuple):
    """One node before and after a change; None: it was not there, or is gone."""

    before: Manifest | None
    after: Manifest | None


class Nodes:
    """The nodes by name, as far as they are known."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._known: dict[str, Manifest] | None = None
        self._was_read = False

    async def list(self) -> tuple[Manifest, ...] | None:
        """Every node; None where the install does not let the operator read them.

        Raises:
            RequestError: they could not be read yet.
        """
        async with self._lock:
            if not self._was_read:
                try:
                    await self._read()
                except ApiError as error:
                    if error.status != FORBIDDEN:
                        raise
                self._was_read = True
        return None if self._known is None else tuple(self._known.values())

    async def reread(self) -> tuple[tuple[NodeChange, ...], str]:
        """Changes of nodes since the last reading, and the version to watch from.

        Raises:
            RequestError: they cannot be read; what was read before is kept.
        """
        async with self._lock:
            before, is_first = dict(self._known or {}), not self._was_read
            version = await self._read()
        if is_first:
            return (), version
        after = self._known or {}
        names = sorted(before.keys() | after.keys())
        changes = (NodeChange(before.get(name), after.get(name)) for name in names)
        return tuple(change for change in changes if change.before != change.after), version

    def update(self, event: str, node: Manifest) -> NodeChange | None:
        """Applies an event of the watch; None when nothing relevant has changed."""
        nodes = self._known if self._known is not None else {}
        name, after = node["metadata"]["name"], _relevant(node)
        before = nodes.pop(name, None)
        if event == "DELETED":
            return NodeChange(before, None)
        nodes[name] = after
        return None if before == after else NodeChange(before, after)

    async def _read(self) -> str:
        items, version = await self._client.list_with_version(NODE, _relevant)
        self._known, self._was_read = {item["metadata"]["name"]: item for item in items}, True
        return version


class NodeWatch:
    """Keeps `nodes` up to date, and calls `on_change` with what has changed."""

    def __init__(
        self,
        nodes: Nodes,
        streams: Streams,
        clock: Clock,
        on_change: Callable[[Iterable[NodeChange]], None],
    ) -> None:
        self._nodes = nodes
        self._streams = streams
        self._clock = clock
        self._on_change = on_change

    async def run(self) -> None:
        """Follows the nodes until it is cancelled."""
        clock = self._clock
        errors = (OperatorError,)
        times = (clock.monotonic, clock.sleep, random.random)
        await ListWatch(self, errors, *times, LONGEST_FORBIDDEN_SECONDS).run()

    async def list(self) -> str:
        """Lists the nodes."""
        changes, version = await self._nodes.reread()
        self._on_change(changes)
        return version

    def lines(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Watches the nodes."""
        return self._streams.lines(Request("GET", path(NODE, None), query))

    def take(self, change: str, item: Manifest) -> None:
        """Takes over a node, and reports it if something relevant has changed."""
        if (changed := self._nodes.update(change, item)) is not None:
            self._on_change((changed,))

    def failed(self, error: Exception, failures: int) -> None:
        """Logs what is missing. A refusal is no failure: the right is optional."""
        if not isinstance(error, ApiError) or error.status != FORBIDDEN:
            logger.warning("nodes not followed", extra=fields(error=error))
        elif failures == 1:
            logger.info("nodes may not be followed: what may be read is read again within a minute")


def _relevant(node: Manifest) -> Manifest:
    """The part of a node that decides where a pod can run, and which volumes it can have."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    metadata = node["metadata"]
    runtime = (status.get("nodeInfo") or {}).get("containerRuntimeVersion")
    info = {"nodeInfo": {"containerRuntimeVersion": runtime}} if runtime else {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {"allocatable": status.get("allocatable") or {}} | info,
    }
