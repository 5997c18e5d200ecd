"""The keys, certificates and kubeconfigs of a bare cluster. Decides which component connects to
which, and as which user. The users' rights are Kubernetes' own RBAC."""

from __future__ import annotations

from e2e.cluster.bare.certs import Certificate, create_authority, create_signing_key, issue
from e2e.cluster.bare.controlplane import FRONT_PROXY
from e2e.cluster.bare.kubeconfig import write_kubeconfig
from e2e.cluster.bare.layout import Layout

# Program → its user; RBAC has roles for these names out of the box.
COMPONENT_USERS = {
    "kube-controller-manager": "system:kube-controller-manager",
    "kube-scheduler": "system:kube-scheduler",
    "kube-proxy": "system:kube-proxy",
}


def ensure_identities(layout: Layout) -> Certificate:
    """Makes the files that are missing below `pki/`, and the administrator's kubeconfig; returns
    the administrator's certificate."""
    pki = layout.pki
    authority = create_authority(pki, "ca")
    create_signing_key(pki / "service-account.key")
    _issue_servers(layout, authority)
    front_proxy = create_authority(pki, "front-proxy-ca")
    issue(front_proxy, pki, FRONT_PROXY, user=FRONT_PROXY)
    masters = ["system:masters"]
    issue(authority, pki, "kubelet-client", user="kube-apiserver-kubelet-client", groups=masters)
    for name, user in COMPONENT_USERS.items():
        _write(layout, authority, name, issue(authority, pki, name, user=user))
    admin = issue(authority, pki, "admin", user="sluice-admin", groups=masters)
    write_kubeconfig(layout.kubeconfig, layout.api_url, authority.certificate, admin, layout.name)
    return admin


def _issue_servers(layout: Layout, authority: Certificate) -> None:
    addresses = [layout.node_address, layout.kubernetes_service, "127.0.0.1"]
    kubernetes = "kubernetes.default.svc"
    names = ["localhost", "kubernetes", "kubernetes.default", kubernetes]
    hosts = [*addresses, *names, f"{kubernetes}.cluster.local"]
    issue(authority, layout.pki, "kube-apiserver", user="kube-apiserver", hosts=hosts)
    kubelet = issue(
        authority,
        layout.pki,
        "kubelet",
        user=f"system:node:{layout.name}",
        groups=["system:nodes"],
        hosts=[layout.node_address, layout.name],
    )
    _write(layout, authority, "kubelet", kubelet)


def _write(layout: Layout, authority: Certificate, name: str, client: Certificate) -> None:
    path = layout.pki / f"{name}.kubeconfig"
    write_kubeconfig(path, layout.api_url, authority.certificate, client)
