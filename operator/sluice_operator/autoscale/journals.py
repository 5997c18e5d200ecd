"""Keeps each service's journal of decisions in a ConfigMap, `NAME-scaling`, for people and replays.

In memory is only what was not written yet. A service's journal is written once a minute at most,
and that of one where nothing was decided anew every ten. It is an aid: what cannot be
written is tried again later, and stops nothing. Knows the form of a line from `sluice_autoscaler`.
"""

from __future__ import annotations

import base64
import logging
import zlib
from dataclasses import dataclass, field
from typing import Final

from sluice_autoscaler.history import Tick
from sluice_autoscaler.journal import Journal, JournalError, read_journal
from sluice_autoscaler.settings import Settings

from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.log import fields

JOURNAL_KEY: Final = "journal.jsonl.gz"
JOURNAL_MANAGER: Final = "sluice-operator-journal"
WRITE_SECONDS: Final = 60.0
QUIET_WRITE_SECONDS: Final = 600.0
PENDING_BYTES: Final = 64 * 1024
"""Of one service in memory; what is older is lost when writing fails for long."""
UNPACKED_BYTES: Final = 8 * 2**20
"""Of a journal that is read; more is none of ours."""
LOOK_SECONDS: Final = 5.0

logger = logging.getLogger(__name__)


@dataclass
class _Pending:
    live: Manifest
    journal: Journal = field(default_factory=lambda: Journal(kept_bytes=PENDING_BYTES))
    written_at: float = 0.0
    dirty: bool = False
    news: bool = False
    """It has a line in which something was decided."""


class Journals:
    """Journals by service. `run` writes them."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._pending: dict[Key, _Pending] = {}

    def add(self, key: Key, live: Manifest, settings: Settings, tick: Tick) -> None:
        """Notes a tick of the service `live`."""
        found = self._pending.get(key)
        if found is None:
            found = self._pending[key] = _Pending(live, written_at=self._clock.monotonic())
        found.live = live
        if found.journal.add(settings, tick, unix_seconds=tick.sample.time_seconds):
            found.dirty = True
            found.news = found.news or bool(tick.decision.changes)

    def forget(self, key: Key) -> None:
        """The service is gone, or not scaled any more."""
        self._pending.pop(key, None)

    async def last_ticks(self, live: Manifest) -> tuple[Tick, ...]:
        """What an operator before this one has noted of a service; nothing where that cannot be
        read."""
        try:
            return tuple(line.tick for line in read_journal(await self._lines(live)))
        except (RequestError, JournalError) as error:
            logger.info("journal not read", extra=_place(live, error))
            return ()

    async def run(self) -> None:
        """Writes what is due, until it is cancelled."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            for key in self._due():
                await self.write(key)

    def _due(self) -> list[Key]:
        now = self._clock.monotonic()
        return [
            key
            for key, found in self._pending.items()
            if found.dirty
            and now - found.written_at >= (WRITE_SECONDS if found.news else QUIET_WRITE_SECONDS)
        ]

    async def write(self, key: Key) -> None:
        """Adds what is pending to the ConfigMap."""
        found = self._pending.get(key)
        if found is None:
            return
        lines, found.written_at = found.journal.take(), self._clock.monotonic()
        found.dirty = found.news = False
        try:
            whole = Journal([*await self._lines(found.live), *lines])
            manifest = journal_manifest(found.live, whole.text())
            await self._client.apply(CONFIG_MAP, manifest, manager=JOURNAL_MANAGER)
        except RequestError as error:
            logger.warning("journal not written", extra=_place(found.live, error))
            found.journal.put_back(lines)
            found.dirty = True

    async def _lines(self, live: Manifest) -> list[str]:
        metadata = live["metadata"]
        name = journal_name(metadata["name"])
        found = await self._client.get(CONFIG_MAP, metadata["namespace"], name)
        return journal_lines(found) if found else []


def journal_name(service: str) -> str:
    """The name of a service's ConfigMap."""
    return f"{service}-scaling"


def journal_manifest(live: Manifest, text: str) -> Manifest:
    """The ConfigMap with the journal of the service `live`, which goes with it. Not one of its
    children: those are planned, and watched."""
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


def journal_lines(config_map: Manifest) -> list[str]:
    """The lines in such a ConfigMap; none where somebody has made something else of it."""
    packed = (config_map.get("binaryData") or {}).get(JOURNAL_KEY, "")
    try:
        unpacking = zlib.decompressobj(wbits=31)
        text = unpacking.decompress(base64.b64decode(packed), UNPACKED_BYTES).decode()
    except (ValueError, zlib.error):
        return []
    return text.splitlines()


def _place(live: Manifest, error: Exception) -> dict[str, object]:
    metadata = live["metadata"]
    return fields(namespace=metadata["namespace"], name=metadata["name"], error=error)
