"""Selects the load reports that count: fresh ones of serving engines, with possible numbers.

Rejected reports are only counted, by reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import EngineFigures, HandoverQueues, SloCounts

from sluice_autoscaler.sample import EngineSample

STALE_SECONDS: Final = 10.0
"""Age from which a report is too old. Engines report at least once a second, and routers ask as
often."""
COLD_REQUESTS: Final = 3
"""Requests that an engine must have finished before its rates count, since its first steps are
slow."""
MAX_COUNT: Final = 1e15
"""Largest count, total or rate that one engine can have."""
MAX_SECONDS: Final = 1e7
_SECONDS: Final = frozenset({"queued_work_seconds", "itl_seconds"})


@dataclass(frozen=True, slots=True)
class Reports:
    """Load reports of one pool's engines."""

    counted: tuple[EngineSample, ...] = ()
    """Ready engines whose report is fresh and has possible numbers."""
    stale: int = 0
    """Ready engines whose report is too old."""
    odd: int = 0
    """Ready engines whose report has impossible numbers."""
    sick: int = 0
    """Engines that fail the requests that they are given."""

    @property
    def unknown(self) -> int:
        """Ready engines of which nothing is known."""
        return self.stale + self.odd

    @property
    def scale(self) -> float:
        """Factor from the counted engines to the whole pool: unknown engines are assumed to be as
        loaded as the others."""
        return (len(self.counted) + self.unknown) / len(self.counted) if self.counted else 0.0


def reports_of(engines: Iterable[EngineSample], role: Role) -> Reports:
    """The reports of one role."""
    counted, stale, odd, sick = [], 0, 0, 0
    for engine in engines:
        if engine.role is not role:
            continue
        sick += engine.condition == "failing"
        if engine.condition != "ready":
            continue
        if not possible(engine):
            odd += 1
        elif engine.age_seconds > STALE_SECONDS:
            stale += 1
        else:
            counted.append(engine)
    return Reports(tuple(counted), stale, odd, sick)


def possible(engine: EngineSample) -> bool:
    """Whether every number is possible."""
    parts = (engine.figures, engine.figures.queues, *((engine.slo,) if engine.slo else ()))
    return (
        engine.age_seconds >= 0
        and all(_possible_numbers(part) for part in parts)
        and _within(engine.max_running_requests, MAX_COUNT)
        and _within(engine.figures.kv_used, 1.0)
    )


def _possible_numbers(part: EngineFigures | HandoverQueues | SloCounts) -> bool:
    for name in part.__slots__:
        value = getattr(part, name)
        if isinstance(value, int | float):
            most = MAX_SECONDS if name in _SECONDS else MAX_COUNT
            if not _within(value, most):
                return False
    return True


def warm(engine: EngineSample) -> bool:
    """Whether an engine has finished enough requests for its rates to count."""
    return engine.figures.finished_requests_total >= COLD_REQUESTS


def _within(value: float, most: float) -> bool:
    return math.isfinite(value) and 0 <= value <= most
