"""ServiceAccounts, and the routers' Role: to read the EndpointSlices of their namespace."""

from __future__ import annotations

from sluice_contract.cluster.labels import ROUTER_ROLE

from sluice_operator.kube.kinds import ROLE, ROLE_BINDING, SERVICE_ACCOUNT, Manifest
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner


def engine_account(service: str) -> str:
    """Name of the engines' ServiceAccount."""
    return f"{service}-{ENGINE}"


def router_account(service: str) -> str:
    """Name of the routers' ServiceAccount, and of its Role and RoleBinding."""
    return f"{service}-{ROUTER}"


def accounts(owner: Owner) -> tuple[Manifest, ...]:
    """Both ServiceAccounts; no pod gets a token unless its template asks for one."""
    names = ((engine_account(owner.service), ENGINE), (router_account(owner.service), ROUTER))
    return tuple(
        owner.child(SERVICE_ACCOUNT, name, component) | {"automountServiceAccountToken": False}
        for name, component in names
    )


def router_role(owner: Owner) -> Manifest:
    """The routers' Role: reading EndpointSlices, nothing else."""
    rule = {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    return owner.child(ROLE, router_account(owner.service), ROUTER, ROUTER_ROLE) | {"rules": [rule]}


def router_role_binding(owner: Owner) -> Manifest:
    """Binds the routers' Role."""
    name = router_account(owner.service)
    subject = {"kind": "ServiceAccount", "name": name, "namespace": owner.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    return owner.child(ROLE_BINDING, name, ROUTER, ROUTER_ROLE) | {
        "roleRef": reference,
        "subjects": [subject],
    }
