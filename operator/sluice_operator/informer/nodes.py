"""The cluster's nodes, kept up to date by a watch, if the install lets the operator read them.

Kopf does not hold this watch: the right is optional here, and a refusal is not a failure. Only the
part of a node that decides where pods can run is kept. So the frequent status updates of kubelets
are not changes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from sluice_operator.clock import Clock
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Request, Streams
from sluice_operator.kube.errors import FORBIDDEN, ApiError, OperatorError, UnavailableError
from sluice_operator.kube.kinds import NODE, Manifest
from sluice_operator.log import fields

REREAD_SECONDS: Final = 60.0
"""How often to list again where nodes may not be watched, or not read: rights may be granted
later."""
RETRY_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)


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
                await self._read()
        return None if self._known is None else tuple(self._known.values())

    async def reread(self) -> tuple[tuple[NodeChange, ...], str | None]:
        """What has changed since it was last read, and the version to watch from: None where nodes
        may not be read. What was read before is then kept, as API servers refuse for a moment
        after their start."""
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

    async def _read(self) -> str | None:
        try:
            items, version = await self._client.list_with_version(NODE, _relevant)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            version = None
        else:
            self._known = {item["metadata"]["name"]: item for item in items}
        self._was_read = True
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
        self._last_logged: str | None = None

    async def run(self) -> None:
        """Follows the nodes until it is cancelled."""
        while True:
            await self._clock.sleep(await self._follow_until_it_ends())

    async def _follow_until_it_ends(self) -> float:
        """Lists and watches once; returns the seconds after which to begin again."""
        try:
            changes, version = await self._nodes.reread()
            self._on_change(changes)
            if version is None:
                self._log_once("nodes may not be listed: accelerators are what the specs say")
                return REREAD_SECONDS
            await self._follow(version)
        except ApiError as error:
            if error.status == FORBIDDEN:
                self._log_once("nodes may not be watched: they are listed every minute")
                return REREAD_SECONDS
            logger.warning("nodes not followed", extra=fields(error=error))
        except OperatorError as error:
            logger.warning("nodes not followed", extra=fields(error=error))
        return RETRY_SECONDS

    async def _follow(self, version: str) -> None:
        """Returns when the watch ends; the list is then read again.

        Raises:
            OperatorError: it was refused or broken off.
        """
        query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": version}
        async for line in self._streams.lines(Request("GET", path(NODE, None), query)):
            event = parse_event(line)
            if event["type"] == "ERROR":
                return
            if event["type"] != "BOOKMARK":
                self._on_change(_changes(self._nodes.update(event["type"], event["object"])))

    def _log_once(self, text: str) -> None:
        if text != self._last_logged:
            logger.info("%s", text)
        self._last_logged = text


def parse_event(line: bytes) -> dict[str, Any]:
    """One event of a watch.

    Raises:
        UnavailableError: the line was cut off, and so the watch.
    """
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError as error:
        raise UnavailableError("watch", f"a line that is no JSON: {line[:100]!r}") from error
    return event


def _changes(change: NodeChange | None) -> Iterator[NodeChange]:
    if change is not None:
        yield change


def _relevant(node: Manifest) -> Manifest:
    """What decides where a pod can run, and what its volumes may be."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    metadata = node["metadata"]
    runtime = (status.get("nodeInfo") or {}).get("containerRuntimeVersion")
    info = {"nodeInfo": {"containerRuntimeVersion": runtime}} if runtime else {}
    return {
        "metadata": {"name": metadata["name"], "labels": metadata.get("labels") or {}},
        "spec": {key: spec[key] for key in ("taints", "unschedulable") if key in spec},
        "status": {"allocatable": status.get("allocatable") or {}} | info,
    }
