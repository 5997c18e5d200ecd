"""How a roll-out stands, for people: done, at a step, stopped or on its way, and why.

Pure. Reads statuses of an InferenceService and its EnginePools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from sluice_operator.api.conditions import PROGRESSING, STALLED, UPDATED
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.cli.preview import table
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.revision import revisions_of
from sluice_operator.service.rollout.canary import canary_of
from sluice_operator.service.rollout.step import StepEvidence

BAR_CELLS: Final = 32
ROUNDING: Final = 1e-9
"""Added to cells of a bar, since a sum of two shares may be a little less than it should be."""
STOPPED: Final = frozenset(
    {
        reasons.ROLLOUT_HALTED,
        reasons.CANARY_ABORTED,
        reasons.CANARY_LATE,
        reasons.CANARY_WORSE,
    }
)
"""Reasons of Progressing after which nothing changes without a person."""


class RolloutProgress(NamedTuple):
    """How far the present spec has been carried out."""

    state: Literal["Done", "Canary", "Waiting", "Stopped"]
    """Canary: a step is reached, and is judged or waits for a person."""
    reason: str
    message: str

    @property
    def line(self) -> str:
        """One line for a log."""
        return f"{self.state}: {self.reason}: {self.message}"

    @property
    def is_over(self) -> bool:
        """Whether all is done, or nothing goes on before a person or a request acts."""
        rests = self.reason in (reasons.CANARY_WAITS, reasons.CANARY_ASLEEP)
        return self.has_failed or self.state == "Done" or rests

    @property
    def has_failed(self) -> bool:
        """Whether the spec is not carried out, and it is unknown whether it will be."""
        return self.state == "Stopped" or self.reason == reasons.CANARY_STALLED


def progress_of(service: Manifest) -> RolloutProgress:
    """Progress of an InferenceService towards its spec, as its status reports it."""
    status, generation = service.get("status") or {}, service["metadata"].get("generation", 0)
    updated = find(status, UPDATED)
    if updated is None or status.get("observedGeneration") != generation:
        text = f"generation {generation} of the spec has not been looked at yet."
        return RolloutProgress("Waiting", "NotObserved", text)
    if updated["status"] == "True":
        return RolloutProgress("Done", updated["reason"], updated["message"])
    for kind in (STALLED, PROGRESSING):
        condition = find(status, kind) or {}
        if _has_stopped(kind, condition):
            return RolloutProgress("Stopped", condition["reason"], condition["message"])
        if condition.get("reason") in reasons.CANARY_UNDECIDED:
            return RolloutProgress("Canary", condition["reason"], condition["message"])
        if condition.get("reason") == reasons.PAUSED:
            return RolloutProgress("Waiting", reasons.PAUSED, condition["message"])
    return RolloutProgress("Waiting", updated["reason"], updated["message"])


def _has_stopped(kind: str, condition: Manifest) -> bool:
    if kind == STALLED:
        return condition.get("status") == "True"
    return condition.get("reason") in STOPPED


def as_text(
    service: Manifest, pools: Iterable[Manifest], revisions: tuple[Manifest, ...] = ()
) -> str:
    """The roll-out of a service: what is reached, the engines by revision, the signals of its
    canary, and the plan, unless the first line has it."""
    progress = progress_of(service)
    plan = (service.get("status") or {}).get("rollout") or {}
    rows = [("pool", "revision", "", "engines", "ready"), *_rows(pools)]
    lines = [progress.line, *(table(rows) if len(rows) > 1 else ())]
    if plan.get("reason") in (reasons.CANARY_STEP, reasons.CANARY_STALLED):
        lines.extend(signals(revisions))
    if progress.state in ("Waiting", "Stopped") and plan:
        text = f"{plan['reason']}: {plan['message']}"
        if not progress.line.endswith(f": {text}"):
            lines.append(f"Plan: {text}")
    return "\n".join(lines)


def signals(items: tuple[Manifest, ...]) -> Iterator[str]:
    """A bar for each signal that judges the canary of the newest revision, and for the time."""
    revision = next(revisions_of(items).newest_first, None)
    if revision is None:
        return
    try:
        canary = canary_of(parse(InferenceServiceSpec, revision.spec, "spec"), revision.canary)
    except InvalidSpecError:  # of another release
        return
    evidence = StepEvidence.of(revision.canary.learnt)
    if canary is None or not canary.spec.is_judged or evidence.answers is None:
        return
    judge = canary.judge
    for signal, count, needed, text in judge.rows(evidence):
        shown = bar(min(1.0, count / max(1, needed)), BAR_CELLS)
        yield f"  {signal:<9}{shown} {count:,} of about {needed:,} keys: {text}"
    share = min(1.0, evidence.minutes / judge.spec.minutes)
    yield f"  {'time':<9}{bar(share, BAR_CELLS)} {judge.minutes_text(evidence)}"


def bars(service: Manifest) -> Iterator[str]:
    """A bar for each pool that lacks engines of the current revision."""
    pools = (service.get("status") or {}).get("pools") or {}
    for role, pool in sorted(pools.items()):
        ready, desired = pool.get("updatedReplicas", 0), pool.get("desiredReplicas", 0)
        if ready < desired:
            shown = bar(ready / desired, BAR_CELLS)
            yield f"  {role:<9}{shown} {ready} of {desired} ready"


def bar(share: float, cells: int, then: float = 0.0) -> str:
    """A bar of `cells` characters: `share` as a heavy line, then `then` as a light one. Rounded
    down, so a line is full only if its share is."""
    heavy = int(share * cells)
    light = int((share + then) * cells + ROUNDING) - heavy
    return "━" * heavy + "─" * light + "·" * (cells - heavy - light)


def _rows(pools: Iterable[Manifest]) -> Iterator[tuple[str, ...]]:
    for pool in sorted(pools, key=lambda item: str(item["metadata"]["name"])):
        for revision in (pool.get("status") or {}).get("revisions") or ():
            age = "wanted" if revision["current"] else "former"
            counts = str(revision["replicas"]), str(revision["ready"])
            yield (pool["spec"]["role"], revision["name"], age, *counts)
