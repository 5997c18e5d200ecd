"""Decisions of earlier revisions of a service that stay for a spec. Pure.

While nothing about engines is edited, all decisions stay, under any release of the operator. A
former spec that is applied again gets its former decisions. If one of two pools is edited, the
other pool stays only if this release takes the same image, because engines of two releases may
refuse to hand over to each other. Settings that the user left out are then taken from the other
pool, whatever this release would choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_contract.config.sizing import Source

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.parts import engine_part
from sluice_operator.service.revisions.revision import (
    DecidedPool,
    DecidedRouter,
    Revision,
    Revisions,
)
from sluice_operator.service.revisions.settings import Settings

DEFAULTED: Final = ("dtype", "kv_cache_dtype", "page_size")
"""Settings for which a release has defaults, and that pools of one service share."""


@dataclass(frozen=True)
class Kept:
    """Earlier decisions that stay."""

    pools: Mapping[Role, DecidedPool]
    """Decided pools by role; missing ones are decided again."""
    router: DecidedRouter | None
    revision: Revision | None
    """The revision that has all of these decisions; None: a new one is needed."""
    shared: Settings
    """Settings that the user left out, and that newly decided pools take from the kept ones."""


def kept(revisions: Revisions, spec: InferenceServiceSpec, images: Mapping[Role, str]) -> Kept:
    """Decisions that stay for a pinned spec. `images`: images of this release for each pool's
    engines, or "" where it has none."""
    same = revisions.of(spec)
    if same is not None:
        return Kept(same.pools, same.router, same, {})
    parts = {role: engine_part(spec, role) for role in spec.roles}
    of_role = {role: list(_decided(revisions, spec, role, part)) for role, part in parts.items()}
    pools = _all_of_one(revisions, spec, parts)
    shared = _shared(of_role) if len(parts) > 1 else {}
    if pools is None:
        pools = {
            role: pool
            for role, decided in of_role.items()
            if (pool := _of_this_release(decided, images[role], shared))
        }
    stays = not spec.is_disaggregated or pools.keys() == parts.keys()
    # The routers go to this release with the engines that hand over to each other.
    routers = (r.router for r in revisions.newest_first if r.has_routers_of(spec))
    return Kept(pools, next(routers, None) if stays else None, None, shared)


def _all_of_one(
    revisions: Revisions, spec: InferenceServiceSpec, parts: Mapping[Role, Manifest]
) -> Mapping[Role, DecidedPool] | None:
    """The pools of the newest revision whose engines all have equal `parts`; None: there is no such
    revision."""
    for revision in revisions.newest_first:
        if all(revision.has_engines_of(spec, role, part) for role, part in parts.items()):
            return {role: revision.pools[role] for role in parts}
    return None


def _decided(
    revisions: Revisions, spec: InferenceServiceSpec, role: Role, part: Manifest
) -> Iterator[DecidedPool]:
    """Decisions about a pool with an equal spec, the newest first."""
    for revision in revisions.newest_first:
        if revision.has_engines_of(spec, role, part):
            yield revision.pools[role]


def _shared(of_role: Mapping[Role, list[DecidedPool]]) -> Settings:
    """Values of the first pool that is not edited, of settings that its user left out."""
    first = next((decided[0] for decided in of_role.values() if decided), None)
    settings = first.settings if first else {}
    return {
        name: settings[name]
        for name in DEFAULTED
        if name in settings and settings[name].source is not Source.USER
    }


def _of_this_release(
    decided: list[DecidedPool], image: str, shared: Settings
) -> DecidedPool | None:
    """The newest decision with the image of this release that agrees with `shared`."""
    for pool in decided:
        if (not image or pool.image == image) and _agrees(pool.settings, shared):
            return pool
    return None


def _agrees(settings: Settings, shared: Settings) -> bool:
    return all(
        name not in settings
        or settings[name].source is Source.USER
        or settings[name].value == entry.value
        for name, entry in shared.items()
    )
