"""KEDA's operator and metrics adapter as processes of this machine, for an API server without
nodes: with KEDA's own kinds and rights, and its APIService behind the aggregation layer.

An ExternalName stands for the adapter's Service, whose pods nobody would run.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import yaml

from e2e.cluster.controlplane_only import ControlPlane
from e2e.cluster.daemon import Daemon
from e2e.cluster.ports import free_ports
from e2e.cluster.toolchain.keda import Keda, ensure_keda
from tests.operator.harness.plane import until_done

NAMESPACE: Final = "keda"
USER: Final = f"system:serviceaccount:{NAMESPACE}:keda-operator"
GROUPS: Final = ("system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}")
SERVICE: Final = "keda-metrics-apiserver"
API_SERVICE: Final = "v1beta1.external.metrics.k8s.io"
RIGHTS: Final = (
    "service_account/service_account.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
)
LOOPBACK: Final = "127.0.0.1"


class Ports(NamedTuple):
    """Of KEDA's two processes."""

    https: int
    """The adapter's external metrics API."""
    http: int
    grpc: int
    """The operator's, which the adapter asks for values."""
    health: int


@contextmanager
def running_keda(plane: ControlPlane, folder: Path) -> Iterator[None]:
    """For the length of a `with` block; its logs are in `folder`. It may do what its roles say."""
    keda = ensure_keda()
    folder.mkdir(parents=True, exist_ok=True)
    authority = _certificates(plane, folder / "certs")
    ports = Ports(*free_ports(4))
    _install(plane, keda, ports.https, authority)
    kubeconfig = plane.user_kubeconfig(USER, GROUPS)
    commands = {
        keda.operator: _operator_flags(ports, folder / "certs"),
        keda.adapter: _adapter_flags(ports, folder / "certs", kubeconfig),
    }
    daemons = [
        Daemon(
            program.name,
            [*_environment(kubeconfig), program, *flags],
            folder / f"{program.name}.log",
        )
        for program, flags in commands.items()
    ]
    try:
        for daemon in daemons:
            daemon.start()
        available = ("--for=condition=Available", "--timeout=5s", "apiservice", API_SERVICE)
        until_done(plane, "wait", *available)
        yield
    finally:
        for daemon in daemons:
            daemon.kill()


def _environment(kubeconfig: Path) -> list[str]:
    """Both watch all namespaces."""
    namespaces = (f"POD_NAMESPACE={NAMESPACE}", f"KEDA_CLUSTER_OBJECT_NAMESPACE={NAMESPACE}")
    return ["env", f"KUBECONFIG={kubeconfig}", "WATCH_NAMESPACE=", *namespaces]


def _operator_flags(ports: Ports, certificates: Path) -> list[str]:
    return [
        "--metrics-bind-address=0",
        f"--health-probe-bind-address={LOOPBACK}:{ports.health}",
        f"--metrics-service-bind-address={LOOPBACK}:{ports.grpc}",
        f"--cert-dir={certificates}",
    ]


def _adapter_flags(ports: Ports, certificates: Path, kubeconfig: Path) -> list[str]:
    asks = ("authentication-kubeconfig", "authorization-kubeconfig", "lister-kubeconfig")
    return [
        f"--bind-address={LOOPBACK}",
        f"--secure-port={ports.https}",
        f"--port={ports.http}",
        f"--metrics-service-address={LOOPBACK}:{ports.grpc}",
        f"--cert-dir={certificates}",
        f"--tls-cert-file={certificates / 'tls.crt'}",
        f"--tls-private-key-file={certificates / 'tls.key'}",
        *(f"--{flag}={kubeconfig}" for flag in asks),
    ]


def _certificates(plane: ControlPlane, folder: Path) -> bytes:
    """Writes what KEDA reads, one certificate for both processes; returns the authority."""
    hosts = [LOOPBACK, "localhost", f"{SERVICE}.{NAMESPACE}.svc"]
    authority, serving = plane.serving_certificate(SERVICE, hosts)
    folder.mkdir()
    for path, name in (
        (authority, "ca.crt"),
        (serving.certificate, "tls.crt"),
        (serving.key, "tls.key"),
    ):
        shutil.copyfile(path, folder / name)
    return authority.read_bytes()


def _install(plane: ControlPlane, keda: Keda, port: int, authority: bytes) -> None:
    plane.kubectl("create", "namespace", NAMESPACE)
    plane.kubectl("apply", "--server-side", "-f", str(keda.manifests / "crd" / "bases"))
    until_done(plane, "wait", "--for=condition=Established", "crd", "--all")
    for file in RIGHTS:
        plane.kubectl("apply", "-f", str(keda.manifests / file))
    objects = [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": NAMESPACE},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": API_SERVICE},
            "spec": {
                "service": {"name": SERVICE, "namespace": NAMESPACE, "port": port},
                "group": "external.metrics.k8s.io",
                "version": "v1beta1",
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "caBundle": base64.b64encode(authority).decode(),
            },
        },
    ]
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
