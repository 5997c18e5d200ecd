"""Reads one InferenceService and all that concerns it, from the informer's store or, through
another reader, from the API server.

Reads only; decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.wire.fetch_progress import FetchProgress
from sluice_contract.wire.load import Ledger

from sluice_operator.accelerators.node_requirements import is_nvidia
from sluice_operator.api.conditions import Check
from sluice_operator.api.pools import AcceleratorSpec
from sluice_operator.api.validate import with_stored_spec
from sluice_operator.clock import sooner
from sluice_operator.conditions.pods import is_finished, is_ready
from sluice_operator.informer.keys import Key
from sluice_operator.informer.nodes import Nodes
from sluice_operator.informer.reader import Reader, without_foreign
from sluice_operator.kube.kinds import (
    ENGINE_POOL,
    INFERENCE_SERVICE,
    JOB,
    POD,
    SERVICE_CHILDREN,
    Kind,
    Manifest,
    controller_uid,
    is_being_deleted,
    of_kind,
)
from sluice_operator.manifests.hub import PUBLIC_HUB, HubAccess
from sluice_operator.manifests.network import OPERATOR_NAMESPACE
from sluice_operator.probes.downloads import DownloadProgress
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.network_isolation import NetworkIsolation
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.probes.refused_pods import RefusedPods
from sluice_operator.probes.router_ledgers import RouterLedgers
from sluice_operator.scaled import NO_LOOKS, CanaryLooks, Look
from sluice_operator.service.names import (
    Name,
    child_names,
    config_maps_in_use,
    fetches,
    has_model_image,
)
from sluice_operator.service.revisions.revision import revisions_of

API_SERVER_PORTS: Final = (443, 6443)
"""Where an API server usually listens; other ports are a setting of the operator."""


Children = tuple[Manifest, ...]
"""The children of one service, with apiVersion and kind: what `ServiceObserved.children` holds."""


@dataclass(frozen=True)
class Images:
    """Container images used where the spec names none."""

    engine: str
    router: str
    gpu_engine: str = ""
    """Engine image of pools that ask for NVIDIA's GPUs; "" where none is configured."""
    fetch: str = ""
    """Image of the fetcher, which brings models into the cluster; "" where none is configured."""

    def engine_of(self, accelerator: AcceleratorSpec | None) -> str:
        """The engine image of a pool; "" where there is none for its accelerator."""
        if accelerator is None:
            return self.engine
        return self.gpu_engine if is_nvidia(accelerator) else ""


@dataclass(frozen=True)
class Installation:
    """The operator's settings about the cluster and about itself."""

    api_server_ports: tuple[int, ...] = API_SERVER_PORTS
    """Ports at which routers may reach the API server."""
    operator_namespace: str = OPERATOR_NAMESPACE
    """Namespace of the operator, from which it may read the routers' load."""
    runbook_url_base: str = ""
    """Base URL of the runbooks that alerts link to."""
    hub: HubAccess = PUBLIC_HUB
    """Hub from which `hf://` models are downloaded, and how it is reached."""


