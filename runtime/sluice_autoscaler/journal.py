"""A record of samples and decisions of limited size, in JSON lines from which decisions can be
repeated.

A line has the arguments and the result of `decide`. Default values are left out, and readers ignore
unknown keys. Equal decisions are thinned out; each line says how many ticks are missing before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import Tick
from sluice_autoscaler.sample import Sample
from sluice_autoscaler.settings import ScalingSettings

KEPT_BYTES: Final = 512 * 1024
"""Maximum size of a service's journal: half of what an object of Kubernetes may hold."""
QUIET_SECONDS: Final = 30.0
"""Least time between two kept ticks with equal decisions."""


class JournalError(ValueError):
    """A line that cannot be read: its number, and why."""


class JournalLine(BaseModel):
    """One tick: what was seen, under which settings, and what was decided."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="strings")

    settings: ScalingSettings
    sample: Sample
    decision: Decision
    unix_seconds: float | None = None
    """Unix time of the decision, for people; the sample's time is of another clock."""
    left_out_ticks: int = 0
    """Ticks left out between the previous line and this one, with the previous line's decision."""

    @property
    def tick(self) -> Tick:
        return Tick(self.sample, self.decision)

    def text(self) -> str:
        """One line of JSON, without its end."""
        return self.model_dump_json(exclude_defaults=True)


class Journal:
    """The last lines of one service, the oldest first; lines that do not fit are dropped."""

    def __init__(self, lines: Iterable[str] = (), kept_bytes: int = KEPT_BYTES) -> None:
        """`lines`: lines that `text` returned in an earlier process."""
        self._kept_bytes = kept_bytes
        self._lines: list[str] = []
        self._bytes = 0
        self._last: Tick | None = None
        self._left_out = 0
        for line in lines:
            self._append(line)

    def add(self, settings: ScalingSettings, tick: Tick, unix_seconds: float | None = None) -> bool:
        """Adds a tick; returns whether it was written, not thinned out. `unix_seconds`: time of the
        tick."""
        if self._last is not None and not _differs(self._last, tick):
            self._left_out += 1
            return False
        line = JournalLine(
            settings=settings,
            sample=tick.sample,
            decision=tick.decision,
            unix_seconds=unix_seconds,
            left_out_ticks=self._left_out,
        )
        self._append(line.text())
        self._last, self._left_out = tick, 0
        return True

    def text(self) -> str:
        """All lines."""
        return "".join(f"{line}\n" for line in self._lines)

    def take(self) -> list[str]:
        """Removes and returns all lines."""
        lines, self._lines, self._bytes = self._lines, [], 0
        return lines

    def put_back(self, lines: Iterable[str]) -> None:
        """Puts back lines that were taken, before those added since."""
        for line in (*lines, *self.take()):
            self._append(line)

    def _append(self, line: str) -> None:
        self._lines.append(line)
        self._bytes += len(line.encode()) + 1
        while self._bytes > self._kept_bytes and len(self._lines) > 1:
            self._bytes -= len(self._lines.pop(0).encode()) + 1


def read_journal(lines: Iterable[str]) -> Iterator[JournalLine]:
    """The lines of a journal; blank ones are skipped.

    Raises:
        JournalError: a line is not a valid journal line.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield JournalLine.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise JournalError(f"line {number}: {where}: {first['msg']}") from None


def _differs(before: Tick, tick: Tick) -> bool:
    elapsed = tick.sample.time_seconds - before.sample.time_seconds
    changes = bool(tick.decision.changes) or _outcome(before) != _outcome(tick)
    return changes or not 0 <= elapsed < QUIET_SECONDS


def _outcome(tick: Tick) -> dict[str, tuple[int, str]]:
    return {role: (pool.desired, pool.reason) for role, pool in tick.decision.pools.items()}


def decided_alike(decision: Decision, other: Decision) -> bool:
    """Whether both decide the same engines for the same reasons; texts and measures may differ."""
    return _outcome_of(decision) == _outcome_of(other)


def _outcome_of(decision: Decision) -> tuple[object, ...]:
    pools = decision.pools.items()
    outcomes = {
        role: (pool.current, pool.desired, pool.reason, pool.victims) for role, pool in pools
    }
    return outcomes, decision.reason, decision.move
