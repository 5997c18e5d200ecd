"""Runs cases one after the other until the time is over, and keeps every result at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from e2e.gpu_runs.cases import Case
from e2e.gpu_runs.results import Outcome

LEAST_SECONDS = 15.0
"""Seconds that have to be left for another case to begin."""


@dataclass(frozen=True)
class Session:
    """The outcome of the cases, by name and in order."""

    passed: tuple[str, ...]
    failed: tuple[str, ...]
    left: tuple[str, ...]
    """Cases that have not begun, or were cut short by the session's end: the next session runs
    them."""
    skipped: tuple[str, ...]
    """Cases that were done before."""
    refused: tuple[str, ...]
    """Cases that have not begun because something that they need is missing."""

    @property
    def exit_status(self) -> int:
        """0: all are done; 1: some failed, or cannot run here; 2: some are left."""
        return 1 if self.failed or self.refused else 2 if self.left else 0

    @property
    def message(self) -> str:
        parts = {
            "passed": self.passed,
            "failed": self.failed,
            "done before": self.skipped,
            "left for another run": self.left,
            "refused": self.refused,
        }
        listed = [
            f"{len(names)} {what} ({', '.join(names)})" for what, names in parts.items() if names
        ]
        return "; ".join(listed) or "nothing to do"


def run_session(
    cases: Sequence[Case],
    done: Collection[str],
    refused: Collection[str],
    seconds: float,
    run: Callable[[Case, float], Outcome],
    clock: Callable[[], float],
) -> Session:
    """Runs the cases while there is time. `run` runs one for at most so many seconds, and keeps its
    outcome."""
    ends = clock() + seconds
    passed, failed, left = list[str](), list[str](), list[str]()
    for case in cases:
        if case.name in done or case.name in refused:
            continue
        remaining = ends - clock()
        if remaining < LEAST_SECONDS:
            left.append(case.name)
            continue
        outcome = run(case, min(case.seconds, remaining))
        cut_short = outcome.state == "timed-out" and remaining < case.seconds
        where = left if cut_short else passed if outcome.state == "passed" else failed
        where.append(case.name)
    skipped = tuple(case.name for case in cases if case.name in done)
    return Session(tuple(passed), tuple(failed), tuple(left), skipped, tuple(refused))
