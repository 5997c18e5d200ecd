"""Engines, samples and services made up for decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role

from tests.figures import with_figures

MIXED, PREFILL, DECODE = Role.MIXED, Role.PREFILL, Role.DECODE
RATE = 4000.0
"""Prompt tokens a second of an engine."""
ANSWER_SECONDS = 10.0


def engine(name: str = "a", role: Role = MIXED, **load: Any) -> EngineSample:
    """A warm engine that is ready; nothing to do, but for `load`."""
    values: dict[str, Any] = {
        "epoch": "1", "condition": "ready", "age_seconds": 0.5, "max_running_requests": 256,
        "prefill_tokens_per_second": RATE, "finished_requests_total": 100,
        "prompt_tokens_total": 0,
    }  # fmt: skip
    return EngineSample(name, role, **with_figures(values | load))


def pool(role: Role = MIXED, replicas: int = 1, **pods: Any) -> PoolSample:
    return PoolSample(role, replicas, **{"ready": replicas} | pods)


def seen(
    engines: Sequence[EngineSample] | None, *pools: PoolSample, at: float = 100.0, waiting: int = 0
) -> Sample:
    """`pools`: where none is given, a mixed one with as many engines as report."""
    given = pools or (pool(MIXED, len(engines or ())),)
    held = None if engines is None else tuple(engines)
    return Sample(at, {each.role: each for each in given}, held, waiting)


def wanting(
    *roles: Role, minimum: int = 1, maximum: int = 16, gpus: int = 1, **settings: Any
) -> ScalingSettings:
    limits = PoolLimits(minimum, maximum, gpus)
    return ScalingSettings(dict.fromkeys(roles or (MIXED,), limits), **settings)


class Service:
    """Decisions one after another, each carried out at once: what is asked for is ready at the next
    look, but for pods that never are."""

    def __init__(
        self, settings: ScalingSettings, replicas: Mapping[Role, int], **never_ready: int
    ) -> None:
        """`never_ready`: pods of each pool, `starting` or `unschedulable`, that go first when it
        shrinks."""
        self.settings = settings
        self.replicas = dict(replicas)
        self.never_ready = {role: dict(never_ready) for role in replicas}
        self.history = History()
        self.seconds = 0.0
        self.start_seconds: float | None = None
        self.totals: dict[str, int] = {}
        self.finished: dict[str, float] = {}

    def look(
        self, load: Mapping[Role, Mapping[str, Any]] | None, seconds: float = 2.0, waiting: int = 0
    ) -> Decision:
        """One decision. `load`: of each role, what its pool is loaded with, spread over its
        engines; `prompt_tokens`: that arrive in a second. Answers run for ten seconds. None: no
        router answers."""
        self.seconds += seconds
        pools = [
            pool(
                role,
                replicas,
                ready=self._ready(role),
                start_seconds=self.start_seconds,
                **self.never_ready[role],
            )
            for role, replicas in self.replicas.items()
        ]
        engines = None if load is None else self._engines(load, seconds)
        sample = seen(engines, *pools, at=self.seconds, waiting=waiting)
        decision = decide(self.settings, self.history, sample)
        self.history = self.history.with_tick(Tick(sample, decision))
        for role, each in decision.pools.items():
            self._resize(role, each.desired)
        return decision

    def _ready(self, role: Role) -> int:
        return self.replicas[role] - sum(self.never_ready[role].values())

    def _resize(self, role: Role, replicas: int) -> None:
        leaving, pods = self.replicas[role] - replicas, self.never_ready[role]
        for state in pods:
            going = min(max(0, leaving), pods[state])
            pods[state] -= going
            leaving -= going
        self.replicas[role] = replicas

    def _engines(
        self, load: Mapping[Role, Mapping[str, Any]], seconds: float
    ) -> list[EngineSample]:
        found = []
        for role in self.replicas:
            replicas = self._ready(role)
            whole = dict(load.get(role, {}))
            arrived = whole.pop("prompt_tokens", 0) * seconds
            for index in range(replicas):
                name = f"{role}-{index}"
                self.totals[name] = self.totals.get(name, 0) + int(arrived / replicas)
                own = {key: _share(key, value, replicas, index) for key, value in whole.items()}
                ended = own.get("running_requests", 0) * seconds / ANSWER_SECONDS
                self.finished[name] = self.finished.get(name, 100.0) + ended
                totals = {
                    "prompt_tokens_total": self.totals[name],
                    "finished_requests_total": int(self.finished[name]),
                }
                found.append(engine(name, role, **totals | own))
        return found

    def settle(self, load: Mapping[Role, Mapping[str, Any]], seconds: float = 600.0) -> list[int]:
        """Looks for so long; the sum of all pools after each look."""
        sizes = []
        for _ in range(int(seconds / 4)):
            self.look(load, seconds=4.0)
            sizes.append(sum(self.replicas.values()))
        return sizes


MEASURED: Final = {
    "itl_seconds", "prefill_tokens_per_second", "marginal_prefill_tokens_per_second", "condition",
    "age_seconds",
}  # fmt: skip


def _share(key: str, value: Any, replicas: int, index: int) -> Any:
    """Of one engine: a part of what is counted, all of what is measured."""
    if key in MEASURED:
        return value
    if key == "kv_used":
        return min(1.0, value / replicas)
    return value // replicas + (index < value % replicas)


def at(sample: Sample, seconds: float) -> Sample:
    return replace(sample, time_seconds=seconds)
