"""A service and what there is of it: each plan is carried out by hand, and its status is what the
next one starts from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sluice_contract.wire.fetch_progress import FetchProgress
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images, Installation
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import IMAGES, NOW, live, of, service, service_observed, written
from tests.operator.model_pods import COMMIT, ended_pod, resolved, said
from tests.operator.statuses import condition


@dataclass
class World:
    """One service and what there is of it."""

    spec: Manifest
    generation: int = 1
    status: Manifest = field(default_factory=dict)
    children: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    pods: list[Manifest] = field(default_factory=list)
    uids: int = 0
    installation: Installation = field(default_factory=Installation)
    images: Images = IMAGES
    refused: str = ""
    """Why the API server makes no pod of any Job."""

    def reconcile(self, progress: FetchProgress | None = None) -> ServicePlan:
        """Plans, carries out and reports once."""
        item = service(self.spec, generation=self.generation) | {"status": self.status}
        observed = service_observed(
            item,
            self.children.values(),
            fetchers=tuple(self.pods),
            progress=progress,
            refused_jobs=self._refused_jobs(),
            installation=self.installation,
        )
        observed = replace(observed, images=self.images)
        plan = plan_service(observed)
        for manifest in written(plan):
            self._apply(manifest)
        for reference in plan.prune:
            del self.children[reference.kind.kind, reference.name]
        self.status = service_status(replace(observed, service=item), plan, NOW)
        return plan

    def _refused_jobs(self) -> dict[str, str]:
        jobs = (child for (kind, _), child in self.children.items() if kind == "Job")
        return {job["metadata"]["uid"]: self.refused for job in jobs if self.refused}

    def _apply(self, manifest: Manifest) -> None:
        key = (manifest["kind"], manifest["metadata"]["name"])
        known = self.children.get(key)
        self.uids += known is None
        uid = known["metadata"]["uid"] if known else f"uid-{self.uids}"
        self.children[key] = live(manifest, uid=uid)

    def edit(self, **model: Any) -> None:
        self.generation += 1
        self.spec = self.spec | {"model": self.spec["model"] | model}

    def job(self) -> Manifest:
        return of(self.children.values(), "Job")

    def ends(self, code: int, message: str) -> None:
        """The Job's next pod ends."""
        self.pods.append(ended_pod(self.job(), code, message, len(self.pods)))

    def deliver(self) -> None:
        """A hub's model, asked for by the last plan, is resolved and downloaded to its claim."""
        for message in (resolved(), said("ModelFetched", COMMIT)):
            self.ends(0, message)
            self.reconcile()
            self.reconcile()

    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.children}

    def condition(self, kind: str) -> tuple[str, str]:
        found = condition(self.status, kind)
        return found["status"], found["reason"]

    def revisions(self) -> dict[str, str]:
        pools = (c for (kind, _), c in self.children.items() if kind == "EnginePool")
        return {p["spec"]["role"]: p["spec"]["revisions"][0]["name"] for p in pools}


HUB: Manifest = {"uri": "hf://Qwen/Qwen3-8B"}
CACHED: Manifest = HUB | {"cache": {"size": "20Gi"}}
OTHER_COMMIT = "decade" * 6 + "4567"


def resolved_world(**model: Any) -> World:
    """A world whose model is resolved, and whose status says so."""
    world = World({"model": HUB | model})
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    return world


def served_world() -> World:
    world = resolved_world()
    world.reconcile()
    assert world.revisions()
    return world
