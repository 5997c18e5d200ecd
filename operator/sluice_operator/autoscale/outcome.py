"""What came of a decision, or of a step of a move."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from sluice_contract.cluster.labels import Role

from sluice_operator.apply.plan import Event
from sluice_operator.kube.errors import RequestError
from sluice_operator.scaled import MoveInProgress


class Written(NamedTuple):
    """One pool that was asked for another number of engines."""

    role: Role
    replicas: int
    generation: int
    move: MoveInProgress | None = None
    """That has begun with it."""


@dataclass(frozen=True)
class Outcome:
    """What was written, and what was not."""

    written: tuple[Written, ...] = ()
    failed: RequestError | None = None
    """What stopped the rest: the next tick decides again."""
    rivals: tuple[str, ...] = ()
    """Nothing was written, because these field managers scale a pool too."""
    events: tuple[Event, ...] | None = None
    """Of a move in progress; None: the decision was carried out, and has one for each pool."""

    def and_written(self, written: Written) -> Outcome:
        return replace(self, written=(*self.written, written))

    def and_events(self, *events: Event) -> Outcome:
        return replace(self, events=(*(self.events or ()), *events))

    def after(self, failed: RequestError) -> Outcome:
        return replace(self, failed=failed)
