"""Writes an object's status, where it differs, and records events about it.

Status and events are made elsewhere. A status in which only counts differ, as after each start of a
pod, is written at most once a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from sluice_operator.apply.applier import Applier
from sluice_operator.apply.events import EventRecorder
from sluice_operator.apply.plan import Event
from sluice_operator.apply.rewrites import RewrittenError
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key, without_counts
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import Manifest

COUNTS_SECONDS: Final = 1.0


class StatusGauges(Protocol):
    """Exposes the statuses of objects, e.g. as metrics."""

    def record(self, live: Manifest, status: Manifest) -> None: ...

    def forget(self, key: Key) -> None: ...


class WritePace:
    """How often the status of an object is written for a change of counts alone."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._written: dict[str, float] = {}
        """Time of the last write of each status, by the object's uid; the oldest first."""

    def wait_seconds(self, live: Manifest, status: Manifest) -> float:
        """Seconds for which `status` has to wait before it replaces `live`'s; 0: it need not
        wait."""
        written, before = self._written.get(live["metadata"]["uid"]), live.get("status") or {}
        if written is None or status == before or without_counts(status) != without_counts(before):
            return 0.0
        return max(0.0, written + COUNTS_SECONDS - self._clock.monotonic())

    def note_written(self, live: Manifest) -> None:
        """Called after each write."""
        uid, now = live["metadata"]["uid"], self._clock.monotonic()
        self._written.pop(uid, None)
        self._written[uid] = now
        while now - self._written[oldest := next(iter(self._written))] >= COUNTS_SECONDS:
            del self._written[oldest]


@dataclass(frozen=True)
class Reporter:
    """Writes the status subresource and events of reconciled objects."""

    applier: Applier
    recorder: EventRecorder
    gauges: StatusGauges
    pace: WritePace

    async def report(
        self,
        live: Manifest,
        status: Manifest,
        events: Iterable[Event],
        status_events: Iterable[Event],
        *,
        counts_may_wait: bool = False,
    ) -> float | None:
        """Writes `status` if it differs from `live`'s. Returns the seconds until another try, where
        others write the same fields or new counts have to wait. `events` are recorded even if the
        write fails, because their causes are not seen again; `status_events` only if it
        succeeds."""
        self.gauges.record(live, status)
        if counts_may_wait and (wait_seconds := self.pace.wait_seconds(live, status)):
            await self.record(live, events)
            return wait_seconds
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid")}
        desired = {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "metadata": metadata,
            "status": status,
        }
        try:
            written = await self.applier.apply(desired, live, "status")
        except RewrittenError as error:
            await self.record(live, events)
            return error.again_seconds
        except RequestError:
            await self.record(live, events)
            raise
        await self.record(live, events)
        if written is not None:
            self.pace.note_written(live)
            await self.record(live, status_events)
        return None

    async def record(self, live: Manifest, events: Iterable[Event]) -> None:
        """Records events, on `live` where they name no other object."""
        for event in events:
            await self.recorder.record(event.about or live, event)
