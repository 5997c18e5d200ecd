"""Manifests that download a model: the container that does, its Job, volume, account and
NetworkPolicy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster import labels, ports
from sluice_contract.cluster.labels import FETCH_ROLE
from sluice_contract.cluster.termination import EXIT_REFUSED

from sluice_operator.api.base import Resources, SecretKeyRef
from sluice_operator.api.engine import CacheSpec
from sluice_operator.api.model_uri import CLAIM_MOUNT
from sluice_operator.api.pool import HubNetwork, ModelFetch
from sluice_operator.api.template import FETCH_CONTAINER
from sluice_operator.kube.kinds import (
    JOB,
    NETWORK_POLICY,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE_ACCOUNT,
    Manifest,
)
from sluice_operator.manifests.hub import (
    network_arguments,
    network_mounts,
    network_variables,
    network_volumes,
)
from sluice_operator.manifests.metadata import Owner, child_labels, digest
from sluice_operator.manifests.network import DNS, operator_pods, policy_port
from sluice_operator.manifests.placement import AS_IT_COMES, Placement
from sluice_operator.manifests.pods import CONTAINER_SECURITY, POD_SECURITY, bringing_resources

FETCH: Final = FETCH_ROLE
"""Component label of all objects made here."""
MODEL_VOLUME: Final = "model"
GROUP_ID: Final = 65532
"""Group of the fetcher image's user; a claim's files belong to it."""
RETRIES: Final = 30
"""Retries of a Job whose pods fail for transient reasons: about two and a half hours."""
TOKEN_VOLUME: Final = "hub-token"  # noqa: S105
TOKEN_FOLDER: Final = "/etc/sluice/hub"  # noqa: S105
TOKEN_FILE: Final = f"{TOKEN_FOLDER}/token"
IDENTITY: Final = {
    "s3": (("169.254.170.23",), (80,)),
    "gs": (("169.254.169.254", "169.254.169.252"), (80, 988)),
}
"""Addresses and ports of agents on a node, EKS's and GKE's, that give a pod its ServiceAccount's
identity."""
AZURE_IDENTITY: Final = {"azure.workload.identity/use": "true"}
"""Label of pods that Azure gives the identity of their ServiceAccount."""


@dataclass(frozen=True)
class FetchTask:
    """Inputs of one fetching Job."""

    name: str
    """`resolve`, `fetch` or `adapter`."""
    image: str
    arguments: tuple[str, ...]
    token: SecretKeyRef | None
    refresh: str | None
    """Value of `spec.model.refresh`; another value makes another Job."""
    claim: str | None = None
    """Volume that is written to."""
    network: HubNetwork | None = None
    placement: Placement = AS_IT_COMES
    identity: str | None = None
    """Scheme of a bucket that is reached by the ServiceAccount's identity."""
    resources: Resources | None = None


def resolve_arguments(endpoint: str, uri: str, revision: str) -> tuple[str, ...]:
    """Arguments of a container that resolves a revision."""
    return (*_from(endpoint, uri, revision), "--resolve-only")


def fetch_arguments(endpoint: str, uri: str, commit: str) -> tuple[str, ...]:
    """Arguments of a container that downloads a commit to `CLAIM_MOUNT`."""
    return (*_from(endpoint, uri, commit), "--cache", CLAIM_MOUNT)


def _from(endpoint: str, uri: str, revision: str) -> tuple[str, ...]:
    """`endpoint`: empty for the provider's own."""
    address = ("--endpoint", endpoint) if endpoint else ()
    return ("--uri", uri, "--revision", revision, *address)


def adapter_arguments(endpoint: str, repository: str, revision: str) -> tuple[str, ...]:
    """Arguments of a container that resolves an adapter's revision and downloads it to
    `CLAIM_MOUNT`."""
    return (*model_arguments(endpoint, repository, revision), "--adapter")


def model_arguments(endpoint: str, repository: str, revision: str) -> tuple[str, ...]:
    """Arguments of a container that downloads a model of a hub at `revision` to `CLAIM_MOUNT`."""
    return fetch_arguments(endpoint, f"hf://{repository}", revision)


def fetch_account(owner: Owner) -> Manifest:
    """The ServiceAccount of Jobs; without a token, and without rights."""
    head = owner.child(SERVICE_ACCOUNT, fetch_name(owner.service), FETCH, FETCH_ROLE)
    return head | {"automountServiceAccountToken": False}


def fetch_policy(
    owner: Owner, hub: Iterable[int], operator_namespace: str, identity: str | None = None
) -> Manifest:
    """The policy of downloading pods. They may reach DNS, the ports `hub`, and the node's agents
    that give a pod its ServiceAccount's `identity`, for buckets of that scheme. The operator may
    ask the pods for their progress."""
    asks = {
        "from": [operator_pods(operator_namespace)],
        "ports": [policy_port(ports.FETCH_PROGRESS)],
    }
    selected = {labels.SERVICE: owner.service, labels.FETCHES: "true"}
    return owner.child(NETWORK_POLICY, fetch_name(owner.service), FETCH, FETCH_ROLE) | {
        "spec": {
            "podSelector": {"matchLabels": selected},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [asks],
            "egress": [
                DNS,
                {"ports": [policy_port(port) for port in sorted(hub)]},
                *_identity_agents(identity),
            ],
        }
    }


