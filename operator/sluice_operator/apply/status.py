"""Writes an object's status, where it differs, and records events about it.

Status and events are made elsewhere. A status that only counts engines anew, as one does with each
pod that starts, is written once a second at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from sluice_operator.apply.applier import Applier
from sluice_operator.apply.events import EventRecorder
from sluice_operator.apply.plan import Event
from sluice_operator.apply.rewrites import RewrittenError
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import Manifest

COUNTS_SECONDS: Final = 1.0
COUNTS: Final = frozenset(
    {"drainingReplicas", "pools", "readyReplicas", "summary", "updatedReplicas"}
)
"""Numbers of engines for people. Autoscalers read `replicas`, which is not among them."""


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
    clock: Clock
    _written: dict[str, float] = field(default_factory=dict)
    """When a status was last written, by the object's uid; the oldest first."""

    async def report(
        self,
        live: Manifest,
        status: Manifest,
        events: Iterable[Event],
        status_events: Iterable[Event],
        *,
        counts_may_wait: bool = False,
    ) -> float | None:
        """Writes `status` if it differs from `live`'s; returns after how many seconds to try again,
        where others write the same fields, or new counts have to wait. `events` are recorded even
        when that fails: what was done is not noticed a second time. `status_events` only when it
        was written."""
        self.gauges.record(live, status)
        if counts_may_wait and (wait_seconds := self._counts_wait_seconds(live, status)):
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
            self._note_written(live)
            await self.record(live, status_events)
        return None

    def _counts_wait_seconds(self, live: Manifest, status: Manifest) -> float:
        """How long a change of counts alone has to wait after the last write; 0: not at all."""
        written = self._written.get(live["metadata"]["uid"])
        before = live.get("status") or {}
        if written is None or status == before or _urgent(status) != _urgent(before):
            return 0.0
        return max(0.0, written + COUNTS_SECONDS - self.clock.monotonic())

    def _note_written(self, live: Manifest) -> None:
        uid, now = live["metadata"]["uid"], self.clock.monotonic()
        self._written.pop(uid, None)
        self._written[uid] = now
        while now - self._written[oldest := next(iter(self._written))] >= COUNTS_SECONDS:
            del self._written[oldest]

    async def record(self, live: Manifest, events: Iterable[Event]) -> None:
        """Records events, on `live` where they name no other object."""
        for event in events:
            await self.recorder.record(event.about or live, event)


def _urgent(status: Manifest) -> Manifest:
    """The part of a status that somebody may wait for: of counts, whether they are 0."""
    part = {key: value for key, value in status.items() if key not in COUNTS}
    conditions, revisions = status.get("conditions") or (), status.get("revisions") or ()
    part["conditions"] = [{**condition, "message": ""} for condition in conditions]
    part["revisions"] = [
        {**revision, "replicas": 0, "ready": revision["ready"] > 0} for revision in revisions
    ]
    return part
