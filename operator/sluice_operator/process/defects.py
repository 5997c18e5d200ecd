"""An unexpected exception in a reconcile is shown in the status of its object."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sluice_operator.api.conditions import (
    PROGRESSING,
    READY,
    RECONCILING,
    STALLED,
    UPDATED,
    Check,
)
from sluice_operator.apply.status import Reporter
from sluice_operator.clock import Clock
from sluice_operator.conditions.conditions import conditions, find, status_events
from sluice_operator.informer.dispatch import Reconcile
from sluice_operator.informer.keys import Key
from sluice_operator.informer.reader import Reader
from sluice_operator.kube.errors import OperatorError, RequestError
from sluice_operator.kube.kinds import Kind, Manifest, is_being_deleted
from sluice_operator.log import fields

INTERNAL_ERROR: Final = "InternalError"
MAX_TEXT: Final = 256
"""Characters of an exception that a condition shows."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Defects:
    """Reports exceptions that do not come from the API server."""

    reader: Reader
    reporter: Reporter
    clock: Clock

    def reported(self, kind: Kind, reconcile: Reconcile) -> Reconcile:
        """`reconcile` of objects of this kind; its exceptions are reported and raised again."""

        async def reporting(key: Key) -> float | None:
            try:
                return await reconcile(key)
            except OperatorError:
                raise
            except Exception as error:
                await self._report(kind, key, error)
                raise

        return reporting

    async def _report(self, kind: Kind, key: Key, error: Exception) -> None:
        try:
            live = await self.reader.certain().get(kind, key.namespace, key.name)
            if live is None or is_being_deleted(live):
                return
            status = self._status(live, error)
            events = status_events(live.get("status"), status)
            await self.reporter.report(live, status, (), events)
        except RequestError as failed:
            place = fields(kind=key.kind, namespace=key.namespace, name=key.name, error=failed)
            logger.warning("internal error not reported", extra=place)

    def _status(self, live: Manifest, error: Exception) -> Manifest:
        """The status as it was, with conditions that say that nothing more is known."""
        before: Manifest = live.get("status") or {}
        generation = live["metadata"].get("generation", 0)
        message = _message(error, find(before, UPDATED), generation)
        former = list(_former(before, message))
        why = Check("False", INTERNAL_ERROR, message)
        checks = dict.fromkeys((UPDATED, PROGRESSING), why)
        checks[STALLED] = Check("True", INTERNAL_ERROR, message)
        if find(before, READY) is None:
            checks[READY] = Check("Unknown", INTERNAL_ERROR, message)
        changed = conditions(former, checks, generation, self.clock.now())
        merged = _by_type(former) | _by_type(changed)
        return before | {"observedGeneration": generation, "conditions": list(merged.values())}


def _message(error: Exception, condition: Manifest | None, generation: int) -> str:
    """Type and first line of the exception. An earlier message stays if it is of the same type and
    spec. Some messages contain addresses, and a changed status would cause an immediate retry."""
    head = f"A defect of the operator: {type(error).__name__}"
    same = condition is not None and condition.get("observedGeneration") == generation
    if condition is not None and same and condition["message"].startswith(head):
        return str(condition["message"])
    line = next(iter(str(error).splitlines()), "")[:MAX_TEXT]
    text = f"{head}: {line}" if line else head
    return f"{text}. It is tried again; the operator's log has the traceback."


def _former(before: Manifest, message: str) -> Iterator[Manifest]:
    """Conditions that stay, with texts of their own where they named a condition that changes."""
    for entry in before.get("conditions") or ():
        condition = find(before, entry["type"])
        if condition is not None and entry["type"] != RECONCILING:
            yield entry if condition["message"] == message else condition


def _by_type(entries: Iterable[Manifest]) -> dict[str, Manifest]:
    return {condition["type"]: condition for condition in entries}
