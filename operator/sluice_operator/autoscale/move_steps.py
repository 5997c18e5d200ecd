"""The next step of a move: engines that go to the other pool and take its role. Pure.

In this order no engine that serves is ended, as a ReplicaSet removes pods that are not ready first:

1. The target pool is asked for more engines (done before, with the annotation of the move).
2. Once its new pods are there and not ready, engines of the source pool get their labels. Their
   ReplicaSet lets go of them and the other one takes them, and removes the new pods.
3. Once they have the other controller, the source pool is asked for fewer engines. Its ReplicaSet
   removes the pods that it has begun in their place.

Every step follows from what the cluster shows. A move that gets stuck ends, and leaves numbers of
engines that the next decisions correct.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.conditions.pods import is_draining, is_finished, is_ready
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import note_of
from sluice_operator.scaled import MOVED, MoveInProgress

MAX_SECONDS: Final = 60.0
"""After which a move that has not got further ends."""
TEMPLATE_HASH: Final = "pod-template-hash"
"""Label by which a ReplicaSet knows its pods."""
POOL_LABELS: Final = (labels.ROLE, labels.REVISION, TEMPLATE_HASH)
"""In which pods of two pools that are alike differ."""


class Relabel(NamedTuple):
    """These pods get these labels."""

    pods: tuple[Manifest, ...]
    labels: dict[str, str]


class Shrink(NamedTuple):
    """The source pool gets so many replicas."""

    replicas: int


class End(NamedTuple):
    """Nothing is left of the move but its annotation."""

    is_done: bool
    why: str


class Wait(NamedTuple):
    """For Kubernetes."""


Step = Relabel | Shrink | End | Wait


@dataclass(frozen=True)
class MoveObserved:
    """A move, and what the cluster shows of it."""

    move: MoveInProgress
    target: Role
    pools: Mapping[Role, Manifest]
    """The EnginePools of both roles."""
    pods: tuple[Manifest, ...]
    """Of the service."""
    is_possible: bool
    """Whether engines of both pools are still alike, and no roll-out is under way."""
    now: datetime

    @property
    def is_late(self) -> bool:
        """Whether nothing more is waited for."""
        since = datetime.fromisoformat(self.move.since)
        return abs((self.now - since).total_seconds()) > MAX_SECONDS

    def replicas(self, role: Role) -> int:
        """What the pool is asked for."""
        return int(self.pools[role]["spec"]["replicas"])

    def pods_of(self, role: Role) -> list[Manifest]:
        """Those that are not about to go."""
        return [
            pod
            for pod in self.pods
            if (pod["metadata"].get("labels") or {}).get(labels.ROLE) == role
            and not (is_draining(pod) or is_finished(pod))
        ]


def next_step(seen: MoveObserved, preferred: Sequence[str] = ()) -> Step:
    """What to do now. `preferred`: names of engines that had best move, the best first."""
    move = seen.move
    source, target = seen.replicas(move.source), seen.replicas(seen.target)
    if source == move.source_before - move.engines:
        return End(True, "the engines have moved")
    if (source, target) != (move.source_before, move.target_after):
        return End(False, "the replicas of a pool were changed")
    moved = [pod for pod in seen.pods_of(seen.target) if note_of(pod, MOVED) == move.text]
    adopted = sum(_is_adopted(pod, seen) for pod in moved)
    if len(moved) >= move.engines and adopted == len(moved):
        return Shrink(move.source_before - move.engines)
    if len(moved) >= move.engines and not seen.is_late:
        return Wait()
    hindrance = _hindrance(seen, move.engines - len(moved))
    if hindrance:
        return Shrink(move.source_before - adopted) if adopted else End(False, hindrance)
    new = _new_pods(seen)
    if len(moved) + len(new) < move.engines:
        return Wait()
    able = sorted(_able(seen), key=lambda pod: _rank(pod, preferred))
    return Relabel(tuple(able[: move.engines - len(moved)]), _pool_labels(new[0]))


def _hindrance(seen: MoveObserved, count: int) -> str:
    """Why `count` more engines cannot move; empty: nothing is known to be in the way."""
    target = seen.pods_of(seen.target)
    if seen.is_late:
        return "it took too long"
    if not seen.is_possible:
        return "the pools are not alike any more, or a roll-out is under way"
    if len(set(map(_template, target))) > 1 or len({_template(pod) for pod in _source(seen)}) > 1:
        return "a pool has pods of two templates"
    if len(target) >= seen.move.target_after and len(_new_pods(seen)) < count:
        return "the engines that were started instead are ready"
    if len(_able(seen)) < count:
        return "too few engines of the other pool are ready"
    return ""


def _source(seen: MoveObserved) -> list[Manifest]:
    return seen.pods_of(seen.move.source)


def _new_pods(seen: MoveObserved) -> list[Manifest]:
    """Of the target pool: those that the ReplicaSet removes for engines that move here."""
    pods = seen.pods_of(seen.target)
    return [pod for pod in pods if not is_ready(pod) and not note_of(pod, MOVED)]


def _able(seen: MoveObserved) -> list[Manifest]:
    return [pod for pod in _source(seen) if is_ready(pod)]


def _rank(pod: Manifest, preferred: Sequence[str]) -> tuple[int, str]:
    name = str(pod["metadata"]["name"])
    return (preferred.index(name) if name in preferred else len(preferred)), name


def _pool_labels(pattern: Manifest) -> dict[str, str]:
    there = pattern["metadata"]["labels"]
    return {name: there[name] for name in POOL_LABELS if name in there}


def _template(pod: Manifest) -> tuple[str, ...]:
    return tuple(_pool_labels(pod).values())


def _is_adopted(pod: Manifest, seen: MoveObserved) -> bool:
    """Whether the target pool's ReplicaSet controls the pod. It is named after its Deployment and
    the hash of the template."""
    template_hash = pod["metadata"]["labels"].get(TEMPLATE_HASH, "")
    pool = seen.pools[seen.target]["metadata"]["name"]
    return f"{pool}-{revision_of(pod)}-{template_hash}" in _controllers(pod)


def _controllers(pod: Manifest) -> Iterator[str]:
    owners = pod["metadata"].get("ownerReferences") or ()
    return (owner["name"] for owner in owners if owner.get("controller"))
