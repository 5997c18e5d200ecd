"""Carries out moves of engines between the two pools of a service, one step after the other.

Nothing is remembered: the move is an annotation of the pool that gets the engines, written together
with its replicas. Before each step the API server is read, not the store, so no step is done twice.
Reads and writes only; `move_steps` decides.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_autoscaler.decision import Decision, Move
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role

from sluice_operator.apply.plan import REPLICAS_MANAGER, Event
from sluice_operator.autoscale.move_steps import (
    End,
    MoveObserved,
    Relabel,
    Shrink,
    next_step,
)
from sluice_operator.autoscale.outcome import Outcome, Written
from sluice_operator.clock import Clock
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import FORBIDDEN, ApiError, RequestError
from sluice_operator.kube.kinds import ENGINE_POOL, POD, Manifest
from sluice_operator.log import fields
from sluice_operator.scaled import (
    DELETION_COST,
    MOVED,
    MOVING,
    MoveInProgress,
    ScaledPool,
    ScaledService,
    move_to,
)

MOVED_REASON: Final = "EngineMoved"
NOT_MOVED: Final = "MoveEnded"
MANAGER: Final = "sluice-operator-moves"
"""The field manager of labels of pods."""
LOOKS: Final = 12
"""At the cluster, in one tick."""
LOOK_SECONDS: Final = 0.25
"""Between two: Kubernetes hands a pod to another ReplicaSet, while one pod too many is there."""
STALE: Final = frozenset({404, 409, 422})
"""Of a pod that has changed since it was read; the next tick looks again."""

logger = logging.getLogger(__name__)


@dataclass
class Mover:
    """Writes through one client."""

    client: ApiClient
    clock: Clock
    forbidden: set[str] = field(default_factory=set)
    """Namespaces in which pods may not be patched: said once, and no move begins there."""

    def may_begin(self, scaled: ScaledService, decision: Decision) -> bool:
        """Whether the decision has a move, and nothing is known to forbid it."""
        return decision.move is not None and _namespace(scaled) not in self.forbidden

    async def begin(self, scaled: ScaledService, move: Move) -> Outcome:
        """Asks the target pool for more engines, and notes the move there."""
        pool = scaled.pools[move.target]
        noted = MoveInProgress(
            source=move.source,
            engines=move.engines,
            source_before=scaled.pools[move.source].replicas,
            target_after=move.target_engines,
            since=self.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        try:
            generation = await self._scale(scaled, pool, move.target_engines, noted)
        except RequestError as error:
            return Outcome(failed=error)
        return Outcome((Written(move.target, move.target_engines, generation, noted),))

    async def go_on(self, scaled: ScaledService, target: Role, decision: Decision) -> Outcome:
        """The next steps, as far as they go at once."""
        outcome, waits = Outcome(events=()), False
        try:
            for _ in range(LOOKS):
                seen = await self._observe(scaled, target)
                if seen is None:
                    break
                victims = decision.pools[seen.move.source].victims
                step = next_step(seen, victims)
                if isinstance(step, Relabel):
                    outcome, waits = outcome.and_events(*await self._relabel(seen, step)), True
                elif isinstance(step, Shrink):
                    outcome = outcome.and_written(await self._shrink(scaled, seen, step))
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

    async def _observe(self, scaled: ScaledService, target: Role) -> MoveObserved | None:
        """None: there is no move to `target` any more."""
        namespace, pools = _namespace(scaled), scaled.pools
        target_pool = await self.client.get(ENGINE_POOL, namespace, pools[target].name)
        move = move_to(target_pool) if target_pool is not None else None
        if target_pool is None or move is None or move.source not in pools:
            return None
        source_pool = await self.client.get(ENGINE_POOL, namespace, pools[move.source].name)
        if source_pool is None:
            return None
        selector = f"{labels.SERVICE}={scaled.live['metadata']['name']}"
        return MoveObserved(
            move=move,
            target=target,
            pools={move.source: source_pool, target: target_pool},
            pods=await self.client.list_objects(POD, namespace, selector),
            is_possible=scaled.settings.engines_move and namespace not in self.forbidden,
            now=self.clock.now(),
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

    async def _shrink(self, scaled: ScaledService, seen: MoveObserved, step: Shrink) -> Written:
        source = seen.move.source
        generation = await self._scale(scaled, scaled.pools[source], step.replicas)
        return Written(source, step.replicas, generation)

    async def _end(self, scaled: ScaledService, seen: MoveObserved, step: End) -> Sequence[Event]:
        await self._scale(scaled, scaled.pools[seen.target], seen.replicas(seen.target))
        if step.is_done:
            return ()
        text = f"A move of engines from pool {seen.move.source} to pool {seen.target} has ended"
        return (Event("Normal", NOT_MOVED, f"{text}: {step.why}; the next decision corrects it."),)

    async def _scale(
        self,
        scaled: ScaledService,
        pool: ScaledPool,
        replicas: int,
        move: MoveInProgress | None = None,
    ) -> int:
        """Returns the generation of the EnginePool, which has the annotation of `move` or none."""
        annotations = {"annotations": {MOVING: move.text}} if move else {}
        manifest = {
            "apiVersion": ENGINE_POOL.api_version,
            "kind": ENGINE_POOL.kind,
            "metadata": {
                "name": pool.name,
                "namespace": _namespace(scaled),
                "uid": pool.uid,
                **annotations,
            },
            "spec": {"replicas": replicas},
        }
        result = await self.client.apply(ENGINE_POOL, manifest, manager=REPLICAS_MANAGER)
        return int(result["metadata"]["generation"])

    def _note_refusal(self, pod: Manifest, error: ApiError) -> None:
        """Engines of a namespace whose pods may not be patched do not move any more."""
        namespace = pod["metadata"]["namespace"]
        if error.status == FORBIDDEN and namespace not in self.forbidden:
            self.forbidden.add(namespace)
            text = "engines do not move between pools: the operator may not patch pods"
            logger.warning(text, extra=fields(namespace=namespace, error=error))


def _namespace(scaled: ScaledService) -> str:
    return str(scaled.live["metadata"]["namespace"])


def _relabelled(
    pod: Manifest, pool_labels: dict[str, str], move: MoveInProgress
) -> list[dict[str, Any]]:
    """A JSON patch of the pod as it was read, and of no later one."""
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
