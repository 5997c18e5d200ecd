"""Says how an object is doing: its status, and the events that a change of status is worth.

Writes only what differs. Knows no kind in particular; the status itself is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sluice_operator.apply import Applier
from sluice_operator.conditions import status_events
from sluice_operator.errors import RequestError
from sluice_operator.events import EventRecorder
from sluice_operator.observed import Event, Manifest


@dataclass(frozen=True)
class Reporter:
    """Writes the status subresource and events of reconciled objects."""

    applier: Applier
    recorder: EventRecorder

    async def report(self, live: Manifest, status: Manifest, events: Iterable[Event]) -> None:
        """Writes `status` if it differs from `live`'s; then what happened, for a person, whatever
        became of the status: what was done is not seen to be done a second time."""
        metadata = {key: live["metadata"][key] for key in ("name", "namespace", "uid")}
        desired = {
            "apiVersion": live["apiVersion"],
            "kind": live["kind"],
            "metadata": metadata,
            "status": status,
        }
        try:
            written = await self.applier.apply(desired, live, "status")
        except RequestError:
            await self.tell(live, events)
            raise
        changes = () if written is None else status_events(live.get("status"), status)
        await self.tell(live, (*events, *changes))

    async def tell(self, live: Manifest, events: Iterable[Event]) -> None:
        """Records events, on `live` where they name no other object."""
        for event in events:
            await self.recorder.record(event.about or live, event)
