"""What routers count of a canary: counts of its revisions in one look, and since the look before.

Pure. Knows nothing of steps or verdicts.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts

from sluice_operator.scaled import Look
from sluice_operator.service.rollout.judge import Counts

Signal = Literal["errors", "slo"]
SIGNALS: Final[Mapping[Signal, str]] = {"errors": "errors", "slo": "late answers"}
"""What is judged, for people."""


class RouterAnswers(NamedTuple):
    """How many routers took part in a look."""

    asked: int = 0
    answered: int = 0
    counted: int = 0
    """Routers whose answer had counts of these revisions."""

    @property
    def text(self) -> str:
        """Why counts are missing, for people; empty: all routers count."""
        if not self.asked:
            return "no router runs"
        if self.answered < self.asked:
            return f"{self.answered} of {self.asked} routers answer"
        silent = self.asked - self.counted
        return f"{silent} of {self.asked} routers do not count canaries" if silent else ""


def counts_of(look: Look, shares: Mapping[Role, CanaryShare]) -> Mapping[str, CanaryCounts]:
    """The counts of these revisions at this percent in a look, by the epoch of their router."""
    step = _names(shares, "revision"), _names(shares, "former"), percent_of(shares)
    return {c.epoch: c for c in look.counts if (c.revision, c.former, c.percent) == step}


def percent_of(shares: Mapping[Role, CanaryShare]) -> int:
    """Percent of the keys that routers give to the new revisions."""
    return min((share.percent for share in shares.values()), default=0)


def _names(shares: Mapping[Role, CanaryShare], side: Literal["revision", "former"]) -> str:
    """The revisions of one side as routers name them: of all pools."""
    return ".".join(getattr(shares[role], side) for role in sorted(shares))


def flat(counts: CanaryCounts) -> list[int]:
    """Trials, bad ones and keys of each signal: of the new revision, then of the former; and the
    minutes in which they were counted."""
    sides = counts.new_counts, counts.former_counts
    signals = [signal for side in sides for signal in (side.errors, side.late)]
    numbers = [number for each in signals for number in (each.trials, each.bad, each.keys)]
    return [*numbers, counts.minutes]


def added_since(now: Sequence[int], before: Sequence[int] | None) -> list[int]:
    """What a router has counted since; all of it where it began anew. Nothing where another release
    of the operator has recorded other counts."""
    if before is None:
        return [*now]
    if len(before) != len(now):
        return [0] * len(now)
    if any(map(operator.lt, now, before)):
        return [*now]
    return [*map(operator.sub, now, before)]


def sides_of(signal: Signal, total: Sequence[int]) -> tuple[Counts, Counts]:
    """The counts of one signal, of the new revision and of the former. Where a router has counted
    more bad keys than trials, each trial was bad."""
    first = 3 * [*SIGNALS].index(signal)
    trials, *parts = total[first : first + 3]
    former_trials, *former_parts = total[first + 6 : first + 9]
    return (
        Counts(trials, *(min(part, trials) for part in parts)),
        Counts(former_trials, *(min(part, former_trials) for part in former_parts)),
    )
