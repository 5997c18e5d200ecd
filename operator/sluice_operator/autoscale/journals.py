"""Keeps each service's journal of decisions in a ConfigMap, `NAME-scaling`, for people and replays.

Memory holds only what was not written yet. A journal is written at most once a minute, and at most
every ten minutes while no decision changes. The journal is an aid: a failed write is retried later
and stops nothing. `sluice_autoscaler` defines the form of a line.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from sluice_autoscaler.history import Tick
from sluice_autoscaler.journal import Journal, JournalError, read_journal
from sluice_autoscaler.settings import ScalingSettings

from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError, TerminatingNamespaceError
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.log import fields

JOURNAL_KEY: Final = "journal.jsonl.gz"
JOURNAL_MANAGER: Final = "sluice-operator-journal"
WRITE_SECONDS: Final = 60.0
QUIET_WRITE_SECONDS: Final = 600.0
PENDING_BYTES: Final = 64 * 1024
"""Maximum size of one service's lines in memory. The oldest are lost where writing fails for
long."""
UNPACKED_BYTES: Final = 8 * 2**20
"""Maximum size of a journal that is read; a larger one was not written here."""
LOOK_SECONDS: Final = 5.0
FLUSH_SECONDS: Final = 3.0
"""Time to write pending lines when the operator ends; it holds its Lease until then."""

logger = logging.getLogger(__name__)


@dataclass
class _Pending:
    live: Manifest
    journal: Journal = field(default_factory=lambda: Journal(kept_bytes=PENDING_BYTES))
    written_at: float = 0.0
    dirty: bool = False
    news: bool = False
    """Whether a pending line has a decision that changed something."""


class Journals:
    """Journals by service. `run` writes them."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._pending: dict[Key, _Pending] = {}
        self._foreign: set[Key] = set()
        """Services of whose ConfigMap it was said that it is another's."""

    def add(self, key: Key, live: Manifest, settings: ScalingSettings, tick: Tick) -> None:
        """Notes a tick of the service `live`."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = _Pending(live, written_at=self._clock.monotonic())
        pending.live = live
        if pending.journal.add(settings, tick, unix_seconds=tick.sample.time_seconds):
            pending.dirty = True
            pending.news = pending.news or bool(tick.decision.changes)

    def forget(self, key: Key) -> None:
        """The service is gone, or not scaled any more."""
        self._pending.pop(key, None)
        self._foreign.discard(key)

    async def last_ticks(self, live: Manifest) -> tuple[Tick, ...]:
        """Ticks that a former operator process wrote for the service; none where they cannot be
        read."""
        try:
            config_map = await self._read(live)
            lines = journal_lines(config_map) if config_map and _is_of(live, config_map) else []
            return tuple(line.tick for line in read_journal(lines))
        except (RequestError, JournalError) as error:
            logger.info("journal not read", extra=_place(live, error))
            return ()

    async def run(self) -> None:
        """Writes what is due, until it is cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            for key in self._due():
                await self.write(key)

    async def flush(self) -> None:
        """Writes all that is pending, as far as there is time."""
        dirty = [key for key, pending in self._pending.items() if pending.dirty]
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                await asyncio.gather(*map(self.write, dirty))

    def _due(self) -> list[Key]:
        now = self._clock.monotonic()
        return [
            key
            for key, pending in self._pending.items()
            if pending.dirty
            and now - pending.written_at >= (WRITE_SECONDS if pending.news else QUIET_WRITE_SECONDS)
        ]

    async def write(self, key: Key) -> None:
        """Adds what is pending to the ConfigMap."""
        pending = self._pending.get(key)
        if pending is None:
            return
        lines, pending.written_at = pending.journal.take(), self._clock.monotonic()
        news, pending.dirty, pending.news = pending.news, False, False
        try:
            await self._add(key, pending.live, lines)
        except BaseException as error:  # also where it is cancelled
            pending.journal.put_back(lines)
            pending.dirty, pending.news = True, news
            if not isinstance(error, RequestError):
                raise
            if not isinstance(error, TerminatingNamespaceError):
                logger.warning("journal not written", extra=_place(pending.live, error))

    async def _add(self, key: Key, live: Manifest, lines: list[str]) -> None:
        """Adds lines to the service's ConfigMap; drops them if a ConfigMap of that name is not the
        service's."""
        there = await self._read(live)
        if there is not None and not _is_of(live, there):
            if key not in self._foreign:
                text = f"ConfigMap {there['metadata']['name']} is not this service's"
                logger.warning("journal not kept", extra=_place(live, text))
            self._foreign.add(key)
            return
        self._foreign.discard(key)
        before = journal_lines(there) if there else []
        # Lines of a cancelled write may be there already.
        whole = Journal(dict.fromkeys((*before, *lines)))
        manifest = journal_manifest(live, whole.text())
        await self._client.apply(CONFIG_MAP, manifest, manager=JOURNAL_MANAGER)

    async def _read(self, live: Manifest) -> Manifest | None:
        metadata = live["metadata"]
        name = journal_name(metadata["name"])
        return await self._client.get(CONFIG_MAP, metadata["namespace"], name)


def journal_name(service: str) -> str:
    """The name of a service's ConfigMap."""
    return f"{service}-scaling"


def journal_manifest(live: Manifest, text: str) -> Manifest:
    """The ConfigMap with the journal of the service `live`, which owns it. It is not one of the
    planned children, which are watched."""
    metadata = live["metadata"]
    owner = {"apiVersion": live["apiVersion"], "kind": live["kind"]}
    owner |= {"name": metadata["name"], "uid": metadata["uid"]}
    packed = zlib.compress(text.encode(), wbits=31)
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": journal_name(metadata["name"]),
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "binaryData": {JOURNAL_KEY: base64.b64encode(packed).decode()},
    }


def _is_of(live: Manifest, config_map: Manifest) -> bool:
    """Whether the ConfigMap was made for this service, and not for another of its name. A journal
    that has lost its owner is this service's: it was orphaned with it, or restored."""
    owners = config_map["metadata"].get("ownerReferences") or ()
    if not owners:
        return bool(journal_lines(config_map))
    return any(owner["uid"] == live["metadata"]["uid"] for owner in owners)


def journal_lines(config_map: Manifest) -> list[str]:
    """The journal's lines in a ConfigMap; none where somebody has broken the content."""
    packed = (config_map.get("binaryData") or {}).get(JOURNAL_KEY, "")
    try:
        unpacking = zlib.decompressobj(wbits=31)
        text = unpacking.decompress(base64.b64decode(packed), UNPACKED_BYTES).decode()
    except (ValueError, zlib.error):
        return []
    return text.splitlines()


def _place(live: Manifest, error: object) -> dict[str, object]:
    metadata = live["metadata"]
    return fields(namespace=metadata["namespace"], name=metadata["name"], error=error)
