"""Decisions about canaries of a service, and what becomes of its engines."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sluice_contract.cluster.labels import CANARY, REVISION
from sluice_contract.wire.load import CanaryCounts
from sluice_operator.cli.rollout.canary import Decide, decision
from sluice_operator.cli.rollout.session import Session
from sluice_operator.kube.kinds import CONTROLLER_REVISION, DEPLOYMENT, SERVICE
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.revisions.revision import revisions_of

from tests.operator.harness.memory_cluster import MemoryCluster, running
from tests.operator.service.rollout.canary_world import counts, look
from tests.operator.statuses import condition

STEPS = {"canary": {"steps": [25, 50]}}
JUDGED: dict[str, Any] = {"canary": {"steps": [25, 50], "minutes": 2}}


class Decisions:
    """Decisions about a service with `sluice rollout`."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster

    async def decides(
        self,
        decide: Decide,
        restarts: bool = False,
        carried_out: bool = True,
        meanwhile: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`meanwhile`: what happens after the state was read, and before this is written."""
        session = Session(self.cluster.api, "default", "chat")  # type: ignore[arg-type]
        items, service = await session.revisions(), await session.service()
        revision, annotation, self.text = decision(service, items, decide)
        if meanwhile:
            await meanwhile()
            items = await session.revisions()
        (live,) = (item for item in items if item["metadata"]["name"] == revision)
        await session.decide(live, annotation)
        if restarts:
            self.cluster.operator_starts()
        if carried_out:
            await self.cluster.reconciled()


class Person(Decisions):
    """A person who decides about a service of one pool that is complete."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(cluster)
        (self.former,) = self.engines

    @property
    def engines(self) -> dict[str, int]:
        """By Deployment."""
        items = self.cluster.api.objects.items()
        return {
            item["metadata"]["labels"][REVISION]: item["spec"]["replicas"]
            for (kind, name), item in items
            if kind is DEPLOYMENT and "-mixed-" in name
        }

    @property
    def label(self) -> str | None:
        labels = self.cluster.api.objects[SERVICE, "chat-mixed"]["metadata"]["labels"]
        label: str | None = labels.get(CANARY)
        return label

    @property
    def new(self) -> str:
        return next(name for name in self.engines if name != self.former)

    @property
    def counts(self) -> tuple[int, int]:
        """Engines of the new and of the former revision."""
        return self.engines[self.new], self.engines[self.former]

    @property
    def state(self) -> CanaryState:
        """The canary of the newest revision, as it is recorded."""
        items = self.cluster.api.objects.items()
        noted = tuple(
            {"kind": CONTROLLER_REVISION.kind, **item}
            for (kind, _), item in items
            if kind is CONTROLLER_REVISION
        )
        return next(revisions_of(noted).newest_first).state.canary

    def progressing(self) -> tuple[str, str]:
        progressing = condition(self.cluster.status, "Progressing")
        return progressing["status"], progressing["reason"]


async def rolled(**spec: Any) -> Person:
    """A canary of four engines whose first step is reached."""
    person = Person(await running(**{"replicas": 4, "rollout": STEPS} | spec))
    await person.cluster.edited(engine={"chunkSize": 64})
    return person


class Watched(Person):
    """A canary that the operator judges."""

    minutes = 0

    @classmethod
    async def rolled(cls, **canary: Any) -> Watched:
        rollout = {"canary": JUDGED["canary"] | canary}
        watched = cls((await rolled(rollout=rollout)).cluster)
        watched.former = next(name for name, count in watched.engines.items() if count == 4)
        return watched

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster

    async def looks(self, new: tuple[int, int], former: tuple[int, int], times: int = 2) -> None:
        """A minute later a router has counted so much, and the operator looks at it so many times,
        a minute apart."""
        names = {"revision": self.new, "former": self.former}
        percent = int((self.label or "25").rpartition(".")[2])
        answer: CanaryCounts = counts(new, former, percent=percent, **names)
        for _ in range(times):
            self.cluster.looks.answers = (look(self.minutes, answer),)
            self.minutes += 1
            await self.cluster.reconciled()

    def notes(self, reason: str) -> list[str]:
        return [e["note"] for e in self.cluster.api.events if e["reason"] == reason]
