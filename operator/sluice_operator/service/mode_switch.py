"""From one mode to another: what serves in the former mode stays until the pools of the wanted one
are complete and no router uses it any more.

Pure, and without memory: which of both the routers use is read from what they mount. First the
wanted pools come up beside the former ones, then the routers are replaced, then the former go.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_contract import labels

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    Manifest,
    controller_uid,
    is_being_deleted,
    of_kind,
)
from sluice_operator.manifests.pods import config_maps_of_pod, mounted_config_maps
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.parts import engines_ready
from sluice_operator.service.rollout import PoolState
from sluice_operator.service.router import PlannedRouter


@dataclass(frozen=True)
class Former:
    """The pools of a former mode that stay for now."""

    pools: tuple[Manifest, ...] = ()
    """Live EnginePools."""
    is_served: bool = False
    """The routers know no others yet: it is they that serve."""

    def has(self, child: Manifest) -> bool:
        """Whether `child`, one of the service's children, belongs to these pools."""
        roles = {pool["spec"]["role"] for pool in self.pools}
        return (child["metadata"].get("labels") or {}).get(labels.ROLE) in roles


NO_FORMER: Final = Former()


def former_pools(observed: ServiceObserved, spec: InferenceServiceSpec) -> tuple[Manifest, ...]:
    """The pools of the service that its mode does not have."""
    uid = observed.service["metadata"].get("uid")
    return tuple(
        pool
        for pool in of_kind(observed.children, ENGINE_POOL)
        if uid is not None
        and controller_uid(pool) == uid
        and pool["spec"]["role"] not in spec.roles
        and not is_being_deleted(pool)
    )


def are_awaited(observed: ServiceObserved, pools: Iterable[PoolState]) -> bool:
    """Whether one of the wanted pools is not there yet with all its engines, or has not reported
    any: its status, of which Ready is made, comes after that of its Deployment."""
    reported = {
        pool["spec"]["role"]: engines_ready(pool)
        for pool in of_kind(observed.children, ENGINE_POOL)
    }
    return not all(
        pool.wanted.settled
        and pool.wanted.replicas == pool.replicas
        and (not pool.replicas or reported.get(pool.role, 0))
        for pool in pools
    )


def plan_former(
    observed: ServiceObserved, pools: tuple[Manifest, ...], router: PlannedRouter
) -> Former:
    """Which of the former `pools` stay, beside the routers as they are planned."""
    if router.is_former:
        return Former(pools, is_served=True)
    planned = mounted_config_maps(router.deployment)
    if any(config_maps_of_pod(pod["spec"]) != planned for pod in observed.pods):
        return Former(pools)
    return NO_FORMER
