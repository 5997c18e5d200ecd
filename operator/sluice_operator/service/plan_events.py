"""Events for users when a service's plan is carried out: created, scaled, removed.

Compares live objects with the plan, so there are none once nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sluice_contract.cluster.labels import (
    FIELD_MANAGER,
    CanaryShare,
    Role,
)

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.field_ownership import managers_of
from sluice_operator.apply.plan import REPLICAS_MANAGER, Adoption, Event, Identity, identity
from sluice_operator.conditions import reasons
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    ENGINE_POOL,
    SERVICE,
    Manifest,
    Reference,
    of_kind,
)
from sluice_operator.manifests.metadata import is_current
from sluice_operator.manifests.network import share_of
from sluice_operator.service.observe import Children
from sluice_operator.service.resolve.replicas import ReplicasOwner, replicas_owner
from sluice_operator.service.revisions.canary_state import ENDED, CanaryState
from sluice_operator.service.revisions.revision import revisions_of

NAMES_IN_EVENT: Final = 8

ROLLING_OUT: Final = "RollingOut"
CANARY_ENDED: Final = "CanaryEnded"
CANARY_SAME: Final = "CanarySame"
ENDED_CANARY_SERVES: Final = "EndedCanaryServes"
SCALE_TARGET_GOES: Final = "ScaleTargetGoes"
LEAVES_RESTRICTED: Final = "LeavesRestricted"
RDMA_RIGHTS: Final = (
    "kvTransfer.protocol rdma gives engines the capability IPC_LOCK, which the Pod Security "
    "Standards restricted and baseline forbid; the namespace must allow it."
)
NUMBERS: Final = frozenset({"replicas", "revisions"})


def created(children: Children, apply: Iterable[Manifest]) -> tuple[Event, ...]:
    """Events about planned children that do not exist yet."""
    there = {identity(child) for child in children}
    new = tuple(child_name for child_name in map(identity, apply) if child_name not in there)
    return (Event("Normal", "Created", f"Created {_listed(new)}.", written=new),) if new else ()


def scaled(
    children: Children, planned: Mapping[str, Manifest], spec: InferenceServiceSpec
) -> tuple[Event, ...]:
    """Events about pools with a new number of engines; `planned`: by the pool's name. A pool that
    was already made from this plan has been edited, so its revert is reported instead. A pool whose
    number is not set here reports the number by its own plan."""
    return tuple(
        Event("Normal", "Scaled", _scaling(pool, desired, spec), written=(identity(pool),))
        for pool in of_kind(children, ENGINE_POOL)
        if (desired := planned.get(pool["metadata"]["name"])) is not None
        and "replicas" in desired["spec"]
        and not is_current(desired, pool)
        and _replicas(pool) != _replicas(desired)
    )


def rolling_out(children: Children, planned: Mapping[str, Manifest]) -> tuple[Event, ...]:
    """Events about pools with a new revision, and its cause; `planned`: by the pool's name. A pool
    that has been asked for the revision, but did not get its event, gets it once."""
    return tuple(
        Event("Normal", ROLLING_OUT, _rollout(pool, desired, old), written=(identity(pool),))
        for pool in of_kind(children, ENGINE_POOL)
        if (desired := planned.get(pool["metadata"]["name"])) is not None
        and not is_current(desired, pool)
        and (old := _revision(pool)) not in ("", _desired_revision(desired))
        and _desired_revision(pool) != _desired_revision(desired)
    )


def canary_moved(
    children: Children, planned: Iterable[Manifest], message: str, *, is_ended: bool
) -> tuple[Event, ...]:
    """The event about another share of requests for the canary than before, by the labels of the
    Services: a step, all requests, or none after an undo or another spec. `message`: of the
    roll-out; `is_ended`: its canary was aborted or found worse, which status reports instead."""
    if is_ended:
        return ()
    live = {identity(item): share_of(item) for item in of_kind(children, SERVICE)}
    for item in planned:
        before, after = live.get(identity(item)), share_of(item)
        if identity(item) in live and _percent(before) != _percent(after):
            ended = _canary_end(before, after)
            reason = CANARY_ENDED if ended else reasons.CANARY_STEP
            text = ended + message
            return (Event("Normal", reason, text, written=(identity(item),)),)
    return ()


def canary_judged(before: CanaryState, learnt: CanaryState | None) -> tuple[Event, ...]:
    """The event about a verdict of the operator on a canary: that a step is over, or that the new
    revision is worse and stays. The end of one is what status reports."""
    if learnt is None or (learnt.step, learnt.verdict) == (before.step, before.verdict):
        return ()
    if learnt.verdict == "held":
        return (Event("Warning", reasons.CANARY_WORSE, f"It stays: {learnt.why}"),)
    if learnt.verdict in ENDED:
        return ()
    number = before.step + 1
    return (Event("Normal", CANARY_SAME, f"Step {number} is over: {learnt.why}."),)


def ended_canary_serves(children: Children, planned: Mapping[str, Manifest]) -> tuple[Event, ...]:
    """The event that pools get engines of a canary that was aborted or found worse. `planned`: by
    the pool's name."""
    pools = [
        identity(pool)
        for pool in of_kind(children, ENGINE_POOL)
        if (desired := planned.get(pool["metadata"]["name"])) and not is_current(desired, pool)
    ]
    text = (
        "The canary of the present spec has ended, but its engines serve: those of the former "
        "revision are gone. Apply the former spec."
    )
    return (Event("Warning", ENDED_CANARY_SERVES, text, written=tuple(pools)),) if pools else ()


