"""Our rule: the operator's own `decide`, with the history that the operator would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sluice_autoscaler.decide import decide
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.sample import Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import GOAL, Constants
from sluice_simulator.autoscale.policies.policy import Targets

TICK_SECONDS: Final = 2.0


class Ours:
    """Policy that calls `decide` every two seconds."""

    interval_seconds = TICK_SECONDS
    reads_reports = True

    def __init__(
        self, settings: ScalingSettings, on_tick: Callable[[Tick], object] | None = None
    ) -> None:
        """`on_tick`: called with every tick."""
        self._settings = settings
        self._history = History()
        self._on_tick = on_tick

    def targets(self, sample: Sample) -> Targets:
        decision = decide(self._settings, self._history, sample)
        tick = Tick(sample, decision)
        self._history = self._history.with_tick(tick)
        if self._on_tick is not None:
            self._on_tick(tick)
        return Targets(
            {role: pool.desired for role, pool in decision.pools.items()},
            tuple(name for pool in decision.pools.values() for name in pool.victims),
            decision.reason,
            decision.message,
            decision.move,
        )


def settings_of(constants: Constants, roles: Sequence[Role]) -> ScalingSettings:
    """Settings of a service with the promise and the targets of the constants, and nothing
    tuned."""
    limits = PoolLimits(minimum=1, maximum=constants.max_replicas, gpus=1)
    targets = constants.targets
    return ScalingSettings(
        dict.fromkeys(roles, limits),
        gpu_budget=constants.gpu_budget,
        queue_seconds=targets.queue_seconds,
        prefill_queue=targets.prefill_queue,
        decode_queue=targets.decode_queue,
        ttft_seconds=constants.promise.ttft_seconds,
        itl_seconds=constants.promise.itl_seconds,
        percentile=100 * GOAL,
        engines_move=constants.engines_move,
    )
