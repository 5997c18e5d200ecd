"""EnginePool: what one pool of engines should be. Written by the operator, one per role.

It is the stable target of the scale subresource, while the Deployments below it come and go with
each revision.
"""

from __future__ import annotations

from typing import ClassVar, Final

from pydantic import Field
from sluice_contract.cluster.labels import Role
from sluice_contract.cluster.ports import ENGINE_METRICS
from sluice_contract.config.host_cache import HostCacheSettings

from sluice_operator.api.adapters import MAX_CLAIMS
from sluice_operator.api.base import (
    ATOMIC,
    CRD_DEFAULT,
    ApiModel,
    DnsLabel,
    DnsName,
    Image,
    LocalRef,
    ResourceName,
    Resources,
    Rule,
    SecretKeyRef,
    list_map,
)
from sluice_operator.api.pools import AcceleratorSpec
from sluice_operator.api.template import ENGINE_CONTAINER, PodTemplate
from sluice_operator.kube.kinds import Manifest


def _immutable(field: str) -> Rule:
    """The rule that a field never changes, which only the API server checks. The selector of the
    pool's Deployments is made of these fields, and cannot be changed either."""
    return Rule(f"self.{field} == oldSelf.{field}", lambda _: True, "no change", field)


METRICS: Final = "metrics"
"""Name of the port of an engine's metrics."""
BOOTSTRAP: Final = "bootstrap"
"""Name of the port at which prefill engines are asked for the KV cache."""


class RevisionShare(ApiModel):
    """How many engines one revision of a pool should have."""

    name: DnsLabel = Field(description="Name of the revision.")
    replicas: int = Field(ge=0, le=1000, description="Engines of the revision.")


class HubNetwork(ApiModel):
    """How a download gets out of the cluster."""

    http_proxy: str | None = Field(
        default=None, max_length=512, description="Proxy of requests to http addresses."
    )
    https_proxy: str | None = Field(
        default=None, max_length=512, description="Proxy of requests to https addresses."
    )
    no_proxy: str | None = Field(
        default=None, max_length=4096, description="Hosts that are asked without a proxy."
    )
    ca_config_map: DnsName | None = Field(
        default=None,
        description="ConfigMap with certificates of authorities that are trusted in addition "
        "to the public ones.",
    )

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.to_json_dict().items())


class ModelFetch(ApiModel):
    """What each engine downloads before it starts."""

    image: Image = Field(description="Image of the fetcher.")
    endpoint: str = Field(max_length=512, description="Hub, or a mirror of one.")
    uri: str = Field(max_length=1024, description="Repository, as hf://org/name.")
    commit: str = Field(max_length=64, description="Commit to download.")
    token_secret_ref: SecretKeyRef | None = Field(
        default=None, description="Token, mounted as a file into the fetching container alone."
    )
    network: HubNetwork | None = Field(
        default=None, description="Proxies and certificates of the download."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of the fetching container."
    )


class ModelImage(ApiModel):
    """The image that a model is in."""

    reference: Image = Field(description="The model's image.")
    copier: Image = Field(description="Image of what copies or links its files.")
    mounted: bool | None = Field(
        default=None, description="True: mounted as a volume. Left out: its files are copied."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of each container that copies or links."
    )


class EnginePoolSpec(ApiModel):
    """What one pool of engines should be."""

    service_name: DnsName = Field(description="InferenceService that the pool belongs to.")
    role: Role = Field(strict=False, description="What the engines do: mixed, prefill or decode.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=1000,
        json_schema_extra=CRD_DEFAULT,
        description="Number of engines.",
    )
    revisions: list[RevisionShare] | None = Field(
        default=None,
        max_length=32,
        json_schema_extra=list_map("name"),
        description="Engines by revision, as the roll-out of the whole service is planned. A "
        "revision that is not listed is removed; without a list, none is.",
    )
    image: Image = Field(description="Engine image.")
    config_ref: LocalRef = Field(
        description="ConfigMap with engine.json. Its name carries the hash of its content."
    )
    model_claim: DnsName | None = Field(
        default=None,
        description="PersistentVolumeClaim with the model, mounted read-only at /mnt/model.",
    )
    fetch: ModelFetch | None = Field(
        default=None, description="Download of the model by each engine, to /mnt/model."
    )
    model_image: ModelImage | None = Field(
        default=None, description="Image that has the model, whose files appear at /mnt/model."
    )
    drain_seconds: int = Field(
        ge=0, le=86_400, description="How long streams may finish after SIGTERM, in seconds."
    )
    startup_seconds: int = Field(
        ge=10,
        le=86_400,
        description="How long an engine that loads its model may make no progress, in seconds.",
    )
    adapters_ref: LocalRef | None = Field(
        default=None,
        description="ConfigMap with the adapters, mounted at /etc/sluice/adapters; engines follow "
        "its changes.",
    )
    adapters_digest: str | None = Field(
        default=None,
        max_length=64,
        description="Hash of the adapters as they should be, which engines report.",
    )
    adapter_claims: list[DnsName] | None = Field(
        default=None,
        max_length=MAX_CLAIMS,
        json_schema_extra=ATOMIC,
        description="PersistentVolumeClaims with adapters or the draft model, mounted read-only "
        "below /mnt/adapters.",
    )
    handover_secret: DnsName = Field(
        description="Secret with the key by which router and engines of a service authenticate "
        "each other, mounted read-only at /etc/sluice/handover.",
    )
    bootstrap_port: int | None = Field(
        default=None,
        ge=1,
        le=65535,
        description="Port at which decode engines ask for the KV cache; only in a prefill pool.",
    )
    metrics_port: int = Field(ge=1, le=65535, description="Port of the engines' metrics.")
    rdma_resource: ResourceName | None = Field(
        default=None,
        description="Resource by which an engine gets an RDMA device. It then has the capability "
        "IPC_LOCK, which the Pod Security Standard restricted forbids.",
    )
    in_place: bool | None = Field(
        default=None,
        description="True: an engine ends before another takes its place, also where only its pod "
        "changes, unless podSurge allows more.",
    )
    pod_surge: int | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Additional engines while only pods are replaced, in spite of inPlace: the "
        "GPU budget has room for them.",
    )
    restarted_at: str | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Annotation of the pods: another text replaces them, one after the other.",
    )
    host_cache: HostCacheSettings | None = Field(
        default=None, description="Memory and disk of the engine's host cache."
    )
    accelerator: AcceleratorSpec | None = Field(
        default=None, description="GPUs of one engine; without it the engine runs on CPUs."
    )
    resources: Resources | None = Field(
        default=None, description="CPU and memory of one engine's container."
    )
    template: PodTemplate | None = Field(default=None, description="Additions to the pool's pods.")

    RULES: ClassVar = (_immutable("serviceName"), _immutable("role"))


def metrics_port(pod: Manifest) -> int:
    """The port of the metrics of an engine pod, or of a Deployment's template."""
    return port_named(pod, METRICS) or ENGINE_METRICS


def port_named(pod: Manifest, name: str) -> int | None:
    """The port of that name that the engine of a pod, or of a template, declares."""
    containers = pod["spec"].get("containers") or ()
    engine_ports = (c.get("ports") or () for c in containers if c.get("name") == ENGINE_CONTAINER)
    declared = (port for ports in engine_ports for port in ports)
    return next((port["containerPort"] for port in declared if port.get("name") == name), None)
