"""The engines' Deployment: one per pool and revision, from an EnginePool's spec."""

from __future__ import annotations

import math
from typing import Final

from sluice_contract.cluster import labels, ports
from sluice_contract.config.host_cache import FOLDER, bytes_of

from sluice_operator.accelerators.node_requirements import (
    node_selector,
    resource_name,
    tolerations,
)
from sluice_operator.api.environment import CONFIG_FOLDER, HOST_CACHE_VOLUME
from sluice_operator.api.model_uri import CLAIM_MOUNT
from sluice_operator.api.pool import BOOTSTRAP, METRICS, EnginePoolSpec
from sluice_operator.api.pools import gpu_count
from sluice_operator.api.template import PodTemplate
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest
from sluice_operator.manifests.accounts import engine_account
from sluice_operator.manifests.adapters import adapter_mounts, adapter_volumes
from sluice_operator.manifests.config_map import ENGINE_FILE
from sluice_operator.manifests.deployments import deployment_with, restart_mark
from sluice_operator.manifests.fetching import MODEL_VOLUME, init_container, token_volumes
from sluice_operator.manifests.handover import handover_mount, handover_volume
from sluice_operator.manifests.hub import network_volumes
from sluice_operator.manifests.metadata import (
    ENGINE,
    Owner,
    child_labels,
    digest,
    selector_labels,
)
from sluice_operator.manifests.model_image import (
    image_init_containers,
    image_mount,
    image_volumes,
)
from sluice_operator.manifests.pods import (
    CONTAINER_SECURITY,
    DISK,
    KILL_SLACK_SECONDS,
    add_disk_request,
    config_mount,
    config_volume,
    http_probe,
    identity,
    template_container,
    template_scheduling,
    template_security,
    template_spread,
)

STARTUP_PERIOD_SECONDS: Final = 2
MIN_READY_SECONDS: Final = 10
"""How long an engine has to be ready before a roll-out counts on it."""
PROGRESS_SLACK_SECONDS: Final = 120
"""Seconds for scheduling and pulling the image, beyond the time the engine may take to start."""
CLAIM: Final = "accelerator"
"""Name within a pod of the ResourceClaim that has its devices."""
FETCH_SECONDS: Final = 6 * 3600
"""Most seconds for bringing the model, if each pod brings its own."""

OWN_DISK: Final = "128Mi"
"""Disk for the container's logs, of which a kubelet keeps 50 MiB by default, for sockets, and for
what libraries for GPUs keep in /tmp. It does not cover a model that each pod downloads or copies,
whose size is not known here. There is no limit: nothing bounds these, and a pod above a limit is
evicted."""

PROCESS_FIELDS: Final = (
    "image", "configRef", "modelClaim", "fetch", "modelImage", "handoverSecret", "bootstrapPort",
    "metricsPort", "drainSeconds", "accelerator", "resources", "rdmaResource", "adaptersRef",
    "adapterClaims", "hostCache",
)  # fmt: skip
PROCESS_TEMPLATE_FIELDS: Final = (
    "env", "volumes", "volumeMounts", "sidecars", "initContainers", "runtimeClassName", "fsGroup",
)  # fmt: skip


def revision(spec: EnginePoolSpec) -> str:
    """Hash of everything that changes the engine process. The ConfigMap's name stands for its
    content. Placement and the number of pods do not count. Neither do unset fields, so that a
    release may add fields."""
    full = spec.to_json_dict()
    template = full.get("template") or {}
    # An empty `accelerator` is a GPU.
    relevant = {
        name: full[name] for name in PROCESS_FIELDS if full.get(name) or full.get(name) == {}
    }
    names = (name for name in PROCESS_TEMPLATE_FIELDS if template.get(name))
    return digest(relevant | {name: template[name] for name in names})


def revision_of(item: Manifest) -> str:
    """The revision that a Deployment or an engine pod belongs to."""
    return str((item["metadata"].get("labels") or {}).get(labels.REVISION, ""))


