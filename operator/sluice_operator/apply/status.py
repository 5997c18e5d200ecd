"""Writes an object's status, where it differs, and records events about it.

Status and events are made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sluice_operator.apply.applier import Applier
from sluice_operator.apply.events import EventRecorder
from sluice_operator.apply.plan import Event
from sluice_operator.apply.rewrites import RewrittenError
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import Manifest


class StatusGauges(Protocol):
    """Exposes the statuses of objects, e.g. as metrics."""

    def record(self, live: Manifest, status: Manifest) -> None: ...

    def forget(self, key: Key) -> None: ...


@dataclass(frozen=True)
class Reporter:
    """Writes the status subresource and events of reconciled objects."""

    applier: Applier
    recorder: EventRecorder
    gauges: StatusGauges

    async def report(
        self,
        live: Manifest,
        status: Manifest,
        events: Iterable[Event],
        status_events: Iterable[Event],
    ) -> float | None:
        """Writes `status` if it differs from `live`'s; returns after how many seconds to try again,
        where others write the same fields. `events` are recorded even when that fails:
        what was done is not noticed a second time. `status_events` only when it was written."""
        self.gauges.record(live, status)
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
            await self.record(live, status_events)
        return None

    async def record(self, live: Manifest, events: Iterable[Event]) -> None:
        """Records events, on `live` where they name no other object."""
        for event in events:
            await self.recorder.record(event.about or live, event)
