"""What routers and engines show of a canary: of revision `b` beside `a`, in one pool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import (
    CanaryCounts,
    EngineFigures,
    SideCounts,
    StepCosts,
    StepShapes,
    TrialCounts,
)
from sluice_operator.api.scaling import CanarySpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import LOOKS, Look
from sluice_operator.service.revisions.canary_state import CanaryState, canary_state
from sluice_operator.service.rollout.step import CanaryJudge, StepEvidence

SHARES = {Role.MIXED: CanaryShare("b", "a", 25)}
MANY = 20_000
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def counts(
    new: tuple[int, int], old: tuple[int, int], epoch: str = "r1", **fields: Any
) -> CanaryCounts:
    """What one router has counted: trials, each of another key, and failed ones."""
    sides: dict[str, Any] = {
        side: SideCounts(errors=TrialCounts(trials=trials, bad=bad, keys=trials))
        for side, (trials, bad) in (("new_counts", new), ("former_counts", old))
    }
    step: dict[str, Any] = {"epoch": epoch, "revision": "b", "former": "a", "percent": 25}
    return CanaryCounts(**step | sides | fields)


def look(
    minutes: float,
    *routers: CanaryCounts,
    engines: tuple[EngineSample, ...] = (),
    asked: int | None = None,
    answered: int | None = None,
) -> Look:
    """What routers answered, so long after the beginning: all of them, unless stated."""
    answered = len(routers) if answered is None else answered
    time = BEGAN + timedelta(minutes=minutes)
    return Look(time, routers, engines, answered if asked is None else asked, answered)


def seen(
    *looks: Look, pods: tuple[Manifest, ...] = ()
) -> tuple[Mapping[Role, CanaryShare], tuple[Manifest, ...], tuple[Look, ...]]:
    """What `CanaryJudge.after` judges by."""
    return SHARES, pods, looks


def engine(revision: str, number: int = 0, **figures: Any) -> EngineSample:
    """A mixed engine of a revision."""
    work = EngineFigures(**{"running_requests": 4} | figures)
    return EngineSample(
        f"{revision}-{number}", Role.MIXED, "e", "ready", 0.1, revision, figures=work
    )


def pod(name: str, restarts: int = 0, ready: str = "", revision: str = "b") -> Manifest:
    """An engine's pod; `ready`: since when it is, empty if it is not."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    status = {
        "conditions": [condition | {"lastTransitionTime": ready or "2026-01-01T00:00:00Z"}],
        "containerStatuses": [{"name": "engine", "restartCount": restarts}],
    }
    labels = {"serving.sluice.dev/revision": revision}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


ZERO = counts((0, 0), (0, 0))


def judge(has_slo: bool = False, **spec: Any) -> CanaryJudge:
    fields: dict[str, Any] = {"steps": [25, 50], "minutes": 2} | spec
    fields["judge"] = {"marginPoints": 5} | fields.get("judge", {})
    return CanaryJudge(CanarySpec.model_validate(fields), has_slo)


def judged(by: CanaryJudge, *looks: Look, state: CanaryState | None = None) -> CanaryState:
    """The state after these looks, each read back from what was written."""
    present = state or CanaryState()
    for number in range(len(looks)):
        after = by.after(present, *seen(*looks[: number + 1]))
        present = canary_state(json.loads(json.dumps(after.to_json_dict())))
    return present


def totals(state: CanaryState) -> tuple[int, int, int, int]:
    """Trials and bad ones of the new and of the former revision."""
    evidence = StepEvidence.of(state.learnt).evidence["errors"]
    new, former = evidence.new, evidence.former
    return new.trials, new.bad, former.trials, former.bad


ALIKE_COUNTS = counts((MANY, 20), (3 * MANY, 60))


def at_speed(ratio: float | None) -> list[Look]:
    """Looks at alike counts, and at engines of which the canary's takes so many times as long;
    None: they report no times."""

    def costs(seconds: float | None, number: int) -> StepCosts | None:
        shapes = StepShapes(steps=9 * number, mean=(1.0, 0.0, 0.0, 4.0, 9.0))
        return StepCosts(seconds=(seconds, 0, 0, 0, 0), decode=shapes) if seconds else None

    pairs = [
        (engine("b", costs=costs(ratio, n)), engine("a", costs=costs(ratio and 1.0, n)))
        for n in range(LOOKS)
    ]
    return [look(n, ALIKE_COUNTS if n else ZERO, engines=pair) for n, pair in enumerate(pairs)]
