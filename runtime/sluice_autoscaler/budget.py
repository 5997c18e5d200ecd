"""Keeps all pools of a service within its GPUs at every instant.

A pod holds its GPUs until it is gone. Until then they count as held, and pools grow only into GPUs
that are free now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice_contract.cluster.labels import Role


@dataclass(frozen=True, slots=True)
class Claim:
    """One pool's engines and GPUs: what it has and what it asks for."""

    current: int
    desired: int
    """Desired engines, within the pool's own limits."""
    minimum: int
    gpus: int
    """GPUs of one engine."""
    surplus: int
    """Pods beyond `current` that hold their GPUs."""
    unplaced: int
    """Pods among `current` that found no place."""
    wanted: float
    """Engines that its load asks for."""

    @property
    def held_gpus(self) -> int:
        """GPUs held once all of `current` exist."""
        return (self.current + self.surplus) * self.gpus


def allotted(claims: Mapping[Role, Claim], budget: int | None) -> dict[Role, int]:
    """Engines of each pool, in the order of `claims`.

    Growth gets free GPUs one engine after another, for the pool that lacks the largest share of its
    need. The first engine of every empty pool comes before that: nothing is served without it. A
    pool that shrinks does so. Pods without a place make room for another pool's engines. If the
    pools hold more than the budget allows, the pool that lacks least gives first.
    """
    engines = {role: claim.desired for role, claim in claims.items()}
    if budget is None:
        return engines
    growing = {
        role: min(claim.current, claim.desired) if claim.gpus else claim.desired
        for role, claim in claims.items()
    }
    free = budget - sum(claim.held_gpus for claim in claims.values())
    if free < 0:
        return _over_budget(claims, growing, -free)
    if _first_engines(claims) > free:
        return _asleep(claims, growing)
    while starved := _starved(claims, growing, free):
        growing[starved] += 1
        free -= claims[starved].gpus
    return _making_room(claims, growing)


def _first_engines(claims: Mapping[Role, Claim]) -> int:
    """GPUs for the first engine of each empty pool that needs one."""
    return sum(claim.gpus for claim in claims.values() if claim.desired and not claim.current)


def _asleep(claims: Mapping[Role, Claim], engines: Mapping[Role, int]) -> dict[Role, int]:
    """Engines of each pool while the empty pools' first engines do not fit: none grows, not even a
    pool without GPUs."""
    return {
        role: min(engines[role], max(claim.current, claim.minimum))
        for role, claim in claims.items()
    }


def _starved(claims: Mapping[Role, Claim], engines: Mapping[Role, int], free: int) -> Role | None:
    """The pool that gets the next engine."""
    waiting = [
        role
        for role, claim in claims.items()
        if engines[role] < claim.desired and claim.current <= engines[role] and claim.gpus <= free
    ]
    return min(waiting, key=lambda role: _served(claims[role], engines[role]), default=None)


def _served(claim: Claim, engines: int) -> float:
    """Share of its need that the pool has; above 1 it has more than it needs."""
    return engines / claim.wanted if claim.wanted else float("inf")


def _making_room(claims: Mapping[Role, Claim], engines: dict[Role, int]) -> dict[Role, int]:
    """Engines of each pool after unplaced pods have left for another pool that lacks their GPUs."""
    for role, claim in claims.items():
        lacking = any(
            engines[other] < claims[other].desired and claims[other].gpus and not rest.unplaced
            for other, rest in claims.items()
            if other is not role
        )
        if claim.unplaced and claim.gpus and lacking:
            placed = max(claim.minimum, claim.current - claim.unplaced)
            engines[role] = min(engines[role], placed)
    return engines


def _over_budget(
    claims: Mapping[Role, Claim], engines: dict[Role, int], excess: int
) -> dict[Role, int]:
    """Engines of each pool after giving up `excess` GPUs over the budget, but none below its
    minimum. Shrinking pools and draining pods count towards the excess."""
    excess -= sum((claims[role].current - engines[role]) * claims[role].gpus for role in claims)
    excess -= sum(claim.surplus * claim.gpus for claim in claims.values())
    while excess > 0:
        able = [r for r, claim in claims.items() if claim.gpus and engines[r] > claim.minimum]
        if not able:
            break
        role = max(able, key=lambda able_role: _served(claims[able_role], engines[able_role]))
        engines[role] -= 1
        excess -= claims[role].gpus
    return engines
