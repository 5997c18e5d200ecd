"""Command lines of etcd, kube-apiserver, kube-controller-manager and kube-scheduler, and the
question whether the API server is ready. Pure but for that question; starts nothing."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from e2e.cluster.bare.certs import Certificate

SERVICE_ACCOUNT_ISSUER = "https://kubernetes.default.svc.cluster.local"
READY_REQUEST_SECONDS = 2.0
FRONT_PROXY = "front-proxy-client"


@dataclass(frozen=True)
class ApiServerFiles:
    """What the API server reads and writes, as paths that it sees."""

    authority: Path
    serving: Certificate
    service_account_key: Path
    audit_policy: Path
    audit_log: Path


def flags(values: Mapping[str, str]) -> list[str]:
    """`--key=value` words in the order given."""
    return [f"--{key}={value}" for key, value in values.items()]


def etcd_argv(binary: Path, data: Path, client_url: str, peer_url: str) -> list[str]:
    """A one-member etcd that does not wait for the disk: its data outlives a crash of the process,
    not of the machine."""
    return [
        str(binary),
        *flags(
            {
                "name": "sluice",
                "data-dir": str(data),
                "listen-client-urls": client_url,
                "advertise-client-urls": client_url,
                "listen-peer-urls": peer_url,
                "initial-advertise-peer-urls": peer_url,
                "initial-cluster": f"sluice={peer_url}",
                "log-level": "warn",
            }
        ),
        "--unsafe-no-fsync",
    ]


def apiserver_argv(
    binary: Path,
    files: ApiServerFiles,
    *,
    etcd_url: str,
    address: str,
    port: int,
    service_subnet: str,
    extra: Mapping[str, str],
) -> list[str]:
    """kube-apiserver with RBAC, client certificates and an audit log that is complete by the time
    an answer is out (mode blocking)."""
    values = {
        "etcd-servers": etcd_url,
        "bind-address": address,
        "advertise-address": address,
        "secure-port": str(port),
        "service-cluster-ip-range": service_subnet,
        "client-ca-file": str(files.authority),
        "tls-cert-file": str(files.serving.certificate),
        "tls-private-key-file": str(files.serving.key),
        "service-account-issuer": SERVICE_ACCOUNT_ISSUER,
        "service-account-key-file": str(files.service_account_key),
        "service-account-signing-key-file": str(files.service_account_key),
        "authorization-mode": "RBAC",
        "audit-policy-file": str(files.audit_policy),
        "audit-log-path": str(files.audit_log),
        "audit-log-mode": "blocking",
        "audit-log-maxsize": "1000",
        "profiling": "false",
    }
    return [str(binary), *flags({**values, **extra})]


def aggregation_flags(authority: Path, client: Certificate) -> dict[str, str]:
    """Flags of an API server that passes requests on to other servers (APIServices), which identify
    it by `client`, the certificate that it presents. `authority`: the one that has issued
    `client`."""
    return {
        "requestheader-client-ca-file": str(authority),
        "requestheader-allowed-names": FRONT_PROXY,
        "requestheader-username-headers": "X-Remote-User",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "proxy-client-cert-file": str(client.certificate),
        "proxy-client-key-file": str(client.key),
    }


def controller_manager_argv(
    binary: Path,
    kubeconfig: Path,
    authority: Path,
    service_account_key: Path,
    controllers: Sequence[str],
    extra: Mapping[str, str],
) -> list[str]:
    """kube-controller-manager running the named controllers (`*`: all that are on by default)."""
    values = {
        **_client_flags(kubeconfig),
        "root-ca-file": str(authority),
        "service-account-private-key-file": str(service_account_key),
        "use-service-account-credentials": "true",
        "controllers": ",".join(controllers),
    }
    return [str(binary), *flags({**values, **extra})]


def scheduler_argv(binary: Path, kubeconfig: Path, address: str) -> list[str]:
    """kube-scheduler, alone and therefore without an election."""
    return [str(binary), *flags({**_client_flags(kubeconfig), "bind-address": address})]


def _client_flags(kubeconfig: Path) -> dict[str, str]:
    """Flags that controller manager and scheduler have in common. Without replicas they need no
    election; with the default rate of requests they take seconds longer to start."""
    return {
        "kubeconfig": str(kubeconfig),
        "authentication-kubeconfig": str(kubeconfig),
        "authorization-kubeconfig": str(kubeconfig),
        # The lookup fails, and ends them, if they start before the API server has made its own
        # roles.
        "authentication-skip-lookup": "true",
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        "leader-elect": "false",
    }


def audit_policy() -> str:
    """Every request with who, what and the answer's status, once, when it is answered."""
    return yaml.safe_dump(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted", "Panic"],
            "rules": [{"level": "Metadata"}],
        }
    )


def is_ready(address: str, port: int, authority: Path, client: Certificate) -> bool:
    """Whether GET /readyz answers 200."""
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(client.certificate, client.key)
    connection = http.client.HTTPSConnection(
        address, port, context=context, timeout=READY_REQUEST_SECONDS
    )
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
