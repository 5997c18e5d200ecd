"""Prefill and decode under a budget that is too small for both: which pool gives engines to which.

A pool's need is its own work in engines, without work that only waits for the other pool.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.cluster.labels import Role

from sluice_autoscaler.budget import Claim
from sluice_autoscaler.history import History
from sluice_autoscaler.measured import Measured
from sluice_autoscaler.settings import Settings
from sluice_autoscaler.wants import PoolView, arriving_want

TRADE_SECONDS: Final = 30.0
"""Seconds over which needs are averaged."""
WORTH: Final = 1.2
"""Margin by which the worst-served pool must gain: a moved engine serves no request while it drains
and its successor starts."""
BACKLOG_SECONDS: Final = 60.0
"""Time in which a pool should work off what waits beyond the promise."""

MAX_BUSY: Final = 0.85
"""Busy share of the time of an engine that computes prompts."""

Needs = Mapping[Role, float]


def need_of(settings: Settings, view: PoolView) -> float:
    """Engines that the pool needs at this moment, by what it sees itself."""
    now = view.now
    if view.role is Role.DECODE:
        return max(now.kv_engines / settings.kv_used, now.row_engines)
    busy = view.load.busy_engines + now.queued_seconds / BACKLOG_SECONDS
    return max(busy / MAX_BUSY, arriving_want(view, settings).engines)


def joint_needs(settings: Settings, now: Mapping[Role, Measured], needs: Needs) -> Needs:
    """`needs` of both pools, corrected where one hides the other's. What waits for pages counts for
    prompts, if those wait longer than promised. And a pool sees only the requests that the other
    lets through."""
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
    """Ratio of requests that a pool cannot let through to those that it can."""
    return max(0.0, need / max(1, engines) - 1)


def lasting_needs(settings: Settings, history: History, now: float) -> Needs | None:
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
    """The pools to shrink below `engines`, and their new sizes, because another pool needs the GPUs
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
    """Engines of each pool: one after another for the pool with the smallest share of its need.
    Ends when the budget is used or each pool has its need or its maximum."""
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