def _canary_end(before: CanaryShare | None, after: CanaryShare | None) -> str:
    """How the canary of the revision in the label before has ended; empty: it has not."""
    if before is None:
        return ""
    if after is None:
        return "The canary is over, and requests go to all engines alike. "
    if after.revision != before.revision:
        return f"The canary of revision {before.revision} is over: it gets no request. "
    has_all = after.revision == after.former
    return f"The canary is over: revision {after.revision} has all requests. " if has_all else ""


def _percent(share: CanaryShare | None) -> int:
    return share.percent if share else 0


def leaves_restricted(children: Children, planned: Mapping[str, Manifest]) -> tuple[Event, ...]:
    """Events about new pools whose engines need more rights than the Pod Security Standard
    restricted allows. `planned`: by the pool's name."""
    there = {pool["metadata"]["name"] for pool in of_kind(children, ENGINE_POOL) if _rdma(pool)}
    new = [desired["spec"]["role"] for name, desired in planned.items() if _rdma(desired)
           and name not in there]  # fmt: skip
    if not new:
        return ()
    pools = " and ".join(new)
    return (Event("Warning", LEAVES_RESTRICTED, f"Pools {pools}: {RDMA_RIGHTS}"),)


def taken_over(adopt: tuple[Adoption, ...]) -> tuple[Event, ...]:
    """Events about children that get their owner back, and change in nothing else."""
    names = tuple(identity(adoption.live) for adoption in adopt)
    text = f"Took over {_listed(names)}: nothing owned this."
    return (Event("Normal", "TakenOver", text, written=names),) if names else ()


def _rdma(pool: Manifest) -> bool:
    return bool(pool["spec"].get("rdmaResource"))


def replaced(
    children: Children, planned: Mapping[str, Manifest], former: Iterable[Manifest]
) -> tuple[Event, ...]:
    """The event that `former` pools, scaled from outside, will go. It is recorded when the
    `planned` pools that replace them are made, so that their scaler can be changed in time."""
    targets = [pool["metadata"]["name"] for pool in former if _is_scaled_outside(children, pool)]
    there = {identity(pool) for pool in of_kind(children, ENGINE_POOL)}
    new = tuple(child for child in map(identity, planned.values()) if child not in there)
    if not targets or not new:
        return ()
    goes = f"EnginePool {' and '.join(targets)} will go, replaced by {' and '.join(planned)}"
    text = f"{goes}: what scales from outside needs the new name."
    return (Event("Warning", SCALE_TARGET_GOES, text, written=new),)


def _is_scaled_outside(children: Children, pool: Manifest) -> bool:
    """Whether something outside the operator scales a pool: by the spec that the pool was made for
    or, without a record of that, by the owner of its number."""
    role = Role(pool["spec"]["role"])
    if (spec := revisions_of(children).spec_with({role})) is not None:
        return replicas_owner(spec, role) is ReplicasOwner.EXTERNAL
    return bool(managers_of(pool, "replicas") - {FIELD_MANAGER, REPLICAS_MANAGER})


def removed(children: Children, prune: tuple[Reference, ...]) -> tuple[Event, ...]:
    """Events about children that the plan removes. Configurations and the history of specs change
    with every edit, so they get no event."""
    quiet = (CONFIG_MAP, CONTROLLER_REVISION)
    gone = tuple(Identity(ref.kind.kind, ref.name) for ref in prune if ref.kind not in quiet)
    if not gone:
        return ()
    pools = (pool for pool in of_kind(children, ENGINE_POOL) if identity(pool) in gone)
    targets = [pool["metadata"]["name"] for pool in pools if _is_scaled_outside(children, pool)]
    hint = f" What scales {' and '.join(targets)} has nothing to scale any more." if targets else ""
    return (Event("Normal", "Removed", f"Removed {_listed(gone)}.{hint}", written=gone),)


def _scaling(pool: Manifest, desired: Manifest, spec: InferenceServiceSpec) -> str:
    role = pool["spec"]["role"]
    path = spec.replicas_path(Role(role))
    return f"Pool {role}: replicas from {_replicas(pool)} to {_replicas(desired)} ({path})."


def _rollout(pool: Manifest, desired: Manifest, old: str) -> str:
    before, after = pool["spec"], desired["spec"]
    names = sorted((before.keys() | after.keys()) - NUMBERS)
    changed = ", ".join(name for name in names if before.get(name) != after.get(name))
    head = f"Pool {after['role']}: revision {old} is replaced by {_desired_revision(desired)}"
    return f"{head} (changed: {changed}); it stays until the new one is complete."


def _revision(pool: Manifest) -> str:
    """The revision that a pool has been asked for until now."""
    revisions = (pool.get("status") or {}).get("revisions") or ()
    return next((entry["name"] for entry in revisions if entry["current"]), "")


def _desired_revision(pool: Manifest) -> str:
    """The revision that the spec of a pool asks for."""
    revisions = pool["spec"].get("revisions")
    return str(revisions[0]["name"]) if revisions else ""


def _replicas(pool: Manifest) -> int:
    return int(pool["spec"].get("replicas", 1))


def _listed(objects: tuple[Identity, ...]) -> str:
    names, more = list(map(" ".join, objects)), len(objects) - NAMES_IN_EVENT
    return ", ".join(names[:NAMES_IN_EVENT]) + (f" and {more} more" if more > 0 else "")
