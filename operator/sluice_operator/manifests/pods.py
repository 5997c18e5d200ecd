"""Common parts of router and engine pods: restricted security context, probes, identity."""

from __future__ import annotations

from typing import Final

from sluice_operator.api.base import Resources
from sluice_operator.api.environment import CONFIG_FOLDER
from sluice_operator.api.quantities import is_at_most
from sluice_operator.api.template import PodAdditions, Sidecar
from sluice_operator.kube.kinds import Manifest

POD_SECURITY: Final[Manifest] = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Manifest] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONFIG_VOLUME: Final = "config"
KILL_SLACK_SECONDS: Final = 10
"""Seconds between the end of draining and SIGKILL."""
DISK: Final = "ephemeral-storage"
_BRINGING: Final[Manifest] = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "2", "memory": "1Gi"},
}
"""Resources of containers that bring models, where `model.resources` says nothing. The limit of cpu
is there for namespaces with a quota of it, which the operator does not know. It slows no request,
because no request waits for these containers."""


def identity() -> list[Manifest]:
    """Who the pod is, from the Downward API."""
    fields = {
        "POD_IP": "status.podIP",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
    }
    return [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]


def http_probe(
    path: str, *, period: int, failures: int, timeout: int = 5, port: str = "http"
) -> Manifest:
    """A probe of the port with this name; times in seconds."""
    return {
        "httpGet": {"path": path, "port": port, "scheme": "HTTP"},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
        "successThreshold": 1,
    }


def add_disk_request(resources: Manifest, size: str) -> Manifest:
    """Adds a request of disk for logs and /tmp, unless the user has given a request or a limit of
    disk."""
    requests = resources.get("requests", {})
    if DISK in requests or DISK in resources.get("limits", {}):
        return resources
    return resources | {"requests": requests | {DISK: size}}


def bringing_resources(resources: Resources | None) -> Manifest:
    """The resources of a container that brings a model: `model.resources`, completed by defaults. A
    default that would contradict a given value adapts to it."""
    own = resources.to_json_dict() if resources else {}
    requests = _BRINGING["requests"] | own.get("requests", {})
    limits = _BRINGING["limits"] | own.get("limits", {})
    for name in requests.keys() & limits.keys():
        if not is_at_most(requests[name], limits[name]):
            if name in own.get("limits", {}):
                requests[name] = limits[name]
            else:
                limits[name] = requests[name]
    return {"requests": requests, "limits": limits}


def spread(selector: dict[str, str]) -> list[Manifest]:
    """A preference to put each pod on another node."""
    return [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": selector},
        }
    ]


def template_spread(template: PodAdditions, selector: dict[str, str]) -> list[Manifest]:
    """The spread of the pods that `selector` selects: as the template has it, else over nodes."""
    constraints = [
        constraint.to_json_dict() for constraint in template.topology_spread_constraints or ()
    ]
    of_these = {"labelSelector": {"matchLabels": selector}}
    return [constraint | of_these for constraint in constraints] or spread(selector)


def template_security(template: PodAdditions) -> Manifest:
    """The pods' security context, with the template's group."""
    group = {} if template.fs_group is None else {"fsGroup": template.fs_group}
    return POD_SECURITY | group


def template_scheduling(template: PodAdditions) -> Manifest:
    """The template's fields that are copied into the pod; absent ones stay absent."""
    fields = template.to_json_dict()
    names = (
        "affinity", "nodeSelector", "tolerations", "priorityClassName", "runtimeClassName",
        "imagePullSecrets", "schedulerName",
    )  # fmt: skip
    return {name: fields[name] for name in names if fields.get(name)}


def template_container(container: Sidecar) -> Manifest:
    """A container that a template adds."""
    return container.to_json_dict() | {"securityContext": CONTAINER_SECURITY}


def config_volume(config_map: str) -> Manifest:
    """The configuration file."""
    return {"name": CONFIG_VOLUME, "configMap": {"name": config_map}}


def mounted_config_maps(deployment: Manifest) -> set[str]:
    """The names of the ConfigMaps that a Deployment's pods mount."""
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}


def config_map_of_pod(spec: Manifest) -> str:
    """The name of the ConfigMap with a pod's configuration file; empty without one."""
    names = (
        volume["configMap"]["name"]
        for volume in spec.get("volumes") or ()
        if volume["name"] == CONFIG_VOLUME and "configMap" in volume
    )
    return next(names, "")


def mounted_secrets(deployment: Manifest) -> set[str]:
    """The names of the Secrets that a Deployment's pods mount."""
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}


def config_mount() -> Manifest:
    """The mount of the configuration file."""
    return {"name": CONFIG_VOLUME, "mountPath": CONFIG_FOLDER, "readOnly": True}
