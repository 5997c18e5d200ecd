"""Since when the API server has failed over applies for an object.

A 5xx may pass by itself, as when etcd elects a leader. For longer it is a refusal: a webhook is
away, or server-side apply itself fails over the object. Knows no request.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from sluice_operator.clock import Clock

LASTING_SECONDS: Final = 30.0
LASTING_TRIES: Final = 3
REMEMBERED_OBJECTS: Final = 10_000


@dataclass(frozen=True)
class _Failures:
    since: float
    """On the monotonic clock."""
    tries: int


class LastingFailures:
    """Counts by the object's uid. Without memory after a restart: then they last anew."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def note(self, uid: str) -> None:
        """Another try has failed."""
        now = self._clock.monotonic()
        before = self._failures.pop(uid, _Failures(since=now, tries=0))
        self._failures[uid] = _Failures(before.since, before.tries + 1)
        if len(self._failures) > REMEMBERED_OBJECTS:
            self._failures.popitem(last=False)

    def have_lasted(self, uid: str) -> bool:
        """Whether they have gone on for so long that they are a refusal."""
        failures = self._failures.get(uid)
        if failures is None or failures.tries < LASTING_TRIES:
            return False
        return self._clock.monotonic() - failures.since >= LASTING_SECONDS

    def forget(self, uid: str) -> None:
        """A try had another outcome."""
        self._failures.pop(uid, None)