@dataclass(frozen=True)
class ServiceObserved:
    """One InferenceService and all that its plan and its status depend on."""

    service: Manifest
    """The InferenceService as read, status included."""
    images: Images
    children: Children = ()
    """Every object of the kinds in `SERVICE_CHILDREN` and `optional_kinds` with the label
    `serving.sluice.dev/service: NAME` in the namespace, unless another living controller has it.
    The Deployments of EnginePools are included. Children of the service that lost the label are
    included too. Each has apiVersion and kind."""
    pods: tuple[Manifest, ...] = ()
    """The router's pods."""
    engines: tuple[Manifest, ...] = ()
    """Engine pods with the service's label, of every role and revision; only of a service with a
    GPU budget, which they count against, or with a canary, which they are judged by."""
    fetchers: tuple[Manifest, ...] = ()
    """Pods of the Jobs that bring the model; only of a service whose model is downloaded."""
    progress: FetchProgress | None = None
    """Progress of the download, if one of the pods reports it."""
    refused_jobs: Mapping[str, str] = field(default_factory=dict)
    """Why the API server makes no pod of a Job of the service, by the Job's uid."""
    nodes: tuple[Manifest, ...] | None = None
    """None when the operator may not read nodes."""
    name_conflicts: tuple[Manifest, ...] = ()
    """Objects that have the name of a child and that this service does not control. The plan then
    refuses the spec, instead of taking them over."""
    optional_kinds: tuple[Kind, ...] = ()
    """Kinds of `OPTIONAL_CHILDREN` that the cluster has."""
    installation: Installation = Installation()
    accepts_image_volumes: bool = False
    """Whether pods may mount images; only determined for a service whose model is an image."""
    isolation: Check | None = None
    """Whether NetworkPolicies are enforced; None: not tested."""
    ledger: Ledger | None = None
    """Ledger of the service's requests; None: not known."""
    looks: tuple[Look, ...] = ()
    """Last answers of the routers about the service's canary, the newest last."""
    foreign: tuple[Manifest, ...] = ()
    """Objects with the service's label that another living controller has: no children."""
    look_again_seconds: float | None = None
    """Seconds until the service is observed again without an event; None: events are enough."""


