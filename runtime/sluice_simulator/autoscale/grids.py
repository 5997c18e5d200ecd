"""Policies by name, each with the grid over which it is tuned.

A grid is made of ladders. A ladder goes from the most expensive step to the cheapest, and
attainment falls along it, so its last good step is found by halving. A ladder of one step is just
tried. Our policy has no grid: it gets the promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.demand import engines_needed, planned_engines
from sluice_simulator.autoscale.policies.other_scalers import (
    Hpa,
    KedaTokenAware,
    Pacing,
    Rule,
    Thresholds,
)
from sluice_simulator.autoscale.policies.ours import Ours, settings_of
from sluice_simulator.autoscale.policies.policy import Plan, Policy, Static, Steps
from sluice_simulator.traces.request import Trace

DOWN_SECONDS: Final = (60.0, 300.0)
"""Stabilisation windows of HPA and KEDA."""
REQUESTS: Final = (3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64)
WAITING: Final = (0.5, 2)
KV_USED: Final = (0.1, 0.15, 0.2, 0.3, 0.4, 0.6)
PAIR_WAITING: Final = (0.25, 0.5, 1, 2)
BACKLOG_SECONDS: Final = (0.3, 0.5, 1.0, 2.0, 4.0, 8.0)
KEDA_KV_USED: Final = (0.15, 0.3, 0.6)
STATIC_PREFILL: Final = range(1, 9)
MEAN_SECONDS: Final = (10, 30, 60)
USED: Final = (
    *(0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2),
    *(1.35, 1.5, 1.75, 2.0),
)
PREFILL_USED: Final = (0.35, 0.5, 0.7)
"""Shares of a prefill engine that a plan uses; USED are those of the other engines."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Trace, constants and roles that all compared policies share."""

    trace: Trace
    constants: Constants
    roles: Sequence[Role]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy with its parameters, and the engines that are ready when the trace begins."""

    label: str
    policy: Callable[[], Policy]
    first: Mapping[Role, int]


Ladder = Sequence[Candidate]
Grid = Callable[[Scene], Iterator[Ladder]]


def _first(scene: Scene) -> Mapping[Role, int]:
    return dict.fromkeys(scene.roles, scene.constants.first_replicas)


def _ours(scene: Scene) -> Iterator[Ladder]:
    settings = settings_of(scene.constants, scene.roles)
    yield [Candidate("untuned", partial(Ours, settings), _first(scene))]


def _static(scene: Scene) -> Iterator[Ladder]:
    most, budget = scene.constants.max_replicas, scene.constants.gpu_budget
    together = most if budget is None else budget
    if len(scene.roles) == 1:
        yield [_fixed(scene, (number,)) for number in range(min(most, together), 0, -1)]
        return
    for prefill in STATIC_PREFILL:
        if decode := range(min(most, together - prefill), 0, -1):
            yield [_fixed(scene, (prefill, number)) for number in decode]


def _fixed(scene: Scene, numbers: Sequence[int]) -> Candidate:
    replicas = dict(zip(scene.roles, numbers, strict=True))
    label = " + ".join(str(number) for number in numbers)
    return Candidate(label, partial(Static, replicas), replicas)


def _hpa(scene: Scene) -> Iterator[Ladder]:
    most, first = scene.constants.max_replicas, _first(scene)
    for label, rules in _hpa_pair() if len(scene.roles) > 1 else _hpa_single(scene.roles[0]):
        yield [Candidate(label, partial(Hpa, rules, most), first)]


def _hpa_single(role: Role) -> Iterator[tuple[str, Mapping[Role, Rule]]]:
    metrics = {"requests": REQUESTS, "waiting": WAITING, "kv": KV_USED}
    for down_seconds, (metric, targets) in product(DOWN_SECONDS, metrics.items()):
        for target in targets:
            rule = Rule(metric, target, down_seconds)
            yield f"{metric} {target:g}, {down_seconds:g} s", {role: rule}


def _hpa_pair() -> Iterator[tuple[str, Mapping[Role, Rule]]]:
    """Rules for two pools: prefill by its waiting requests, decode by its requests."""
    grid = product(DOWN_SECONDS, PAIR_WAITING, REQUESTS[1:-1])
    for down_seconds, waiting, requests in grid:
        rules = {
            Role.PREFILL: Rule("waiting", waiting, down_seconds),
            Role.DECODE: Rule("requests", requests, down_seconds),
        }
        yield f"waiting {waiting:g}, requests {requests:g}, {down_seconds:g} s", rules


def _keda_shipped(scene: Scene) -> Iterator[Ladder]:
    yield [_keda(scene, Thresholds())]


def _keda_tuned(scene: Scene) -> Iterator[Ladder]:
    most, pacing = scene.constants.max_replicas, Pacing()
    for down_seconds, backlog, kv_used in product(DOWN_SECONDS, BACKLOG_SECONDS, KEDA_KV_USED):
        yield [_keda(scene, Thresholds(backlog, kv_used, most, down_seconds, pacing))]


def _keda(scene: Scene, thresholds: Thresholds) -> Candidate:
    peak = scene.constants.peak_prefill_tokens_per_second
    window = f"{thresholds.down_seconds:g} s"
    label = f"backlog {thresholds.backlog_seconds:g} s, KV {thresholds.kv_used:g}, {window}"
    return Candidate(label, partial(KedaTokenAware, scene.roles, peak, thresholds), _first(scene))


def _plan(scene: Scene) -> Iterator[Ladder]:
    """Plans that follow the need. In one pool also a fixed number, except at the beginning."""
    if len(scene.roles) == 1:
        role, numbers = scene.roles[0], range(scene.constants.max_replicas, 0, -1)
        yield [plan_candidate(scene, f"{n} engines", {role: ((0.0, n),)}) for n in numbers]
    needed = engines_needed(scene.trace, scene.constants, scene.roles)
    for seconds in MEAN_SECONDS:
        if len(scene.roles) == 1:
            yield [_planned(scene, needed, seconds, (used,)) for used in USED]
            continue
        for prefill in PREFILL_USED:
            yield [_planned(scene, needed, seconds, (prefill, used)) for used in USED]


def _planned(
    scene: Scene, needed: Mapping[Role, Sequence[float]], seconds: int, used: Sequence[float]
) -> Candidate:
    boot_seconds = scene.constants.boot_seconds
    steps = {
        role: steps_of(planned_engines(needed[role], seconds, share, boot_seconds))
        for role, share in zip(scene.roles, used, strict=True)
    }
    label = f"{seconds} s, " + " + ".join(f"{share:g}" for share in used)
    return plan_candidate(scene, label, steps)


def plan_candidate(scene: Scene, label: str, steps: Mapping[Role, Steps]) -> Candidate:
    """A plan that begins with as many engines as every policy."""
    return Candidate(label, partial(Plan, steps), _first(scene))


def steps_of(engines: Sequence[int], seconds: float = 1.0) -> Steps:
    """Steps from a number of engines for each period of so many seconds."""
    changes = [at for at in range(len(engines)) if not at or engines[at] != engines[at - 1]]
    return tuple((at * seconds, engines[at]) for at in changes)


def _all_at_once(scene: Scene) -> Iterator[Ladder]:
    most, budget = scene.constants.max_replicas, scene.constants.gpu_budget
    steps = dict.fromkeys(scene.roles, ((0.0, most if budget is None else budget),))
    yield [plan_candidate(scene, "as many as allowed", steps)]


POLICIES: Final[Mapping[str, Grid]] = {
    "ours": _ours,
    "hpa": _hpa,
    "keda": _keda_shipped,
    "keda-tuned": _keda_tuned,
    "static": _static,
    "plan": _plan,
    "all-at-once": _all_at_once,
}
"""Grids by policy, each described in its module. A plan knows the trace. Starting all engines in
the first second shows what share any policy can reach."""
