"""What routers and engines show of a canary: of revision `b` beside `a`, in one pool."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sluice_autoscaler.sample import EngineSample
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts, EngineFigures, SideCounts, TrialCounts
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import Look

SHARES = {Role.MIXED: CanaryShare("b", "a", 25)}
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
