"""Decides which of the prefill and decode pools gives engines to the other, if the budget is too
small for both.

A pool's need is its own work in engines, without work that only waits for the other pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.budget import Claim
from sluice_autoscaler.history import History
from sluice_autoscaler.measured import Measured
from sluice_autoscaler.settings import ScalingSettings
from sluice_autoscaler.wants import PoolView, arriving_want

TRADE_SECONDS: Final = 30.0
"""Seconds over which needs are averaged."""
WORTH: Final = 1.2
"""Margin by which the worst-served pool must gain: a moved engine serves no request while it drains
and its successor starts."""
BACKLOG_SECONDS: Final = 60.0
"""Time in which a pool should work off requests that wait longer than promised."""

MAX_BUSY: Final = 0.85
"""Largest fraction of time that an engine should be busy with prompts."""

Needs = Mapping[Role, float]


def need_of(settings: ScalingSettings, view: PoolView) -> float:
    """Engines that the pool needs now, by its own measurements."""
    now = view.now
    if view.role is Role.DECODE:
        return max(now.kv_engines / settings.kv_used, now.row_engines)
    busy = view.load.busy_engines + now.queued_seconds / BACKLOG_SECONDS
    return max(busy / MAX_BUSY, arriving_want(view, settings).engines)


def joint_needs(settings: ScalingSettings, now: Mapping[Role, Measured], needs: Needs) -> Needs:
    """`needs` of both pools, corrected where one pool hides the other's need. Requests that wait
    for pages count for the prefill pool too, if prompts wait longer than promised. And each pool
    sees only the requests that the other lets through."""
    prefill, decode = now[Role.PREFILL], now[Role.DECODE]
    waits = prefill.queued_seconds / max(1, prefill.engines)
    behind = max(0.0, 1 - settings.allowed_queue_seconds / waits) if waits else 0.0
    hidden = behind * decode.queued_requests * _work_seconds(prefill) / BACKLOG_SECONDS
    computing = needs[Role.PREFILL] + hidden / MAX_BUSY
    answering = needs[Role.DECODE] * (1 - behind * decode.pending_share)
    return {
        Role.PREFILL: computing * (1 + (1 - behind) * _excess(answering, decode.engines)),
        Role.DECODE: answering * (1 + behind * _excess(computing, prefill.engines)),
    }


def _work_seconds(prefill: Measured) -> float:
    """Seconds of work of one waiting prompt."""
    return prefill.queued_seconds / prefill.queued_requests if prefill.queued_requests else 0.0


def _excess(need: float, engines: int) -> float:
    """Ratio of the requests that a pool cannot serve to the requests that it can."""
    return max(0.0, need / max(1, engines) - 1)


def lasting_needs(settings: ScalingSettings, history: History, now: float) -> Needs | None:
    """Recent means of both needs; None if a value is missing or there are not two pools."""
    roles, since = settings.pools.keys(), now - TRADE_SECONDS
    if len(roles) < 2 or not history.covers(since, now):
        return None
    ticks = [tick.decision.pools for tick in history.since(since)]
    lasting: dict[Role, float] = {}
    for role in roles:
        seen = [pools[role].measured.need_engines if role in pools else None for pools in ticks]
        needs = [need for need in seen if need is not None]
        if not needs or len(needs) < len(seen):
            return None
        lasting[role] = sum(needs) / len(needs)
    return lasting


def traded(
    claims: Mapping[Role, Claim], needs: Needs, engines: Mapping[Role, int], budget: int
) -> dict[Role, int]:
    """New sizes of the pools that shrink below `engines` because another pool needs the GPUs
    more."""
    lacks = {r for r, claim in claims.items() if claim.gpus and engines[r] < claim.desired}
    fair = fair_split(claims, needs, budget)
    takes = {role for role in lacks if fair[role] > claims[role].current}
    before = {role: claim.current for role, claim in claims.items()}
    if not takes or _worst(needs, fair) < WORTH * _worst(needs, before):
        return {}
    return {
        role: fair[role]
        for role, claim in claims.items()
        if claim.gpus and role not in takes and fair[role] < engines[role]
    }


def fair_split(claims: Mapping[Role, Claim], needs: Needs, budget: int) -> dict[Role, int]:
    """Engines of each pool. One engine after another goes to the pool with the smallest share of
    its need, until the budget is used or each pool has its need or its maximum."""
    split = {role: max(1, claim.minimum) for role, claim in claims.items()}
    free = budget - sum(split[role] * claim.gpus for role, claim in claims.items())
    while True:
        able = [
            role
            for role, claim in claims.items()
            if 0 < claim.gpus <= free and split[role] < min(needs[role], claim.desired)
        ]
        if not able:
            return split
        role = min(able, key=lambda able_role: split[able_role] / needs[able_role])
        split[role] += 1
        free -= claims[role].gpus


def _worst(needs: Needs, engines: Mapping[Role, int]) -> float:
    """Share of its need that the worst-served pool has; 1 if all have enough."""
    return min(min(1.0, engines[role] / need) if need else 1.0 for role, need in needs.items())
