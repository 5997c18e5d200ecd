"""What a person hears when a service's plan is carried out: created, scaled, removed.

Compares what is there with what is wanted, so at rest there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sluice_operator.manifests.metadata import is_current
from sluice_operator.observed import (
    CONFIG_MAP,
    ENGINE_POOL,
    Event,
    Manifest,
    Reference,
    of_kind,
)

NAMES_IN_EVENT: Final = 8

Children = tuple[Manifest, ...]


def identity(manifest: Manifest) -> tuple[str, str]:
    """Kind and name: what tells the objects of one namespace apart."""
    return manifest["kind"], manifest["metadata"]["name"]


def created(children: Children, apply: Iterable[Manifest]) -> tuple[Event, ...]:
    """What is wanted and not there yet."""
    there = {identity(child) for child in children}
    new = [f"{kind} {name}" for kind, name in map(identity, apply) if (kind, name) not in there]
    return (Event("Normal", "Created", f"Created {_listed(new)}."),) if new else ()


def scaled(children: Children, wanted: Mapping[str, Manifest]) -> tuple[Event, ...]:
    """Pools that are to have another number of engines; `wanted` by the pool's name. One that is
    made from the same plan was edited by somebody: that is told when it is taken back."""
    return tuple(
        Event("Normal", "Scaled", _scaling(pool, _replicas(desired)))
        for pool in of_kind(children, ENGINE_POOL)
        if (desired := wanted.get(pool["metadata"]["name"])) is not None
        and not is_current(desired, pool)
        and _replicas(pool) != _replicas(desired)
    )


def removed(prune: tuple[Reference, ...]) -> tuple[Event, ...]:
    """What is no longer wanted. Configurations come and go with every edit: not worth a word."""
    names = [f"{ref.kind.kind} {ref.name}" for ref in prune if ref.kind != CONFIG_MAP]
    return (Event("Normal", "Removed", f"Removed {_listed(names)}."),) if names else ()


def _scaling(pool: Manifest, wanted: int) -> str:
    role = pool["spec"]["role"]
    return f"Pool {role}: replicas from {_replicas(pool)} to {wanted} (spec.pools.{role}.replicas)."


def _replicas(pool: Manifest) -> int:
    return int(pool["spec"].get("replicas", 1))


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES_IN_EVENT
    return ", ".join(names[:NAMES_IN_EVENT]) + (f" and {more} more" if more > 0 else "")
