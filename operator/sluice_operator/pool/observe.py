"""Reads one EnginePool and all that concerns it, from the informer's store or, through another
reader, from the API server.

Reads only; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sluice_contract.cluster import labels
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.wire.load import HandoverWire

from sluice_operator.clock import sooner
from sluice_operator.conditions.pods import is_ready
from sluice_operator.informer.keys import Key
from sluice_operator.informer.reader import Reader, without_foreign
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    INFERENCE_SERVICE,
    POD,
    POOL_CHILDREN,
    Manifest,
    is_being_deleted,
)
from sluice_operator.probes.accelerators import AcceleratorReports
from sluice_operator.probes.adapters import AdapterReports, EngineAdapters
from sluice_operator.probes.handover_wires import HandoverReports


@dataclass(frozen=True)
class PoolObserved:
    """One EnginePool and all that its plan and its status depend on."""

    pool: Manifest
    """The EnginePool as read, status included."""
    service: Manifest | None = None
    """The InferenceService that controls it; None when it is gone."""
    children: tuple[Manifest, ...] = ()
    """Every object of the kinds in `POOL_CHILDREN` with the pool's service and role labels, unless
    another living controller has it."""
    pods: tuple[Manifest, ...] = ()
    """Engine pods with the pool's service and role labels, of every revision."""
    accelerators: Mapping[str, Accelerator] = field(default_factory=dict)
    """Accelerators that ready engines report, by pod; empty for a pool without an accelerator."""
    adapters: Mapping[str, EngineAdapters] = field(default_factory=dict)
    """Adapters that ready engines report, by pod; empty for a pool without adapters."""
    wires: Mapping[str, HandoverWire] = field(default_factory=dict)
    """Transport of KV pages to ready engines, by pod; empty for a pool that is not decode."""
    ask_again_seconds: float | None = None
    """Seconds until ready engines are asked again that have not answered, lack adapters, or have
    not read enough pages; None: there are none."""
    foreign: tuple[Manifest, ...] = ()
    """Objects of these kinds and labels that another living controller has."""


@dataclass(frozen=True)
class PoolObserver:
    """Observes EnginePools through one reader."""

    reader: Reader
    reports: AcceleratorReports | None = None
    """None: no engine is asked."""
    adapter_reports: AdapterReports | None = None
    """None: no engine is asked of its adapters."""
    handover_reports: HandoverReports | None = None
    """None: no engine is asked what carries its pages."""

    def certain(self) -> PoolObserver:
        """An observer that reads the kinds in `DECISIVE` from the API server."""
        return replace(self, reader=self.reader.certain())

    async def observe(self, key: Key) -> PoolObserved | None:
        """All about one EnginePool; None when it is gone or being deleted."""
        pool = await self.reader.get(ENGINE_POOL, key.namespace, key.name)
        if pool is None or is_being_deleted(pool):
            return None
        # Not by the pool's own labels, which anybody may have edited.
        name, role = pool["spec"]["serviceName"], pool["spec"]["role"]
        selector = f"{labels.SERVICE}={name},{labels.ROLE}={role}"
        service, children, pods = await asyncio.gather(
            self._controller(pool),
            self.reader.list_kinds(POOL_CHILDREN, key.namespace, selector),
            self.reader.list_objects(POD, key.namespace, selector),
        )
        uids = {pool["metadata"]["uid"]}
        children, foreign = await without_foreign(self.reader, children, uids)
        engines = self._engines_to_ask(pool, pods)
        reports = await self.reports.fetch(engines) if self.reports else ()
        names = (engine["metadata"]["name"] for engine in engines)
        adapters, adapters_again = await self._adapters(pool, pods)
        wires, wires_again = await self._wires(pool, pods)
        again = [
            adapters_again,
            wires_again,
            self.reports.again_seconds(engines) if self.reports else None,
        ]
        return PoolObserved(
            pool,
            service,
            children,
            pods,
            {
                name: report
                for name, report in zip(names, reports, strict=True)
                if report is not None
            },
            adapters,
            wires,
            sooner(*again),
            foreign,
        )

    async def _adapters(
        self, pool: Manifest, pods: tuple[Manifest, ...]
    ) -> tuple[dict[str, EngineAdapters], float | None]:
        """Adapters that ready engines report, and when to ask again."""
        digest = pool["spec"].get("adaptersDigest")
        if self.adapter_reports is None or digest is None:
            return {}, None
        engines = [pod for pod in pods if is_ready(pod)]
        reports = await self.adapter_reports.fetch(engines, digest)
        names = (engine["metadata"]["name"] for engine in engines)
        again = self.adapter_reports.again_seconds(engines, digest)
        return dict(zip(names, reports, strict=True)), again

    async def _wires(
        self, pool: Manifest, pods: tuple[Manifest, ...]
    ) -> tuple[dict[str, HandoverWire], float | None]:
        """Transports that ready decode engines report, and when to ask again."""
        if self.handover_reports is None or pool["spec"]["role"] != labels.Role.DECODE:
            return {}, None
        engines = [pod for pod in pods if is_ready(pod)]
        wires = await self.handover_reports.fetch(engines)
        names = (engine["metadata"]["name"] for engine in engines)
        again = self.handover_reports.again_seconds(engines)
        return {name: wire for name, wire in zip(names, wires, strict=True) if wire}, again

    def _engines_to_ask(self, pool: Manifest, pods: tuple[Manifest, ...]) -> list[Manifest]:
        """The engines to ask what they compute on."""
        if self.reports is None or "accelerator" not in pool["spec"]:
            return []
        return [pod for pod in pods if is_ready(pod)]

    async def _controller(self, pool: Manifest) -> Manifest | None:
        """The service that controls the pool, unless a new one has taken the name."""
        for owner in pool["metadata"].get("ownerReferences") or ():
            if owner.get("controller") and owner["kind"] == INFERENCE_SERVICE.kind:
                namespace = pool["metadata"]["namespace"]
                service = await self.reader.get(INFERENCE_SERVICE, namespace, owner["name"])
                if service is not None and service["metadata"]["uid"] == owner["uid"]:
                    return service
        return None
