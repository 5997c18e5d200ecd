"""Engines that move from one pool to the other, instead of one that ends and another that starts.

A moved engine loads nothing, but it has to end what it has begun. So a move pays where a start, as
measured, takes longer than that. It needs no GPU that is free: the engine keeps its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.decision import Move
from sluice_autoscaler.pool_plan import PoolPlan
from sluice_autoscaler.sample import PoolSample, Sample
from sluice_autoscaler.settings import Settings

FLIP_SECONDS: Final = 2.0
"""Of an engine without work, from one role to the other."""
_BOTH: Final = ((Role.PREFILL, Role.DECODE), (Role.DECODE, Role.PREFILL))


def move_of(
    settings: Settings,
    sample: Sample,
    plans: Mapping[Role, PoolPlan],
    engines: Mapping[Role, int],
) -> Move | None:
    """The engines that one pool gives and the other lacks; None: there are none, or a move does
    not pay. `engines`: of each pool by the budget, without a move."""
    if not settings.engines_move or not all(map(_is_settled, sample.pools.values())):
        return None
    for source, target in _BOTH:
        if source not in engines or target not in engines or not engines[source]:
            continue
        surplus = sample.pools[source].replicas - engines[source]
        size = _target_size(settings, engines, target, plans[target].desired, surplus)
        count = min(surplus, size - sample.pools[target].replicas)
        if count > 0 and sample.pools[target].ready and _pays(plans[source], plans[target]):
            return Move(source, target, count, size)
    return None


def _is_settled(pool: PoolSample) -> bool:
    """Whether all of its pods serve, and no other ones hold GPUs: else one that starts or ends is
    taken for one that moves."""
    return pool.ready == pool.replicas and not (pool.starting or pool.unschedulable or pool.surplus)


def _target_size(
    settings: Settings, engines: Mapping[Role, int], target: Role, desired: int, surplus: int
) -> int:
    """What the pool can have of `desired` engines with the GPUs of those that are given."""
    more = max(0, min(desired - engines[target], surplus))
    gpus = settings.pools[target].gpus
    if settings.gpu_budget is not None and gpus:
        used_gpus = sum(count * settings.pools[role].gpus for role, count in engines.items())
        more = min(more, max(0, settings.gpu_budget - used_gpus) // gpus)
    return engines[target] + more


def _pays(source: PoolPlan, target: PoolPlan) -> bool:
    """Whether a start, as measured, takes longer than the end of what an engine has begun."""
    if target.start_seconds is None or source.drain_seconds is None:
        return False
    return target.start_seconds > source.drain_seconds + FLIP_SECONDS