@dataclass(frozen=True)
class ServiceObserver:
    """Observes InferenceServices through one reader."""

    reader: Reader
    images: Images
    nodes: Nodes
    optional_kinds: OptionalKinds
    image_volumes: ImageVolumes
    installation: Installation = Installation()
    progress: DownloadProgress | None = None
    """None: no download is asked how far it is."""
    isolation: NetworkIsolation | None = None
    """None: no engine is connected to."""
    ledgers: RouterLedgers | None = None
    """None: no router is asked."""
    refused_pods: RefusedPods | None = None
    """None: of no Job is asked why it has no pod."""
    looks: CanaryLooks = NO_LOOKS

    def certain(self) -> ServiceObserver:
        """An observer that reads the kinds in `DECISIVE` from the API server."""
        return replace(self, reader=self.reader.certain())

    async def observe(self, key: Key) -> ServiceObserved | None:
        """All about one InferenceService; None when it is gone or being deleted."""
        service = await self.reader.get(INFERENCE_SERVICE, key.namespace, key.name)
        if service is None or is_being_deleted(service):
            return None
        service = with_stored_spec(service)
        selector = f"{labels.SERVICE}={key.name}"
        routers = f"{selector},{labels.ROLE}={labels.ROUTER_ROLE}"
        optional = await self.optional_kinds.served()
        children, pods, nodes = await asyncio.gather(
            self.reader.list_kinds((*SERVICE_CHILDREN, *optional), key.namespace, selector),
            self.reader.list_objects(POD, key.namespace, routers),
            self.nodes.list(),
        )
        children, foreign = await self._parted(service, children)
        last = next(revisions_of(children).carried_out, None)
        applied = service | {"spec": last.spec if last else {}}
        versions = (service, applied)
        engines, fetchers = await asyncio.gather(
            self._engines(versions, selector), self._fetchers(versions, selector)
        )
        mounts = any(map(has_model_image, versions)) and await self.image_volumes.accepted()
        progress = await self.progress.first_of(fetchers) if self.progress else None
        names = child_names(service, optional, with_ca=bool(self.installation.hub.certificates))
        children, conflicts = await self._unlabelled(service, children, names)
        # A lost EnginePool says which ConfigMaps are in use.
        in_use = config_maps_in_use(children)
        children, _ = await self._unlabelled(service, children, in_use)
        isolation = await self._isolation(key, children, selector)
        routers_ready = tuple(filter(is_ready, pods))
        jobs = tuple(of_kind(children, JOB))
        return ServiceObserved(
            service,
            self.images,
            children,
            pods,
            engines,
            fetchers,
            progress,
            await self._refused_jobs(jobs, fetchers),
            nodes,
            conflicts,
            optional_kinds=optional,
            installation=self.installation,
            accepts_image_volumes=mounts,
            isolation=isolation,
            ledger=await self.ledgers.total(routers_ready) if self.ledgers else None,
            looks=self.looks.last_looks(key),
            foreign=foreign,
            look_again_seconds=self._look_again_seconds(key, routers_ready, jobs),
        )

    async def _parted(
        self, service: Manifest, labelled: Children
    ) -> tuple[Children, tuple[Manifest, ...]]:
        """The `labelled` objects that are children of the service or its pools, and the others."""
        uids = {service["metadata"]["uid"]}
        pools, _ = await without_foreign(self.reader, tuple(of_kind(labelled, ENGINE_POOL)), uids)
        uids |= {pool["metadata"]["uid"] for pool in pools}
        return await without_foreign(self.reader, labelled, uids)

    async def _refused_jobs(
        self, jobs: tuple[Manifest, ...], pods: tuple[Manifest, ...]
    ) -> dict[str, str]:
        if self.refused_pods is None:
            return {}
        going_on = (pod for pod in pods if not is_finished(pod))
        return await self.refused_pods.refusals(jobs, going_on)

    def _look_again_seconds(
        self, key: Key, routers: tuple[Manifest, ...], jobs: tuple[Manifest, ...]
    ) -> float | None:
        isolation = self.isolation.again_seconds(key) if self.isolation else None
        ledgers = self.ledgers.again_seconds(routers) if self.ledgers else None
        refused = self.refused_pods.again_seconds(jobs) if self.refused_pods else None
        return sooner(isolation, ledgers, refused)

    async def _isolation(self, key: Key, children: Children, selector: str) -> Check | None:
        """Check of network isolation for engines of every role. Reads their pods only if one has to
        be asked."""
        if self.isolation is None:
            return None
        engines: tuple[Manifest, ...] = ()
        if self.isolation.is_due(key):
            pods = await self._engine_pods(key.namespace, selector)
            engines = tuple(pod for pod in pods if is_ready(pod))
        return self.isolation.check(key, engines)

    async def _engines(self, versions: tuple[Manifest, ...], selector: str) -> tuple[Manifest, ...]:
        if not any(_concerns_engines(version["spec"]) for version in versions):
            return ()
        return await self._engine_pods(versions[0]["metadata"]["namespace"], selector)

    async def _engine_pods(self, namespace: str, selector: str) -> tuple[Manifest, ...]:
        roles = set(labels.Role)
        pods = await self.reader.list_objects(POD, namespace, selector)
        return tuple(pod for pod in pods if pod["metadata"]["labels"].get(labels.ROLE) in roles)

    async def _fetchers(
        self, versions: tuple[Manifest, ...], selector: str
    ) -> tuple[Manifest, ...]:
        if not any(map(fetches, versions)):
            return ()
        of_jobs = f"{selector},{labels.ROLE}={labels.FETCH_ROLE}"
        namespace = versions[0]["metadata"]["namespace"]
        return await self.reader.list_objects(POD, namespace, of_jobs)

    async def _unlabelled(
        self, service: Manifest, children: tuple[Manifest, ...], names: Iterable[Name]
    ) -> tuple[tuple[Manifest, ...], tuple[Manifest, ...]]:
        """`children` plus objects under `names` that `service` controls without a label, and the
        objects under `names` that it does not control."""
        labelled = {(child["kind"], child["metadata"]["name"]) for child in children}
        lacking = sorted(
            (child for child in names if (child[0].kind, child[1]) not in labelled),
            key=lambda child: (child[0].plural, child[1]),
        )
        namespace, uid = service["metadata"]["namespace"], service["metadata"]["uid"]
        gets = (self.reader.get(kind, namespace, name) for kind, name in lacking)
        objects = [item for item in await asyncio.gather(*gets) if item is not None]
        ours = (item for item in objects if controller_uid(item) == uid)
        theirs = (item for item in objects if controller_uid(item) != uid)
        return (*children, *ours), tuple(theirs)


def _concerns_engines(spec: Manifest) -> bool:
    """Whether the plan of a spec depends on single engines."""
    has_budget = "gpuBudget" in (spec.get("autoscaling") or {})
    return has_budget or bool((spec.get("rollout") or {}).get("canary") is not None)