def _identity_agents(scheme: str | None) -> list[Manifest]:
    if scheme not in IDENTITY:
        return []
    addresses, numbers = IDENTITY[scheme]
    blocks = [{"ipBlock": {"cidr": f"{address}/32"}} for address in addresses]
    return [{"to": blocks, "ports": [policy_port(port) for port in numbers]}]


def fetch_name(service: str) -> str:
    """Name of the ServiceAccount and the NetworkPolicy."""
    return f"{service}-{FETCH}"


def claim_name(service: str) -> str:
    """Name of the claim that the operator makes."""
    return f"{service}-model"


def model_claim(owner: Owner, cache: CacheSpec) -> Manifest:
    """The claim that the operator makes for a cache without a claim of its own."""
    assert cache.size is not None
    spec: Manifest = {
        "accessModes": [cache.access_mode or "ReadWriteMany"],
        "resources": {"requests": {"storage": cache.size}},
    }
    if cache.storage_class is not None:
        spec["storageClassName"] = cache.storage_class
    name = claim_name(owner.service)
    return owner.child(PERSISTENT_VOLUME_CLAIM, name, FETCH, FETCH_ROLE) | {"spec": spec}


def fetch_job(owner: Owner, task: FetchTask) -> Manifest:
    """A Job that retries transient failures and gives up on others at once. Its name is a hash of
    its content, as a Job cannot be changed."""
    name = f"{owner.service}-{task.name}"
    ours = child_labels(owner.service, FETCH, FETCH_ROLE) | {labels.FETCHES: "true"}
    if task.identity == "az":
        ours |= AZURE_IDENTITY
    metadata: Manifest = {"labels": ours}
    if task.placement.annotations:
        metadata["annotations"] = dict(task.placement.annotations)
    refused = {"containerName": FETCH_CONTAINER, "operator": "In", "values": [EXIT_REFUSED]}
    disrupted = {"type": "DisruptionTarget", "status": "True"}
    spec = {
        "backoffLimit": RETRIES,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": refused},
                {"action": "Ignore", "onPodConditions": [disrupted]},
            ]
        },
        "template": {"metadata": metadata, "spec": _pod(owner.service, task)},
    }
    name = f"{name}-{digest([spec, task.refresh])}"
    return owner.child(JOB, name, FETCH, FETCH_ROLE) | {"spec": spec}


def _pod(service: str, task: FetchTask) -> Manifest:
    container = fetch_container(
        task.image, task.arguments, task.token, task.network, task.resources
    )
    volumes: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        *token_volumes(task.token),
        *network_volumes(task.network),
    ]
    if task.claim is not None:
        container["args"] += ["--progress-port", str(ports.FETCH_PROGRESS)]
        container["env"] = [*container.get("env", ()), _address()]
        claim = {"claimName": task.claim}
        volumes.append({"name": MODEL_VOLUME, "persistentVolumeClaim": claim})
        container["volumeMounts"].append(_model_mount())
    group = {"fsGroup": GROUP_ID, "fsGroupChangePolicy": "OnRootMismatch"}
    return {
        "restartPolicy": "Never",
        "serviceAccountName": fetch_name(service),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY | (group if task.claim else {}),
        "containers": [container],
        "volumes": volumes,
        **task.placement.spec,
    }


def _address() -> Manifest:
    """The environment variable with the address at which progress is served."""
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def init_container(fetch: ModelFetch) -> Manifest:
    """Init container that downloads the model into an engine's own volume."""
    arguments = fetch_arguments(fetch.endpoint, fetch.uri, fetch.commit)
    container = fetch_container(
        fetch.image, arguments, fetch.token_secret_ref, fetch.network, fetch.resources
    )
    container["volumeMounts"].append(_model_mount())
    return container


def fetch_container(
    image: str,
    arguments: tuple[str, ...],
    token: SecretKeyRef | None,
    network: HubNetwork | None,
    resources: Resources | None,
) -> Manifest:
    """The fetching container, with the pod's `/tmp`, the token and additions that the network
    needs."""
    token_arguments = ("--token-file", TOKEN_FILE) if token else ()
    mount = {"name": TOKEN_VOLUME, "mountPath": TOKEN_FOLDER, "readOnly": True}
    return {
        "name": FETCH_CONTAINER,
        "image": image,
        "args": [*arguments, *token_arguments, *network_arguments(network)],
        **({"env": variables} if (variables := network_variables(network)) else {}),
        "resources": bringing_resources(resources),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *([mount] if token else []),
            *network_mounts(network),
        ],
    }


def token_volumes(token: SecretKeyRef | None) -> list[Manifest]:
    """The volume with the token's file. The Secret is optional for the pod: if it is missing, the
    fetcher reports it and is restarted."""
    if token is None:
        return []
    items = [{"key": token.key, "path": "token"}]
    secret = {"secretName": token.name, "optional": True, "items": items}
    return [{"name": TOKEN_VOLUME, "secret": secret}]


def _model_mount() -> Manifest:
    return {"name": MODEL_VOLUME, "mountPath": CLAIM_MOUNT}
