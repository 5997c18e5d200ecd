"""A planner like that of NVIDIA's Dynamo: a forecast every 180 s, and a reactive step every 5 s.

After ai-dynamo/dynamo, docs/design-docs/planner-design.md. The forecast is constant (the last
interval repeats), divided by the rate that an engine keeps under the promise, as a profile would
say. The result is a lower bound. Above it the reactive loop adds one engine when all engines expect
to break the promise, and removes one when all stay below 80 % of it. It waits while a change is
under way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from sluice_autoscaler.sample import EngineSample, Sample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.policies.hpa import ready_engines
from sluice_simulator.autoscale.policies.policy import Targets
from sluice_simulator.autoscale.step_times import StepTimes

FORECAST_SECONDS: Final = 180.0
REACTION_SECONDS: Final = 5.0
SENSITIVITY: Final = 0.8


class DynamoLike:
    """Both loops, of all pools."""

    interval_seconds = REACTION_SECONDS

    def __init__(self, roles: Sequence[Role], constants: Constants) -> None:
        self._roles = roles
        self._constants = constants
        self._times = StepTimes(constants)
        self._totals: dict[str, tuple[int, int, int]] = {}
        self._seen = Traffic()
        self._since = 0.0
        self._bounds = dict.fromkeys(roles, 1)

    def targets(self, sample: Sample) -> Targets:
        self._count(sample)
        if sample.time_seconds - self._since >= FORECAST_SECONDS:
            self._forecast(sample.time_seconds - self._since)
            self._since, self._seen = sample.time_seconds, Traffic()
        replicas = {role: self._reacted(sample, role) for role in self._roles}
        return Targets(replicas, reason="Planner")

    def _count(self, sample: Sample) -> None:
        for engine in sample.engines or ():
            totals = (
                engine.prompt_tokens_total or 0,
                engine.generated_tokens_total or 0,
                engine.finished_requests_total or 0,
            )
            before = self._totals.get(engine.name, (0, 0, 0))
            grown = [now - then for now, then in zip(totals, before, strict=True)]
            self._totals[engine.name] = totals
            self._seen.add(engine.role, *grown)

    def _forecast(self, seconds: float) -> None:
        seen = self._seen
        if not seen.requests:
            return
        prompt, output = seen.prompt_tokens / seen.requests, seen.output_tokens / seen.requests
        rate = seen.requests / seconds
        for role in self._roles:
            capacity = self._requests_per_second(role, prompt, output)
            self._bounds[role] = max(1, math.ceil(rate / capacity))

    def _requests_per_second(self, role: Role, prompt: float, output: float) -> float:
        """Of an engine under the promise, at these lengths: what a profile says."""
        times, constants = self._times, self._constants
        itl = constants.promise.itl_seconds
        computing = times.prompt_seconds(max(1, round(prompt)), 0)
        if role is Role.PREFILL:
            return 1 / computing
        context_tokens = prompt + output / 2
        spare = 1 - times.base_seconds / itl
        own = computing if role is Role.MIXED else 0.0
        reading = (own + output * context_tokens * times.context_seconds) / spare
        keeping = output * itl * context_tokens / constants.kv_pool_tokens
        return 1 / max(reading, keeping)

    def _reacted(self, sample: Sample, role: Role) -> int:
        pool, engines = sample.pools[role], ready_engines(sample, role)
        if pool.starting or pool.surplus or not engines:
            return max(self._bounds[role], pool.replicas)
        promise = self._constants.promise
        signals: list[tuple[Callable[[EngineSample], float], float]] = []
        if role is not Role.DECODE:
            signals.append((self._ttft, promise.ttft_seconds))
        if role is not Role.PREFILL:
            signals.append((lambda engine: engine.itl_seconds or 0.0, promise.itl_seconds))
        replicas = pool.replicas
        if any(all(of(engine) > limit for engine in engines) for of, limit in signals):
            replicas += 1
        elif all(of(engine) < limit * SENSITIVITY for engine in engines for of, limit in signals):
            replicas -= 1
        return max(self._bounds[role], replicas)

    def _ttft(self, engine: EngineSample) -> float:
        """Of a prompt of the usual length that came now."""
        rate = engine.prefill_tokens_per_second
        if not rate:
            return 0.0
        usual = self._seen.prompt_tokens / self._seen.requests if self._seen.requests else 0.0
        return (engine.queued_tokens + usual) / rate


class Traffic:
    """Of one interval."""

    def __init__(self) -> None:
        self.prompt_tokens = self.output_tokens = self.requests = 0

    def add(self, role: Role, prompt_tokens: int, output_tokens: int, requests: int) -> None:
        """Adds what an engine did since the last look; each request counts in one pool."""
        if role is not Role.DECODE:
            self.prompt_tokens += prompt_tokens
            self.requests += requests
        if role is not Role.PREFILL:
            self.output_tokens += output_tokens
