"""Fields of ours that another manager writes again after each repair.

The first repair is made at once, later ones after a pause that grows, so that the cost does not
follow the rate of the other writer. A changed manifest never waits. A restart forgets all of it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sluice_operator.apply.field_ownership import LostField, lost_fields
from sluice_operator.clock import Clock
from sluice_operator.kube.errors import RequestError
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import digest

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 300.0
QUIET_SECONDS: Final = 600.0
"""Seconds without a write after which earlier writes of a field are forgotten."""
LASTING_ROUNDS: Final = 5
"""Repairs of one field after which its writer counts as another controller, not a person."""
REMEMBERED_OBJECTS: Final = 10_000


class RewrittenError(RequestError):
    """A request is put off: another manager writes fields of the object again and again."""

    def __init__(self, summary: str, again_seconds: float) -> None:
        self.summary = summary
        self.again_seconds = again_seconds
        """When there will be other news, if nothing happens."""
        super().__init__(summary)


class _Repair(NamedTuple):
    """The last repair of one field."""

    value: str
    """A hash of what was written."""
    rounds: int
    """Repairs with that value, not counting those before a long quiet."""
    at: float
    """Seconds of the monotonic clock."""
    managers: tuple[str, ...]

    @property
    def pause_seconds(self) -> float:
        pause = FIRST_PAUSE_SECONDS * 2.0 ** min(self.rounds - 1, 32)
        return min(LONGEST_PAUSE_SECONDS, pause)


@dataclass
class _Object:
    """The repairs of one object, by field."""

    manifest: str = ""
    """A hash of what was applied last."""
    repairs: dict[str, _Repair] = field(default_factory=dict)


class Rewrites:
    """Counts repairs by object and field. `subresource` keeps an object's status apart from the
    rest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._objects: OrderedDict[tuple[str, str], _Object] = OrderedDict()

    def hold_back(self, desired: Manifest, live: Manifest, subresource: str = "") -> None:
        """Returns if a repair is due, or if `desired` itself has changed.

        Raises:
            RewrittenError: the repair has to wait; the error has the seconds.
        """
        known = self._objects.get(_key(live, subresource))
        if known is None or known.manifest != digest(desired):
            return
        now = self._clock.monotonic()
        repairs = (known.repairs.get(lost.path) for lost in lost_fields(desired, live, subresource))
        waits = (repair.at + repair.pause_seconds - now for repair in repairs if repair)
        if (seconds := max(waits, default=0.0)) > 0:
            raise RewrittenError(f"{_text(live)}: repaired a moment ago", seconds)

    def note_applied(self, desired: Manifest, live: Manifest, subresource: str = "") -> None:
        """Notes that `desired` was applied over `live`."""
        key = _key(live, subresource)
        lost = lost_fields(desired, live, subresource)
        known = self._objects.pop(key, None) or (_Object() if lost else None)
        if known is None:
            return
        now = self._clock.monotonic()
        known.manifest = digest(desired)
        known.repairs = {
            path: repair
            for path, repair in known.repairs.items()
            if now - repair.at < QUIET_SECONDS
        }
        known.repairs |= {each.path: self._next(known, each, now) for each in lost}
        if known.repairs:
            self._objects[key] = known
            if len(self._objects) > REMEMBERED_OBJECTS:
                self._objects.popitem(last=False)

    def _next(self, known: _Object, lost: LostField, now: float) -> _Repair:
        value = digest(lost.value)
        before = known.repairs.get(lost.path)
        rounds = before.rounds if before is not None and before.value == value else 0
        return _Repair(value, rounds + 1, now, lost.managers)

    def lasting(self, live: Manifest) -> RewrittenError | None:
        """The error to report while others write fields of an object again and again; None: nobody
        does."""
        repairs = self._lasting(live)
        if not repairs:
            return None
        texts = [
            f"{path} is rewritten by {' and '.join(repair.managers) or 'another writer'}"
            for path, repair in sorted(repairs.items())
        ]
        text = f"{_text(live)}: {', '.join(texts)}; it is set back with increasing delay"
        first = min(repair.at for repair in repairs.values())
        return RewrittenError(text, first + QUIET_SECONDS - self._clock.monotonic())

    def _lasting(self, live: Manifest) -> dict[str, _Repair]:
        known, now = self._objects.get(_key(live, "")), self._clock.monotonic()
        repairs = known.repairs if known else {}
        return {
            path: repair
            for path, repair in repairs.items()
            if repair.rounds >= LASTING_ROUNDS and now - repair.at < QUIET_SECONDS
        }


def _text(live: Manifest) -> str:
    return f"{live['kind']} {live['metadata']['name']}"


def _key(live: Manifest, subresource: str) -> tuple[str, str]:
    return live["metadata"]["uid"], subresource
