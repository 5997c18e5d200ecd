"""EnginePools, from an InferenceService's spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import RDMA_RESOURCE, KvTransfer

from sluice_operator.api.base import LocalRef
from sluice_operator.api.engine import STARTUP_SECONDS
from sluice_operator.api.model_uri import draft_claim, model_source
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.template import PodTemplate
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest
from sluice_operator.manifests.adapters import adapter_fields
from sluice_operator.manifests.handover import handover_secret_name
from sluice_operator.manifests.metadata import ENGINE, Owner, stamped, with_applied_fields

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
"""Kueue's label of the queue by which a pod is admitted."""
QUEUE_LABELS: Final = (QUEUE_LABEL, "kueue.x-k8s.io/priority-class")
"""Labels of a service that its engines' pods get, too. Routers get none, so they wait in no queue:
without routers, nothing is answered."""


def pool_spec(
    service: str,
    spec: InferenceServiceSpec,
    role: Role,
    replicas: int,
    image: str,
    config_map: str,
) -> EnginePoolSpec:
    """Spec of the pool of `role` by this release's defaults."""
    engine, pool, handover = spec.engine_of(role), spec.pool(role), spec.kv_transfer(role)
    return EnginePoolSpec(
        service_name=service,
        role=role,
        replicas=replicas,
        image=engine.image or image,
        config_ref=LocalRef(name=config_map),
        model_claim=model_source(spec.model).claim,
        **adapter_fields(service, spec.model, draft_claim(spec.draft_uri(role), spec.model)),
        drain_seconds=spec.drain_seconds(role),
        startup_seconds=engine.startup_seconds or STARTUP_SECONDS,
        handover_secret=handover_secret_name(service),
        bootstrap_port=handover.bootstrap_port if handover and role is Role.PREFILL else None,
        metrics_port=ports.ENGINE_METRICS,
        rdma_resource=_rdma_resource(handover),
        host_cache=spec.host_cache(role),
        # Also with a budget: engines that it holds back are not in the shares of the revisions.
        in_place=True if spec.replaces_in_place or spec.gpu_budget is not None else None,
        restarted_at=spec.restarted_at,
        accelerator=pool.accelerator,
        resources=pool.resources,
        template=pool.template,
    )


def field_paths(spec: InferenceServiceSpec, role: Role) -> dict[str, str]:
    """The fields of the EnginePool of a role → the fields of the InferenceService that set them."""

    def engine(key: str) -> str:
        return f"{spec.engine_place(role, key)}.{key}"

    files = [f"spec.{name}" for name in ("engine", "model")]
    if spec.prefill is not None and spec.prefill.engine is not None and role is Role.PREFILL:
        files.insert(0, "spec.prefill.engine")
    return {
        "spec.replicas": spec.replicas_path(role),
        "spec.image": engine("image"),
        "spec.configRef": " or ".join(files),
        "spec.modelClaim": "spec.model.uri",
        "spec.fetch": "spec.model",
        "spec.modelImage": "spec.model.uri",
        "spec.adaptersRef": "spec.model.adapters",
        "spec.adaptersDigest": "spec.model.adapters",
        "spec.adapterClaims": "spec.model.adapters",
        "spec.bootstrapPort": "spec.engine.kvTransfer.bootstrapPort",
        "spec.drainSeconds": engine("drainSeconds"),
        "spec.startupSeconds": engine("startupSeconds"),
        "spec.hostCache": engine("hostCache"),
        "spec.rdmaResource": "spec.engine.kvTransfer.resourceName",
        "spec.inPlace": "spec.rollout.strategy",
        "spec.podSurge": "spec.autoscaling.gpuBudget",
        "spec.restartedAt": "spec.rollout.restartedAt",
        "spec.accelerator": spec.place(role, "accelerator"),
        "spec.resources": spec.place(role, "resources"),
        "spec.template": spec.place(role, "template"),
    }


def queue_labels(labels: Mapping[str, str] | None) -> dict[str, str]:
    """The part of `labels` that is for Kueue; an empty label names no queue."""
    return {name: value for name in QUEUE_LABELS if (value := (labels or {}).get(name))}


def with_queue_labels(spec: EnginePoolSpec, queue: Mapping[str, str]) -> EnginePoolSpec:
    """`spec` with labels for Kueue on its pods; the pool's own labels override them."""
    if not queue:
        return spec
    template = spec.template or PodTemplate()
    labels = {**queue, **(template.labels or {})}
    return spec.model_copy(update={"template": template.model_copy(update={"labels": labels})})


def _rdma_resource(handover: KvTransfer | None) -> str | None:
    if handover is None or handover.protocol != "rdma":
        return None
    return handover.resource_name or RDMA_RESOURCE


def engine_pool(owner: Owner, spec: EnginePoolSpec, *, sets_replicas: bool = True) -> Manifest:
    """The EnginePool object.

    Its annotation is a hash of the applied fields, so that the pool's own plan can detect edits.
    `sets_replicas`: whether the number of engines is an applied field.
    """
    head = owner.child(ENGINE_POOL, pool_name(owner, spec.role), ENGINE, spec.role)
    fields = spec.to_json_dict()
    if not sets_replicas:
        fields.pop("replicas")
    return with_applied_fields(stamped(head | {"spec": fields}))


def pool_replicas(owner: Owner, role: Role, replicas: int | None) -> Manifest:
    """An EnginePool manifest with only its number of engines; None: without that number."""
    metadata = {"name": pool_name(owner, role), "namespace": owner.namespace}
    head = {"apiVersion": ENGINE_POOL.api_version, "kind": ENGINE_POOL.kind, "metadata": metadata}
    return head if replicas is None else head | {"spec": {"replicas": replicas}}


def pool_name(owner: Owner, role: Role) -> str:
    """The EnginePool's name."""
    return f"{owner.service}-{role}"
