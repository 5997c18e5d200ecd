"""The routers' Deployment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import ROUTER_ROLE

from sluice_operator.api.base import Resources
from sluice_operator.api.environment import API_KEYS_VOLUME, CONFIG_FOLDER
from sluice_operator.api.template import RouterTemplate
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest
from sluice_operator.manifests.accounts import router_account
from sluice_operator.manifests.config_map import ROUTER_FILE
from sluice_operator.manifests.deployments import deployment_with, restart_mark
from sluice_operator.manifests.handover import handover_mount, handover_volume
from sluice_operator.manifests.metadata import ROUTER, Owner, child_labels, selector_labels
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

KEYS_FOLDER: Final = f"{CONFIG_FOLDER}/api-keys"
"""Folder with the API keys in the routers' pods: a file for each tenant, which changes with the
Secret."""
PROGRESS_SECONDS: Final = 120
OWN_DISK: Final = "64Mi"
"""Disk for the container's logs, of which a kubelet keeps 50 MiB by default. The node decides that,
so there is no limit: a pod above a limit is evicted."""
ROUTER_RESOURCES: Final[Manifest] = {
    "requests": {"cpu": "50m", "memory": "128Mi", DISK: OWN_DISK},
    "limits": {"memory": "512Mi"},
}
"""Resources of a router where `router.resources` is left out."""


@dataclass(frozen=True)
class RouterDeployment:
    """Inputs of the routers' Deployment."""

    replicas: int
    image: str
    config_map: str
    resources: Resources | None
    template: RouterTemplate
    """Additions to the routers' pods, with inherited ones."""
    shutdown_seconds: int
    """Most seconds from SIGTERM to the end of the last stream."""
    inputs: str
    """Hash of everything in the InferenceService that concerns the routers."""
    handover_secret: str
    """Secret with the key that signs messages to the service's own engines."""
    keys_secret: str | None = None
    """Secret with the API keys of clients."""
    restarted_at: str | None = None


def router_deployment(owner: Owner, router: RouterDeployment) -> Manifest:
    """The Deployment of the routers. Its rolling update keeps every old pod until a new one is
    ready."""
    selector = selector_labels(owner.service, ROUTER_ROLE)
    head = owner.child(DEPLOYMENT, f"{owner.service}-{ROUTER}", ROUTER, ROUTER_ROLE)
    ours = child_labels(owner.service, ROUTER, ROUTER_ROLE)
    metadata: Manifest = {"labels": (router.template.labels or {}) | ours}
    if annotations := (router.template.annotations or {}) | restart_mark(router.restarted_at):
        metadata["annotations"] = annotations
    spec = {
        "revisionHistoryLimit": 2,
        "progressDeadlineSeconds": PROGRESS_SECONDS,
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "selector": {"matchLabels": selector},
        "template": {
            "metadata": metadata,
            "spec": _pod(owner, router, selector),
        },
    }
    return deployment_with(head | {"spec": spec}, router.replicas, router.inputs)


def _pod(owner: Owner, router: RouterDeployment, selector: dict[str, str]) -> Manifest:
    template = router.template
    return {
        "serviceAccountName": router_account(owner.service),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": template_security(template),
        "terminationGracePeriodSeconds": router.shutdown_seconds + KILL_SLACK_SECONDS,
        "topologySpreadConstraints": template_spread(template, selector),
        "containers": [
            _container(router),
            *map(template_container, template.sidecars or ()),
        ],
        "volumes": [
            config_volume(router.config_map),
            {"name": "tmp", "emptyDir": {}},
            handover_volume(router.handover_secret),
            *_keys_volumes(router.keys_secret),
            *(volume.to_json_dict() for volume in template.volumes or ()),
        ],
        **template_scheduling(template),
    }


def _container(router: RouterDeployment) -> Manifest:
    return {
        "name": ROUTER,
        "image": router.image,
        "args": ["--config", f"{CONFIG_FOLDER}/{ROUTER_FILE}"],
        "env": [*identity(), *(entry.to_json_dict() for entry in router.template.env or ())],
        "ports": [
            {"name": "http", "containerPort": ports.ROUTER_HTTP, "protocol": "TCP"},
            {"name": "metrics", "containerPort": ports.ROUTER_METRICS, "protocol": "TCP"},
        ],
        "startupProbe": http_probe("/health", period=1, failures=60, port="metrics"),
        "livenessProbe": http_probe("/health", period=10, failures=3, port="metrics"),
        "readinessProbe": http_probe("/ready", period=2, failures=2, port="metrics"),
        "resources": _resources(router),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            config_mount(),
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            handover_mount(),
            *_keys_mounts(router.keys_secret),
            *(mount.to_json_dict() for mount in router.template.volume_mounts or ()),
        ],
    }


def _resources(router: RouterDeployment) -> Manifest:
    if router.resources is None:
        return ROUTER_RESOURCES
    return add_disk_request(router.resources.to_json_dict(), OWN_DISK)


def _keys_volumes(secret: str | None) -> list[Manifest]:
    return [{"name": API_KEYS_VOLUME, "secret": {"secretName": secret}}] if secret else []


def _keys_mounts(secret: str | None) -> list[Manifest]:
    return [{"name": API_KEYS_VOLUME, "mountPath": KEYS_FOLDER, "readOnly": True}] if secret else []
