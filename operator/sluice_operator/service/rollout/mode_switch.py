"""Switch between modes: the former pools stay until the desired pools are complete and serve, and
no router uses the former ones.

Pure. The mounts of the routers show which pools they use; if that is lost, the service's status
does. First the desired pools come up in addition to the former ones, then the routers are replaced,
then the former pools go. A pool scaled to 0 engines has not come up while former engines serve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import applied_manifest
from sluice_operator.conditions.pods import is_finished
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    Manifest,
    of_kind,
)
from sluice_operator.manifests.metadata import Owner, stamped, with_applied_fields
from sluice_operator.manifests.ownership import owned_by, restored
from sluice_operator.manifests.pods import config_map_of_pod
from sluice_operator.service.observe import Children, ServiceObserved
from sluice_operator.service.resolve.router import PlannedRouter
from sluice_operator.service.rollout.revisions import engine_deployments, engines_ready
from sluice_operator.service.rollout.surge import PoolState, Revisions


@dataclass(frozen=True)
class Former:
    """The pools of a former mode that stay for now."""

    pools: tuple[Manifest, ...] = ()
    """Live EnginePools."""
    is_served: bool = False
    """The routers still use these pools."""

    def has(self, child: Manifest) -> bool:
        """Whether `child`, one of the service's children, belongs to these pools."""
        roles = {pool["spec"]["role"] for pool in self.pools}
        return (child["metadata"].get("labels") or {}).get(labels.ROLE) in roles

    def stable(self, noted: Revisions) -> dict[Role, str]:
        """The part of `noted`, the revisions that were complete last, that is about these pools."""
        roles = {pool["spec"]["role"] for pool in self.pools}
        return {role: name for role, name in noted.items() if role in roles}


NO_FORMER: Final = Former()


def are_awaited(
    children: Children,
    spec: InferenceServiceSpec,
    desired: Iterable[PoolState],
    former: tuple[Manifest, ...],
) -> bool:
    """Whether one of the `desired` pools lacks engines or has not reported them, while there are
    `former` pools. A pool's Ready comes from its status, which is written later than its
    Deployment's. False if no former engine serves and all desired pools do."""
    serves = _have_ready_engine(children, former)
    desired = tuple(desired)
    if not former or (not serves and all(pool.desired.ready for pool in desired)):
        return False
    reported = {
        pool["spec"]["role"]: engines_ready(pool) for pool in of_kind(children, ENGINE_POOL)
    }

    def is_there(pool: PoolState) -> bool:
        if not pool.replicas:
            return not serves or spec.pool(pool.role).autoscaling is None
        return bool(reported.get(pool.role))

    return not all(
        pool.desired.settled and pool.desired.replicas == pool.replicas and is_there(pool)
        for pool in desired
    )


def plan_former(
    observed: ServiceObserved,
    desired: Iterable[PoolState],
    former: tuple[Manifest, ...],
    router: PlannedRouter,
    noted: Collection[Role],
) -> Former:
    """Former pools that stay with the planned routers. All stay until the running routers use only
    the `desired` pools, and each desired pool with engines has a ready one. `noted`: the roles
    whose engines were complete last."""
    if router.is_former:
        return Former(former, is_served=True)
    planned = config_map_of_pod(router.deployment["spec"]["template"]["spec"])
    running = (pod for pod in observed.pods if not is_finished(pod))
    in_use = {config_map_of_pod(pod["spec"]) for pod in running}
    has_moved = in_use == {planned}
    serves = all(pool.desired.ready or not pool.replicas for pool in desired)
    was_complete = any(pool["spec"]["role"] in noted for pool in former)
    is_left = serves or not (was_complete or _have_ready_engine(observed.children, former))
    return NO_FORMER if has_moved and is_left else Former(former)


def former_manifests(former: Former, noted: Revisions, top: Owner) -> Iterator[Manifest]:
    """Scaled `former` pools with a new number of engines, as they were applied. The number goes to
    their only revision, or to the one in `noted`, which was complete last. Restored pools without a
    record of what was applied are applied as they are."""
    for pool in former.pools:
        applied = applied_manifest(pool)
        if is_restored := applied is None:
            spec = {key: value for key, value in pool["spec"].items() if key != "replicas"}
            applied = restored(pool) | {"spec": spec}
        shares: list[Manifest] = applied["spec"].get("revisions") or []
        stable = shares[0]["name"] if len(shares) == 1 else noted.get(pool["spec"]["role"], "")
        in_place = bool(applied["spec"].get("inPlace"))
        planned = list(_new_shares(pool, shares, stable, in_place=in_place))
        if planned == shares and not is_restored:
            continue
        spec = applied["spec"] | {"revisions": planned}
        metadata = {k: v for k, v in applied["metadata"].items() if k != "annotations"}
        owned = owned_by(applied | {"metadata": metadata, "spec": spec}, top)
        yield with_applied_fields(stamped(owned))


def _new_shares(
    pool: Manifest, shares: list[Manifest], stable: str, *, in_place: bool
) -> Iterator[Manifest]:
    """The `shares` of a pool's revisions, where `stable`, the last complete one, gets the number.
    `in_place`: other revisions take their engines out of the number, but the last engine of
    `stable` stays."""
    others = sum(share["replicas"] for share in shares if share["name"] != stable)
    engines = pool["spec"]["replicas"] - (others if in_place else 0)
    for share in shares:
        least = min(1, share["replicas"], pool["spec"]["replicas"])
        yield share | {"replicas": max(least, engines)} if share["name"] == stable else share


def _have_ready_engine(children: Children, pools: tuple[Manifest, ...]) -> bool:
    return any(
        (item.get("status") or {}).get("readyReplicas")
        for pool in pools
        for item in engine_deployments(
            children, pool["spec"]["serviceName"], (pool,), pool["spec"]["role"]
        )
    )
