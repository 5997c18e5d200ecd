"""Objects for the hand-over: the key by which router and engines authenticate each other, and the
flows between the two pools.

Pure. The operator may create Secrets and never reads one, so it cannot see whether the key's Secret
exists, or has an owner. While pods are missing, they may wait for the Secret, so creating it is
tried. If another child has lost its owner, the Secret may have lost its own, so taking it over is
tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import ROUTER_ROLE, Role

from sluice_operator.api.pool import BOOTSTRAP, EnginePoolSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.plan import KeySecret
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest, of_kind
from sluice_operator.manifests.handover import KEY, handover_secret
from sluice_operator.manifests.metadata import Owner, digest
from sluice_operator.manifests.network import handover_policies
from sluice_operator.manifests.ownership import is_unowned
from sluice_operator.service.observe import Children
from sluice_operator.service.revisions.revision import Revisions


def policies(
    children: Children, top: Owner, spec: InferenceServiceSpec, revisions: Revisions
) -> tuple[Manifest, ...]:
    """NetworkPolicies for the flows between the two pools, beyond those of all engines. The port of
    a revision that still serves stays open. With backend TCP, ports are also open within a pool.
    Engines of other backends never move, and a peer that reaches their ports reaches their
    memory."""
    transfer = spec.kv_transfer(Role.PREFILL)
    if transfer is None:
        return ()
    in_use = (_bootstrap_port(deployment) for deployment in of_kind(children, DEPLOYMENT))
    open_ports = {transfer.bootstrap_port, *(port for port in in_use if port is not None)}
    backends = {
        revisions.backend_in_use or transfer.backend_or_default,
        *(kept.backend_or_default for role in spec.roles if (kept := spec.kv_transfer(role))),
    }
    return handover_policies(top, tuple(sorted(open_ports)), engines_move=backends == {"TCP"})


def _bootstrap_port(deployment: Manifest) -> int | None:
    containers = deployment["spec"]["template"]["spec"]["containers"]
    all_ports = (port for container in containers for port in container.get("ports") or ())
    return next(
        (port["containerPort"] for port in all_ports if port.get("name") == BOOTSTRAP), None
    )


def key_secrets(
    children: Children, top: Owner, pools: Iterable[EnginePoolSpec]
) -> tuple[KeySecret, ...]:
    """The Secret with the service's key. Something may wait for it while pods are missing."""
    deployments = tuple(of_kind(children, DEPLOYMENT))
    roles = {
        (deployment["metadata"].get("labels") or {}).get(labels.ROLE) for deployment in deployments
    }
    roles_needed = {ROUTER_ROLE, *(pool.role for pool in pools)}
    is_lost = top.uid is not None and any(is_unowned(child, top.service) for child in children)
    at_rest = roles >= roles_needed and not is_lost and not any(map(_lacks_pods, deployments))
    state = [top.uid, is_lost, *_states(deployments)]
    waiting, is_used = "" if at_rest else digest(state), any(map(_ready, deployments))
    return (KeySecret(handover_secret(top), KEY, waiting, is_used, is_lost),)


def _lacks_pods(deployment: Manifest) -> bool:
    return _ready(deployment) < int(deployment["spec"].get("replicas", 1))


def _states(deployments: tuple[Manifest, ...]) -> Iterator[list[object]]:
    for deployment in sorted(deployments, key=lambda item: str(item["metadata"]["name"])):
        metadata = deployment["metadata"]
        yield [metadata.get("uid"), metadata.get("generation"), _ready(deployment)]


def _ready(deployment: Manifest) -> int:
    return int((deployment.get("status") or {}).get("readyReplicas", 0))
