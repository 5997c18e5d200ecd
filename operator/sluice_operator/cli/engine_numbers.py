"""What `sluice plan` says about the numbers of engines: who decides them, and those of a canary.

Pure. A canary's numbers are those for the engines that the plan begins with.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice_operator.api.pools import gpu_count
from sluice_operator.api.router import ROUTER_REPLICAS
from sluice_operator.api.scaling import CanarySpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.plan import ServicePlan
from sluice_operator.service.resolve.replicas import ReplicasOwner, replicas_owner
from sluice_operator.service.rollout.canary import engines_of_share
from sluice_operator.service.rollout.gpu_budget import WAITS_FOR_BUDGET
from sluice_operator.service.rollout.planned_rollout import PlannedPool
from sluice_operator.service.rollout.router_counts import SIGNALS
from sluice_operator.service.rollout.step import STALLED, CanaryJudge, step_judge


def engines_text(plan: ServicePlan, pool: PlannedPool) -> str:
    """The number of engines, or between which it moves."""
    assert plan.spec is not None
    scaling, owner = plan.spec.pool(pool.role).autoscaling, replicas_owner(plan.spec, pool.role)
    if scaling is None:
        return str(pool.replicas)
    if owner is ReplicasOwner.EXTERNAL:
        name = pool.manifest["metadata"]["name"]
        return f"{pool.replicas} at first, then as whoever scales EnginePool {name} decides"
    least, most = scaling.min_replicas, scaling.max_replicas
    return f"{least} to {most} as the load asks, {pool.replicas} at first"


def own_scale_lines(spec: InferenceServiceSpec) -> Iterator[str]:
    """A hint for an HPA of the InferenceService, which counts the engines of the last role."""
    if spec.replicas is None and spec.pool(spec.roles[-1]).autoscaling is None:
        yield ""
        yield "spec.replicas is left out, which is 1. kubectl scale sets it; a"
        yield "  HorizontalPodAutoscaler of this InferenceService needs it written once."


def canary_lines(spec: InferenceServiceSpec, pools: tuple[PlannedPool, ...]) -> Iterator[str]:
    """The steps of a change's canary with the engines that each takes, what judges it, and a
    warning where the budget of GPUs has no room for the first ones."""
    if spec.rollout is None or spec.rollout.canary is None:
        return
    steps = spec.rollout.canary.steps
    yield ""
    yield "Canary: a change that restarts engines goes to a share of the requests first"
    full = first = 0
    for pool in pools:
        engines = _engines_of_steps(spec.rollout.canary, pool)
        gpus = gpu_count(spec.pool(pool.role).accelerator)
        full, first = full + gpus * pool.replicas, first + gpus * min(1, engines[0])
        more = f"engine{'' if engines[0] == 1 else 's'} more"
        later = "".join(
            f", {percent} % on {count}"
            for percent, count in zip(steps[1:], engines[1:], strict=True)
        )
        yield f"  Pool {pool.role}: {steps[0]} % on {engines[0]} {more}{later}, then all"
    yield from _judge_lines(spec, spec.rollout.canary)
    budget = spec.gpu_budget
    if budget is not None and full + first > budget:
        yield f"  spec.autoscaling.gpuBudget is {budget}: all engines hold {full}, and a canary"
        yield f"  needs {first} for its first engines. It would wait ({WAITS_FOR_BUDGET})."


def canary_json(spec: InferenceServiceSpec, pools: tuple[PlannedPool, ...]) -> Manifest | None:
    """The steps of a canary, for programs; None without one. `keys` are those of the new
    revision that all `routers` count together. `keysPerMinute` are the new keys of the whole
    service that bring them in `minutes`."""
    if spec.rollout is None or spec.rollout.canary is None:
        return None
    canary, judge = spec.rollout.canary, step_judge(spec)
    engines = {pool.role.value: _engines_of_steps(canary, pool) for pool in pools}
    return {
        "signals": [*judge.signals] if judge else [],
        "minutes": canary.minutes if judge and judge.signals else None,
        "routers": _routers(spec),
        "steps": [
            {
                "percent": percent,
                "engines": {role: counts[number] for role, counts in engines.items()},
                **_needed(spec, judge, percent),
            }
            for number, percent in enumerate(canary.steps)
        ],
    }


def _judge_lines(spec: InferenceServiceSpec, canary: CanarySpec) -> Iterator[str]:
    judge = step_judge(spec)
    if judge is None:
        yield "  A person decides about each step (sluice rollout promote, abort)."
    elif not judge.signals:
        yield "  A person decides about each step (sluice rollout promote, abort). The speed of"
        yield f"  steps is judged: a slower revision is worse (onWorse: {canary.on_worse})."
    else:
        signals = " and ".join(SIGNALS[signal] for signal in judge.signals)
        margin = f"{canary.judge.margin_points / 10:g} percent points"
        yield f"  Judged by {signals}: no worse by more than {margin}. If 0.1 % of chats are"
        yield f"  bad with both revisions, each step of {canary.minutes} minutes takes about"
        routers, stalled = _count(_routers(spec), "router"), STALLED * canary.minutes
        for percent in canary.steps:
            needed = _needed(spec, judge, percent)
            rate, least = needed["keysPerMinute"], _ceil(needed["keysPerMinute"], STALLED)
            yield f"    {percent} %: {needed['keys']:,} chats of the new revision, which are"
            yield f"      {rate:,} new chats a minute of the whole service ({routers});"
            yield f"      below {least:,} a minute: CanaryStalled after {stalled} minutes"
    if canary.judge.slo and (judge is None or "slo" not in judge.signals):
        yield "  Late answers are not judged: spec.slo.ttftMilliseconds is not set."


def _needed(spec: InferenceServiceSpec, judge: CanaryJudge | None, percent: int) -> dict[str, int]:
    if judge is None or not judge.signals:
        return {}
    keys = judge.keys_needed(percent, _routers(spec))
    return {"keys": keys, "keysPerMinute": _ceil(100 * keys, judge.spec.minutes * percent)}


def _routers(spec: InferenceServiceSpec) -> int:
    return spec.router.replicas if spec.router else ROUTER_REPLICAS


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _engines_of_steps(canary: CanarySpec, pool: PlannedPool) -> list[int]:
    return [engines_of_share(percent, pool.replicas) for percent in canary.steps]