def engine_deployment(owner: Owner, spec: EnginePoolSpec) -> Manifest:
    """The Deployment of the revision that `spec` asks for."""
    name = revision(spec)
    mark = {labels.REVISION: name}
    selector = selector_labels(spec.service_name, spec.role) | mark
    head = owner.child(DEPLOYMENT, f"{owner.name}-{name}", ENGINE, spec.role)
    head["metadata"]["labels"] |= mark
    template = spec.template or PodTemplate()
    ours = child_labels(spec.service_name, ENGINE, spec.role) | mark
    if spec.fetch is not None:
        ours |= {labels.FETCHES: "true"}
    pod_metadata: Manifest = {"labels": (template.labels or {}) | ours}
    if annotations := (template.annotations or {}) | restart_mark(spec.restarted_at):
        pod_metadata["annotations"] = annotations
    deployment = {
        "revisionHistoryLimit": 2,
        "minReadySeconds": MIN_READY_SECONDS,
        "progressDeadlineSeconds": _progress_deadline_seconds(spec),
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": _room(spec),
        },
        "selector": {"matchLabels": selector},
        "template": {"metadata": pod_metadata, "spec": _pod(spec, template, selector)},
    }
    return deployment_with(head | {"spec": deployment}, spec.replicas, _inputs(spec))


def _progress_deadline_seconds(spec: EnginePoolSpec) -> int:
    fetching = FETCH_SECONDS if spec.fetch or spec.model_image else 0
    return spec.startup_seconds + PROGRESS_SLACK_SECONDS + fetching


def _room(spec: EnginePoolSpec) -> dict[str, int]:
    """How pods of one revision replace each other."""
    beside = spec.pod_surge or 0 if spec.in_place else 1
    return {"maxSurge": beside, "maxUnavailable": 1 - beside}


def _inputs(spec: EnginePoolSpec) -> str:
    return digest(_decided_by_user(spec))


def _decided_by_user(spec: EnginePoolSpec) -> Manifest:
    """Fields of `spec` that the user decides and that change pods. Numbers, and how pods replace
    each other, change none."""
    numbers = ("replicas", "revisions", "podSurge", "inPlace", "restartedAt", "adaptersDigest")
    return {key: value for key, value in spec.to_json_dict().items() if key not in numbers}


def _pod(spec: EnginePoolSpec, template: PodTemplate, selector: dict[str, str]) -> Manifest:
    sidecars = map(template_container, template.sidecars or ())
    first = [*_bringing(spec), *map(template_container, template.init_containers or ())]
    pod: Manifest = {
        "serviceAccountName": engine_account(spec.service_name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": template_security(template),
        "terminationGracePeriodSeconds": spec.drain_seconds + KILL_SLACK_SECONDS,
        "topologySpreadConstraints": template_spread(template, selector),
        **({"initContainers": first} if first else {}),
        "containers": [_container(spec, template), *sidecars],
        "volumes": _volumes(spec, template),
    }
    if (claim := _claim_template(spec)) is not None:
        pod["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": claim}]
    return pod | _scheduling(spec, template)


def _bringing(spec: EnginePoolSpec) -> list[Manifest]:
    """Init containers that bring the model into the pod."""
    if spec.fetch is not None:
        return [init_container(spec.fetch)]
    return image_init_containers(spec.model_image) if spec.model_image else []


def _revision_variable() -> Manifest:
    """The pod's own label, which the engine shows in its load reports."""
    path = f"metadata.labels['{labels.REVISION}']"
    return {
        "name": labels.REVISION_VARIABLE,
        "valueFrom": {"fieldRef": {"fieldPath": path}},
    }


def _scheduling(spec: EnginePoolSpec, template: PodTemplate) -> Manifest:
    scheduling = template_scheduling(template)
    if accepted := tolerations(spec.accelerator):
        scheduling["tolerations"] = [*scheduling.get("tolerations", ()), *accepted]
    selector = node_selector(spec.accelerator, template.node_selector)
    return scheduling | ({"nodeSelector": selector} if selector else {})


def _container(spec: EnginePoolSpec, template: PodTemplate) -> Manifest:
    startup_failures = math.ceil(spec.startup_seconds / STARTUP_PERIOD_SECONDS)
    # Succeeds while the model loads and progress is made: a fixed time would end slow loads, too.
    alive = f"/health?loading_seconds={spec.startup_seconds}"
    return {
        "name": ENGINE,
        "image": spec.image,
        "args": ["--config", f"{CONFIG_FOLDER}/{ENGINE_FILE}"],
        "env": [
            *identity(),
            _revision_variable(),
            *(entry.to_json_dict() for entry in template.env or ()),
        ],
        "ports": _ports(spec),
        "startupProbe": http_probe(alive, period=STARTUP_PERIOD_SECONDS, failures=startup_failures),
        "livenessProbe": http_probe(alive, period=10, failures=3),
        "readinessProbe": http_probe("/ready", period=2, failures=2),
        "resources": _resources(spec),
        "securityContext": _security(spec),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(spec, template),
    }


