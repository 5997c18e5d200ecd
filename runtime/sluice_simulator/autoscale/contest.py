"""Policies by name, each with the grid over which it is tuned, and what the best of a grid is.

A policy with a grid gets what its user could find who knew the trace: the cheapest that reaches the
goal, else the one that comes nearest. Ours has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from sluice_contract.labels import Role

from sluice_simulator.autoscale.constants import GOAL, Constants
from sluice_simulator.autoscale.demand import engines_needed, smoothed
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.outcome import Outcome, Trail, outcome
from sluice_simulator.autoscale.policies.clairvoyant import Clairvoyant, Foresight, plan
from sluice_simulator.autoscale.policies.hpa import Hpa, Rule
from sluice_simulator.autoscale.policies.keda import KedaTokenAware, Thresholds
from sluice_simulator.autoscale.policies.ours import Ours, settings_of
from sluice_simulator.autoscale.policies.planner import DynamoLike
from sluice_simulator.autoscale.policies.policy import Policy
from sluice_simulator.autoscale.policies.simple import Static
from sluice_simulator.traces.request import Trace

REQUESTS: Final = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48)
WAITING: Final = (0.5, 1, 2, 5)
KV_USED: Final = (0.1, 0.2, 0.3, 0.5, 0.7)
BACKLOG_SECONDS: Final = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5)
STATIC: Final = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64)
MEAN_SECONDS: Final = (5, 10, 20, 30, 60, 120)
USED: Final = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2)
BOUND_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Scene:
    """What all policies of a contest share."""

    trace: Trace
    constants: Constants
    roles: Sequence[Role]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One policy with its parameters."""

    label: str
    policy: Policy
    first: Mapping[Role, int]


@dataclass(frozen=True, slots=True)
class Row:
    """A policy's best candidate, how it did, and of how many it was the best."""

    policy: str
    label: str
    outcome: Outcome
    trail: Trail
    candidates: int = 1


Grid = Callable[[Scene], Iterator[Candidate]]


def compete(scene: Scene, name: str) -> Row:
    """The best of the policy's grid."""
    rows = [played(scene, name, candidate) for candidate in POLICIES[name](scene)]
    best = min(rows, key=lambda row: _rank(row.outcome))
    return replace(best, candidates=len(rows))


def played(scene: Scene, name: str, candidate: Candidate) -> Row:
    """One replay."""
    fleet = AutoscaledFleet(scene.trace, scene.constants, candidate.policy, candidate.first)
    trail = fleet.run()
    return Row(name, candidate.label, outcome(trail, scene.constants), trail)


def bound_hours(scene: Scene) -> float:
    """ceil(need) of every minute: what promise and lengths allow at best, without a queue."""
    needed = engines_needed(scene.trace, scene.constants, scene.roles)
    return sum(
        max(1, math.ceil(each)) / 3600
        for of_role in needed.values()
        for each in smoothed(of_role, BOUND_SECONDS)
    )


def _rank(found: Outcome) -> tuple[bool, float]:
    """The cheapest that reaches the goal first, else what comes nearest."""
    if found.attainment >= GOAL:
        return False, found.replica_hours
    return True, -found.attainment


def _first(scene: Scene) -> Mapping[Role, int]:
    return dict.fromkeys(scene.roles, scene.constants.first_replicas)


def _each_role(scene: Scene, values: Sequence[float]) -> Iterator[tuple[float, ...]]:
    """Every combination of the pools' values."""
    return product(values, repeat=len(scene.roles))


def _ours(scene: Scene) -> Iterator[Candidate]:
    settings = settings_of(scene.constants, scene.roles)
    yield Candidate("untuned", Ours(settings), _first(scene))


def _static(scene: Scene) -> Iterator[Candidate]:
    allowed = [n for n in STATIC if n <= scene.constants.max_replicas]
    for numbers in product(allowed, repeat=len(scene.roles)):
        budget = scene.constants.gpu_budget
        if budget is None or sum(numbers) <= budget:
            replicas = dict(zip(scene.roles, numbers, strict=True))
            label = " + ".join(str(number) for number in numbers)
            yield Candidate(label, Static(replicas), replicas)


def _hpa(scene: Scene) -> Iterator[Candidate]:
    metrics = {"requests": REQUESTS, "waiting": WAITING, "kv": KV_USED}
    rules = [Rule(metric, target) for metric, targets in metrics.items() for target in targets]
    if len(scene.roles) > 1:
        yield from _hpa_pair(scene)
        return
    for rule in rules:
        hpa = Hpa(dict.fromkeys(scene.roles, rule), scene.constants.max_replicas)
        yield Candidate(f"{rule.metric} {rule.target:g}", hpa, _first(scene))


def _hpa_pair(scene: Scene) -> Iterator[Candidate]:
    """Prefill by what waits there, decode by its requests."""
    for waiting, requests in product((0.25, 0.5, 1, 2, 4), REQUESTS[3::2]):
        rules = {Role.PREFILL: Rule("waiting", waiting), Role.DECODE: Rule("requests", requests)}
        hpa = Hpa(rules, scene.constants.max_replicas)
        yield Candidate(f"waiting {waiting:g}, requests {requests:g}", hpa, _first(scene))


def _keda(scene: Scene, thresholds: Thresholds) -> Candidate:
    peak = scene.constants.peak_prefill_tokens_per_second
    label = f"{thresholds.backlog_seconds:g} s, {thresholds.kv_used:g}"
    return Candidate(label, KedaTokenAware(scene.roles, peak, thresholds), _first(scene))


def _keda_shipped(scene: Scene) -> Iterator[Candidate]:
    yield _keda(scene, Thresholds())


def _keda_tuned(scene: Scene) -> Iterator[Candidate]:
    for backlog, kv_used in product(BACKLOG_SECONDS, (0.2, 0.4, 0.6, 0.8)):
        yield _keda(scene, Thresholds(backlog, kv_used, scene.constants.max_replicas))


def _planner(scene: Scene) -> Iterator[Candidate]:
    yield Candidate("180 s, 5 s", DynamoLike(scene.roles, scene.constants), _first(scene))


def _clairvoyant(scene: Scene) -> Iterator[Candidate]:
    needed = engines_needed(scene.trace, scene.constants, scene.roles)
    boot = scene.constants.boot_seconds
    for seconds in MEAN_SECONDS:
        for used in _each_role(scene, USED):
            plans = {
                role: plan(needed[role], Foresight(seconds, share), boot)
                for role, share in zip(scene.roles, used, strict=True)
            }
            label = f"{seconds} s, " + " + ".join(f"{share:g}" for share in used)
            first = {role: numbers[0] for role, numbers in plans.items()}
            yield Candidate(label, Clairvoyant(plans), first)


POLICIES: Final[Mapping[str, Grid]] = {
    "ours": _ours,
    "hpa": _hpa,
    "keda": _keda_shipped,
    "keda-tuned": _keda_tuned,
    "planner": _planner,
    "static": _static,
    "clairvoyant": _clairvoyant,
}
"""What each does is in the module of its name."""
