"""Values that reconciles exchange about a service with the autoscaler, and with the loop that asks
routers about canaries.

Reconciles read the cluster and say what can be scaled, and within which limits. The autoscaler
reports its last decision for the service's status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Final, Protocol

from pydantic import TypeAdapter
from sluice_autoscaler.sample import EngineSample
from sluice_autoscaler.settings import ScalingSettings
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts

from sluice_operator.api.conditions import Check
from sluice_operator.api.status import ScalingStatus
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import Manifest

DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
VICTIM: Final = "-1"
"""Annotation of a pod, and its value on a pod that should go first."""

MOVING: Final = f"{labels.GROUP}/moving"
"""Annotation of an EnginePool: the move by which it gets engines of the other pool, as JSON."""
MOVED: Final = f"{labels.GROUP}/moved"
"""Annotation of a pod that has moved: the text of the move."""


@dataclass(frozen=True)
class MoveInProgress:
    """Engines that move to a pool from the other one. It has everything that the steps need and the
    cluster does not show, so that any operator process can continue the move."""

    source: Role
    engines: int
    source_before: int
    """Replicas of the source pool before the move."""
    target_after: int
    """Replicas that the target pool was asked for when the move began."""
    since: str
    """Time at which the move began: `2026-01-02T03:04:05Z`."""

    @property
    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))


_MOVE: Final = TypeAdapter(MoveInProgress)


def move_to(pool: Manifest) -> MoveInProgress | None:
    """The move to an EnginePool; None: there is none, or its annotation cannot be read."""
    text = (pool["metadata"].get("annotations") or {}).get(MOVING)
    if text is None:
        return None
    try:
        move = _MOVE.validate_json(text)
        return move if datetime.fromisoformat(move.since).tzinfo else None
    except ValueError:  # pydantic's, too
        return None


@dataclass(frozen=True)
class ScaledPool:
    """A pool of a service whose replicas the autoscaler decides."""

    name: str
    """Name of the EnginePool."""
    uid: str
    replicas: int
    generation: int
    """Generation of the EnginePool when it had these replicas."""
    accelerator: str
    """Display text: `CPU` or `2 x NVIDIA-A100-SXM4-40GB`."""
    others: frozenset[tuple[str, str]] = frozenset()
    """Who else owns the replicas: field managers, and when each has written last."""
    move: MoveInProgress | None = None
    """Move in progress that brings it engines of the other pool."""


@dataclass(frozen=True)
class ScaledService:
    """A service with at least one scaled pool."""

    live: Manifest
    """The InferenceService."""
    settings: ScalingSettings
    """`gpu_budget` is that of the spec, for all pools."""
    pools: Mapping[Role, ScaledPool]
    routers: tuple[str, ...]
    """Addresses of the routers' pods."""
    fixed_gpus: Mapping[Role, int] = field(default_factory=dict)
    """GPUs of one engine of each pool that is not scaled."""
    former_gpus: int = 0
    """GPUs that draining engines of another mode hold."""

    @property
    def namespace(self) -> str:
        return str(self.live["metadata"]["namespace"])


@dataclass(frozen=True)
class PoolPods:
    """The pods of one pool, of every revision."""

    replicas: int
    """Engines that the pool is asked for."""
    generation: int
    """Generation of the EnginePool when it was asked for these replicas."""
    ready: int = 0
    starting: int = 0
    """Pods that have a place and are not ready yet."""
    unschedulable: int = 0
    """Pods without a place, also those that a scheduling gate holds back."""
    claimless: tuple[datetime, ...] = ()
    """Creation times of unscheduled pods whose ResourceClaim does not exist yet."""
    queue: str = ""
    """Kueue's queue that unscheduled pods wait for; empty where none does."""
    queued: int = 0
    """Number of pods that wait in that queue."""
    live: int = 0
    """Pods that are not being deleted."""
    draining: int = 0
    """Pods that are being deleted, and hold their GPUs until they are gone."""
    start_seconds: float | None = None
    """Median seconds of a start, from scheduled to ready, over ready pods. None: no pod is ready,
    or no ready pod's status has both times."""
    start_phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds by `POD_PHASES` of the start that took `start_seconds`."""
    start_pod: str = ""
    """Name of the pod whose start it is; empty while unknown."""
    planned: int = 0
    """Engines that the roll-out plans for all revisions together, plus one that may come in
    addition while pods are replaced."""

    names: frozenset[str] = frozenset()
    """Names of placed pods that are not being deleted; unplaced pods are removed first anyway."""
    victims: frozenset[str] = frozenset()
    """Names of placed pods that are marked to be removed first, by this operator process or an
    earlier one."""

    def surplus(self, replicas: int) -> int:
        """Pods beyond `replicas` that hold GPUs, or soon will."""
        return self.draining + max(0, max(self.live, self.planned) - replicas)


@dataclass(frozen=True)
class Scaling:
    """The last decision, as a status shows it."""

    check: Check
    """Check for the condition ScalingActive."""
    status: ScalingStatus | None = None
    """Status of scaling; None: unchanged."""


class Autoscaling(Protocol):
    """The autoscaler as reconciles see it."""

    def service_seen(self, key: Key, scaled: ScaledService | None) -> None:
        """The service as it is now; None: it is not scaled, or not at the moment."""
        ...

    def pool_seen(self, key: Key, role: Role, pods: PoolPods) -> None:
        """The pods of a pool of the service `key`."""
        ...

    def forget(self, key: Key) -> None:
        """The service is gone."""
        ...

    def last_scaling(self, key: Key) -> Scaling | None:
        """The last decision; None: there was none yet."""
        ...


class _NoAutoscaling:
    """Scales nothing."""

    def service_seen(self, key: Key, scaled: ScaledService | None) -> None: ...

    def pool_seen(self, key: Key, role: Role, pods: PoolPods) -> None: ...

    def forget(self, key: Key) -> None: ...

    def last_scaling(self, key: Key) -> Scaling | None:
        return None


NO_AUTOSCALING: Final[Autoscaling] = _NoAutoscaling()
"""Autoscaling of a reconcile without an autoscaler."""


LOOKS: Final = 11
"""Looks at a canary that are kept: ten comparisons, each with the look before."""


@dataclass(frozen=True)
class Look:
    """What the routers of a service answered at one moment."""

    time: datetime
    counts: tuple[CanaryCounts, ...]
    """One for each router that counts for a canary."""
    engines: tuple[EngineSample, ...]
    asked: int
    """Routers that were asked."""
    answered: int


class CanaryLooks(Protocol):
    """The loop that asks routers about canaries, as reconciles see it."""

    def follow(
        self, key: Key, shares: Mapping[Role, CanaryShare], routers: tuple[str, ...] = ()
    ) -> None:
        """Asks these routers from now on. Looks at other shares than `shares` are forgotten; none:
        the service has no canary to judge."""
        ...

    def last_looks(self, key: Key) -> tuple[Look, ...]:
        """The last looks, at most `LOOKS`, the newest last."""
        ...


class _NoLooks:
    """Asks no router."""

    def follow(
        self, key: Key, shares: Mapping[Role, CanaryShare], routers: tuple[str, ...] = ()
    ) -> None: ...

    def last_looks(self, key: Key) -> tuple[Look, ...]:
        return ()


NO_LOOKS: Final[CanaryLooks] = _NoLooks()
"""Looks of a reconcile without a loop that asks."""
