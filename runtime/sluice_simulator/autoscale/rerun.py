"""Takes the decisions of a journal again: the same samples and settings, today's `decide`.

Each decision uses the journal's own history, so that one difference does not cause others. If the
journal was thinned out, so is the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import History
from sluice_autoscaler.journal import JournalError, JournalLine, decided_alike, read_journal

from sluice_simulator.errors import UnusableFileError


@dataclass(frozen=True, slots=True)
class Rerun:
    """One line of a journal, and the decision on it now."""

    line: JournalLine
    now: Decision

    @property
    def alike(self) -> bool:
        return decided_alike(self.line.decision, self.now)


def read(path: Path) -> Sequence[JournalLine]:
    """The journal in a file.

    Raises:
        UnusableFileError: it cannot be read, or holds no line of a journal.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            journal = list(read_journal(lines))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UnusableFileError(f"{path}: {reason}") from None
    except JournalError as error:
        raise UnusableFileError(f"{path}: {error}") from None
    if not journal:
        raise UnusableFileError(f"{path}: holds no decision")
    return journal


def rerun(lines: Iterable[JournalLine]) -> list[Rerun]:
    """Decides again on all lines, in order."""
    history, done = History(), []
    for line in lines:
        done.append(Rerun(line, decide(line.settings, history, line.sample)))
        history = history.with_tick(line.tick)
    return done


def as_text(runs: Sequence[Rerun]) -> str:
    """Text with a line for each decision, two where they differ, and a summary."""
    began = runs[0].line.sample.time_seconds
    lines = []
    for run in runs:
        when, then = _when(run.line, began), run.line.decision
        lines.append(f"{when}  {then.reason}: {then.message}")
        if not run.alike:
            lines.append(f"{'now':>{len(when)}}  {run.now.reason}: {run.now.message}")
    differing = sum(not run.alike for run in runs)
    thinned = sum(run.line.left_out_ticks for run in runs)
    lines.append(
        f"\n{len(runs)} decisions, {differing} decided otherwise now; {thinned} ticks between "
        "them, decided as the one before, are not in the journal"
    )
    return "\n".join(lines)


def as_json(runs: Sequence[Rerun]) -> str:
    """JSON text with an object for each decision, one a line."""
    return "\n".join(
        json.dumps(
            {
                "timeSeconds": run.line.sample.time_seconds,
                "unixSeconds": run.line.unix_seconds,
                "alike": run.alike,
                "then": _as_json(run.line.decision),
                "now": _as_json(run.now),
                "leftOutTicks": run.line.left_out_ticks,
            }
        )
        for run in runs
    )


def _when(line: JournalLine, began_seconds: float) -> str:
    if line.unix_seconds is None:
        return f"{line.sample.time_seconds - began_seconds:8.1f} s"
    return datetime.fromtimestamp(line.unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _as_json(decision: Decision) -> dict[str, object]:
    pools = {role: [pool.current, pool.desired] for role, pool in decision.pools.items()}
    return {"reason": decision.reason, "message": decision.message, "pools": pools}
