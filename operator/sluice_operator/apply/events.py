"""Kubernetes events, as `kubectl describe` shows them.

The name of an event is made from its content and a period of ten minutes. So repeating it adds
nothing, even after a restart. Plans and statuses produce the events.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Final, Protocol

from sluice_contract.cluster.labels import FIELD_MANAGER, SERVICE

from sluice_operator.apply.plan import Event
from sluice_operator.clock import Clock, micro_time
from sluice_operator.kube.errors import (
    ConflictError,
    OperatorError,
    TerminatingNamespaceError,
)
from sluice_operator.kube.kinds import Kind, Manifest
from sluice_operator.log import fields

EVENT: Final = Kind("events.k8s.io/v1", "Event", "events")
REPEAT_SECONDS: Final = 600
REMEMBERED_EVENTS: Final = 10_000
NOTE_BYTES: Final = 1024
"""The API's limit."""

logger = logging.getLogger(__name__)


class EventClient(Protocol):
    """The request that recording needs."""

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest: ...


class EventRecorder:
    """Writes events. Best effort: an event that cannot be written stops nothing."""

    def __init__(self, client: EventClient, clock: Clock, instance: str) -> None:
        self._client = client
        self._clock = clock
        self._instance = instance
        self._written: OrderedDict[str, None] = OrderedDict()

    async def record(self, regarding: Manifest, event: Event) -> None:
        """Writes `event` about the object `regarding`, and a line of the log, each only once.
        Writes neither in a namespace that is being deleted."""
        now = self._clock.now().astimezone(UTC)
        name = _name(regarding, event, now)
        if name in self._written:
            return
        error = await self._error_of(self._manifest(regarding, event, name, now))
        if not isinstance(error, TerminatingNamespaceError):
            _log(regarding, event)
        if error is not None and not isinstance(error, TerminatingNamespaceError):
            logger.warning("event not written", extra=fields(error=error))
            return
        self._written[name] = None
        if len(self._written) > REMEMBERED_EVENTS:
            self._written.popitem(last=False)

    async def _error_of(self, manifest: Manifest) -> OperatorError | None:
        try:
            await self._client.create(EVENT, manifest)
        except ConflictError:
            pass  # written before the last restart
        except OperatorError as error:
            return error
        return None

    def _manifest(self, regarding: Manifest, event: Event, name: str, now: datetime) -> Manifest:
        metadata = regarding["metadata"]
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.kind,
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "regarding": {
                "apiVersion": regarding["apiVersion"],
                "kind": regarding["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": event.type,
            "reason": event.reason,
            "note": event.message.encode()[:NOTE_BYTES].decode(errors="ignore"),
            "action": "Reconcile",
            "eventTime": micro_time(now),
            "reportingController": FIELD_MANAGER,
            "reportingInstance": self._instance,
        }


def _log(regarding: Manifest, event: Event) -> None:
    metadata = regarding["metadata"]
    logger.log(
        logging.WARNING if event.type == "Warning" else logging.INFO,
        event.reason,
        extra=fields(
            service=(metadata.get("labels") or {}).get(SERVICE, metadata["name"]),
            kind=regarding["kind"],
            namespace=metadata["namespace"],
            name=metadata["name"],
            message=event.message,
        ),
    )


def _name(regarding: Manifest, event: Event, now: datetime) -> str:
    period = str(int(now.timestamp()) // REPEAT_SECONDS)
    identity = (regarding["metadata"]["uid"], event.type, event.reason, event.message, period)
    digest = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:16]
    return f"{regarding['metadata']['name']}.{digest}"
