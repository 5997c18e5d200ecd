"""Moves engines between the two pools of a service, one step after the other.

The order of the steps ends no serving engine, because a ReplicaSet removes pods that are not ready
first:

1. The target pool is asked for more engines. Its annotation records the move.
2. Once the target's new pods exist and are not ready, engines of the source pool get the target's
   labels. The source's ReplicaSet releases these engines. The target's ReplicaSet adopts them, and
   removes as many of its new pods.
3. Once they are adopted, the source pool is asked for fewer engines. Its ReplicaSet removes the
   pods that it has begun to replace them.

Nothing is remembered: each step follows from what the API server shows just before it, so no step
is done twice. A move that gets stuck ends, and leaves numbers of engines that the next decisions
correct.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from sluice_autoscaler.decision import Decision, Move
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.apply.plan import REPLICAS_MANAGER, Event
from sluice_operator.autoscale.events import ScalingOutcome, Written
from sluice_operator.clock import Clock
from sluice_operator.conditions.pods import is_draining, is_finished, is_ready
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import FORBIDDEN, ApiError, RequestError
from sluice_operator.kube.kinds import ENGINE_POOL, POD, Manifest
from sluice_operator.log import fields
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import note_of
from sluice_operator.scaled import (
    DELETION_COST,
    MOVED,
    MOVING,
    MoveInProgress,
    ScaledService,
    move_to,
)

MOVED_REASON: Final = "EngineMoved"
NOT_MOVED: Final = "MoveEnded"
MANAGER: Final = "sluice-operator-moves"
"""The field manager of labels of pods."""
LOOKS: Final = 12
"""Most observations of the cluster in one tick."""
LOOK_SECONDS: Final = 0.25
"""Wait between two observations. Kubernetes passes a pod to another ReplicaSet, so for a moment one
pod too many exists."""
STALE: Final = frozenset({404, 409, 422})
"""HTTP statuses of a write whose pod or pool has changed since it was read; the next tick observes
again."""
MAX_SECONDS: Final = 60.0
"""Longest duration of a move; one that is not complete by then ends."""
TEMPLATE_HASH: Final = "pod-template-hash"
"""Label by which a ReplicaSet knows its pods."""
POOL_LABELS: Final = (labels.ROLE, labels.REVISION, TEMPLATE_HASH)
"""Labels in which the pods of two otherwise equal pools differ."""

logger = logging.getLogger(__name__)


class Relabel(NamedTuple):
    """Step: `pods` get these labels."""

    pods: Sequence[Manifest]
    labels: dict[str, str]


class Shrink(NamedTuple):
    """Step: the source pool gets `replicas` engines."""

    replicas: int


class End(NamedTuple):
    """Step: the annotation of the move is removed."""

    why: str
    """Why the move ended early; empty: the engines have moved."""


Step = Relabel | Shrink | End | None
"""One step of a move; None: Kubernetes has to act first."""


@dataclass(frozen=True)
class MoveObserved:
    """A move, and what the cluster shows of it."""

    move: MoveInProgress
    target: Role
    pools: Mapping[Role, Manifest]
    """The EnginePools of both roles."""
    pods: Sequence[Manifest]
    """Pods of the service."""
    is_possible: bool
    """Whether engines of both pools are still alike, and no roll-out is under way."""
    preferred: Sequence[str]
    """Names of engines that had best move, the best first."""
    is_late: bool
    """Whether the move has lasted `MAX_SECONDS`, so it ends without waiting."""

    def replicas(self, role: Role) -> int:
        """Replicas in the spec of the pool of `role`."""
        return int(self.pools[role]["spec"]["replicas"])

    def pods_of(self, role: Role) -> list[Manifest]:
        """Pods of `role` that are neither being deleted nor finished."""
        return [
            pod
            for pod in self.pods
            if (pod["metadata"].get("labels") or {}).get(labels.ROLE) == role
            and not (is_draining(pod) or is_finished(pod))
        ]

    def movable(self) -> list[Manifest]:
        """Ready engines of the source pool, the preferred ones first."""
        places = {name: place for place, name in enumerate(self.preferred)}

        def rank(pod: Manifest) -> tuple[int, str]:
            name = str(pod["metadata"]["name"])
            return places.get(name, len(places)), name

        return sorted(filter(is_ready, self.pods_of(self.move.source)), key=rank)

    def new_pods(self) -> list[Manifest]:
        """Unready pods of the target pool: its ReplicaSet removes these as engines move there."""
        pods = self.pods_of(self.target)
        return [pod for pod in pods if not is_ready(pod) and not note_of(pod, MOVED)]

    def is_adopted(self, pod: Manifest) -> bool:
        """Whether the target pool's ReplicaSet controls the pod. A ReplicaSet is named after its
        Deployment and the hash of its template."""
        template_hash = pod["metadata"]["labels"].get(TEMPLATE_HASH, "")
        pool = self.pools[self.target]["metadata"]["name"]
        owners = pod["metadata"].get("ownerReferences") or ()
        controllers = [owner["name"] for owner in owners if owner.get("controller")]
        return f"{pool}-{revision_of(pod)}-{template_hash}" in controllers


def next_step(seen: MoveObserved) -> Step:
    """The next step of a move."""
    move = seen.move
    replicas = seen.replicas(move.source), seen.replicas(seen.target)
    if replicas[0] == move.source_before - move.engines:
        return End("")
    if replicas != (move.source_before, move.target_after):
        return End("the replicas of a pool were changed")
    moved = [pod for pod in seen.pods_of(seen.target) if note_of(pod, MOVED) == move.text]
    adopted = sum(map(seen.is_adopted, moved))
    if len(moved) >= move.engines and adopted == len(moved):
        return Shrink(move.source_before - move.engines)
    if len(moved) >= move.engines and not seen.is_late:
        return None
    left = move.engines - len(moved)
    if hindrance := _hindrance(seen, left):
        return Shrink(move.source_before - adopted) if adopted else End(hindrance)
    new = seen.new_pods()
    return Relabel(seen.movable()[:left], _pool_labels(new[0])) if len(new) >= left else None


def _hindrance(seen: MoveObserved, count: int) -> str:
    """Why `count` more engines cannot move; empty: nothing is known to be in the way."""
    source, target = seen.pods_of(seen.move.source), seen.pods_of(seen.target)
    if seen.is_late:
        return "it took too long"
    if not seen.is_possible:
        return "the pools are not alike any more, or a roll-out is under way"
    if _has_two_templates(source) or _has_two_templates(target):
        return "a pool has pods of two templates"
    if len(target) >= seen.move.target_after and len(seen.new_pods()) < count:
        return "the engines that were started instead are ready"
    if len(seen.movable()) < count:
        return "too few engines of the other pool are ready"
    return ""


def _has_two_templates(pods: Sequence[Manifest]) -> bool:
    return any(_pool_labels(pod) != _pool_labels(pods[0]) for pod in pods)


def _pool_labels(pod: Manifest) -> dict[str, str]:
    there = pod["metadata"]["labels"]
    return {name: there[name] for name in POOL_LABELS if name in there}


@dataclass
class Mover:
    """Moves engines by writes through one client."""

    client: ApiClient
    clock: Clock
    forbidden: set[str] = field(default_factory=set)
    """Namespaces in which the operator may not patch pods. Each is logged once, and no move begins
    there."""

    def may_begin(self, scaled: ScaledService, decision: Decision) -> bool:
        """Whether the decision has a move, and nothing is known to forbid it."""
        return decision.move is not None and scaled.namespace not in self.forbidden

    async def begin(self, scaled: ScaledService, move: Move) -> ScalingOutcome:
        """Asks the target pool for more engines, and notes the move there."""
        target, engines = move.target, move.target_engines
        noted = MoveInProgress(
            source=move.source,
            engines=move.engines,
            source_before=scaled.pools[move.source].replicas,
            target_after=engines,
            since=self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        try:
            written = await write_replicas(self.client, scaled, target, engines, noted)
        except RequestError as error:
            return ScalingOutcome(failed=error)
        return ScalingOutcome((written,))

    async def go_on(
        self, scaled: ScaledService, target: Role, decision: Decision
    ) -> ScalingOutcome:
        """Takes the next steps of a move, as many as one tick allows."""
        outcome, waits = ScalingOutcome(events=()), False
        try:
            for _ in range(LOOKS):
                seen = await self._observe(scaled, target, decision)
                if seen is None:
                    break
                step = next_step(seen)
                if isinstance(step, Relabel):
                    outcome, waits = outcome.and_events(*await self._relabel(seen, step)), True
                elif isinstance(step, Shrink):
                    source, replicas = seen.move.source, step.replicas
                    written = await write_replicas(self.client, scaled, source, replicas)
                    outcome = outcome.and_written(written)
                elif isinstance(step, End):
                    outcome = outcome.and_events(*await self._end(scaled, seen, step))
                    break
                elif not waits:
                    break
                else:
                    await self.clock.sleep(LOOK_SECONDS)
        except RequestError as error:
            stale = isinstance(error, ApiError) and error.status in STALE
            return outcome if stale else outcome.after(error)
        return outcome

    async def _observe(
        self, scaled: ScaledService, target: Role, decision: Decision
    ) -> MoveObserved | None:
        """The move to `target` and its pools and pods; None: there is no such move any more."""
        namespace, pools = scaled.namespace, scaled.pools
        target_pool = await self.client.get(ENGINE_POOL, namespace, pools[target].name)
        move = move_to(target_pool) if target_pool is not None else None
        if target_pool is None or move is None or move.source not in pools:
            return None
        source_pool = await self.client.get(ENGINE_POOL, namespace, pools[move.source].name)
        if source_pool is None:
            return None
        age = self.clock.now() - datetime.fromisoformat(move.since)
        selector = f"{labels.SERVICE}={scaled.live['metadata']['name']}"
        return MoveObserved(
            move=move,
            target=target,
            pools={move.source: source_pool, target: target_pool},
            pods=await self.client.list_objects(POD, namespace, selector),
            is_possible=scaled.settings.engines_move and namespace not in self.forbidden,
            preferred=decision.pools[move.source].victims,
            is_late=abs(age.total_seconds()) > MAX_SECONDS,
        )

    async def _relabel(self, seen: MoveObserved, step: Relabel) -> Sequence[Event]:
        events = []
        for pod in step.pods:
            name = pod["metadata"]["name"]
            try:
                await self.client.patch(POD, pod, _relabelled(pod, step.labels, seen.move), MANAGER)
            except ApiError as error:
                self._note_refusal(pod, error)
                raise
            text = f"Engine {name} moves from pool {seen.move.source} to pool {seen.target}"
            events.append(Event("Normal", MOVED_REASON, f"{text}, and takes its role."))
            logger.info("engine moves", extra=fields(pod=name, role=seen.target))
        return events

    async def _end(self, scaled: ScaledService, seen: MoveObserved, step: End) -> Sequence[Event]:
        await write_replicas(self.client, scaled, seen.target, seen.replicas(seen.target))
        if not step.why:
            return ()
        text = f"A move of engines from pool {seen.move.source} to pool {seen.target} has ended"
        return (Event("Normal", NOT_MOVED, f"{text}: {step.why}; the next decision corrects it."),)

    def _note_refusal(self, pod: Manifest, error: ApiError) -> None:
        """Engines of a namespace whose pods may not be patched do not move any more."""
        namespace = pod["metadata"]["namespace"]
        if error.status == FORBIDDEN and namespace not in self.forbidden:
            self.forbidden.add(namespace)
            text = "engines do not move between pools: the operator may not patch pods"
            logger.warning(text, extra=fields(namespace=namespace, error=error))


def _relabelled(
    pod: Manifest, pool_labels: dict[str, str], move: MoveInProgress
) -> list[dict[str, Any]]:
    """A JSON patch that gives a pod its new labels; it fails if the pod has changed since it was
    read."""
    metadata = pod["metadata"]
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key != DELETION_COST
    }
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]},
        {"op": "add", "path": "/metadata/labels", "value": metadata["labels"] | pool_labels},
        {"op": "add", "path": "/metadata/annotations", "value": annotations | {MOVED: move.text}},
    ]


async def write_replicas(
    client: ApiClient,
    scaled: ScaledService,
    role: Role,
    replicas: int,
    move: MoveInProgress | None = None,
) -> Written:
    """Asks a pool for `replicas` engines. The EnginePool gets the annotation of `move`, or loses
    it."""
    pool = scaled.pools[role]
    # With its uid: a pool that has gone in the meantime is not created again.
    metadata = {"name": pool.name, "namespace": scaled.namespace, "uid": pool.uid}
    manifest = {
        "apiVersion": ENGINE_POOL.api_version,
        "kind": ENGINE_POOL.kind,
        "metadata": metadata | ({"annotations": {MOVING: move.text}} if move else {}),
        "spec": {"replicas": replicas},
    }
    result = await client.apply(ENGINE_POOL, manifest, manager=REPLICAS_MANAGER)
    return Written(role, replicas, int(result["metadata"]["generation"]), move)