def _ports(spec: EnginePoolSpec) -> list[Manifest]:
    numbers = {"http": ports.ENGINE_HTTP, METRICS: spec.metrics_port}
    if spec.bootstrap_port is not None:
        numbers[BOOTSTRAP] = spec.bootstrap_port
    return [
        {"name": name, "containerPort": number, "protocol": "TCP"}
        for name, number in numbers.items()
    ]


def _resources(spec: EnginePoolSpec) -> Manifest:
    given = spec.resources.to_json_dict() if spec.resources else {}
    resources = add_disk_request(given, OWN_DISK)
    if (cache := spec.host_cache) is not None:
        resources = _with_more(resources, "memory", bytes_of(cache.memory))
        if cache.disk is not None:
            resources = _with_more(resources, DISK, bytes_of(cache.disk.size))
    devices: dict[str, int] = {}
    if _claim_template(spec) is not None:
        resources = resources | {"claims": [{"name": CLAIM}]}
    elif spec.accelerator is not None and (gpus := gpu_count(spec.accelerator)):
        devices[resource_name(spec.accelerator)] = gpus
    if spec.rdma_resource is not None:
        devices[spec.rdma_resource] = 1
    if not devices:
        return resources
    return resources | {"limits": devices | resources.get("limits", {})}


def _claim_template(spec: EnginePoolSpec) -> str | None:
    """The ResourceClaimTemplate of the devices; None where they are an extended resource."""
    return spec.accelerator.claim_template if spec.accelerator else None


def _with_more(resources: Manifest, name: str, added_bytes: int) -> Manifest:
    """Adds `added_bytes` of `name` to what the user has given the container; without a limit, only
    to the request."""
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    if name in limits:
        limits = limits | {name: bytes_of(limits[name]) + added_bytes}
    if name in requests or name not in limits:
        requests = requests | {name: bytes_of(requests.get(name, 0)) + added_bytes}
    given = {"requests": requests, "limits": limits}
    return resources | {name: amounts for name, amounts in given.items() if amounts}


def _host_cache_volumes(spec: EnginePoolSpec) -> list[Manifest]:
    if spec.host_cache is None or spec.host_cache.disk is None:
        return []
    return [{"name": HOST_CACHE_VOLUME, "emptyDir": {"sizeLimit": spec.host_cache.disk.size}}]


def _host_cache_mounts(spec: EnginePoolSpec) -> list[Manifest]:
    return [{"name": v["name"], "mountPath": FOLDER} for v in _host_cache_volumes(spec)]


def _security(spec: EnginePoolSpec) -> Manifest:
    """The restricted security context; RDMA also needs locked memory."""
    if spec.rdma_resource is None:
        return CONTAINER_SECURITY
    return CONTAINER_SECURITY | {"capabilities": {"drop": ["ALL"], "add": ["IPC_LOCK"]}}


def _volumes(spec: EnginePoolSpec, template: PodTemplate) -> list[Manifest]:
    return [
        config_volume(spec.config_ref.name),
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        *_model_volumes(spec),
        *adapter_volumes(spec),
        handover_volume(spec.handover_secret),
        *_host_cache_volumes(spec),
        *(volume.to_json_dict() for volume in template.volumes or ()),
    ]


def _model_volumes(spec: EnginePoolSpec) -> list[Manifest]:
    if spec.fetch is not None:
        own = {"name": MODEL_VOLUME, "emptyDir": {}}
        fetch = spec.fetch
        return [own, *token_volumes(fetch.token_secret_ref), *network_volumes(fetch.network)]
    if spec.model_image is not None:
        return image_volumes(spec.model_image)
    if spec.model_claim is None:
        return []
    return [{"name": MODEL_VOLUME, "persistentVolumeClaim": {"claimName": spec.model_claim}}]


def _mounts(spec: EnginePoolSpec, template: PodTemplate) -> list[Manifest]:
    model = {"name": MODEL_VOLUME, "mountPath": CLAIM_MOUNT, "readOnly": True}
    return [
        config_mount(),
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        *([model] if spec.model_claim or spec.fetch or spec.model_image else []),
        *([image_mount()] if spec.model_image and spec.model_image.mounted else []),
        *adapter_mounts(spec),
        handover_mount(),
        *_host_cache_mounts(spec),
        *(mount.to_json_dict() for mount in template.volume_mounts or ()),
    ]
