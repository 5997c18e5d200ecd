"""etcd and kube-apiserver alone, on 127.0.0.1, in a temporary directory: ready in about 3 s.

For tests of what talks to an API server only. It knows no node: pods stay Pending, and without
`controllers` nothing acts on objects either (no garbage collection, no Deployment controller).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import yaml

from e2e.cluster.bare import controlplane
from e2e.cluster.bare.certs import Certificate, create_authority, create_signing_key, issue
from e2e.cluster.bare.kubeconfig import write_kubeconfig
from e2e.cluster.command import run
from e2e.cluster.daemon import Daemon
from e2e.cluster.ports import free_ports
from e2e.cluster.toolchain.binaries import Binaries, ensure_binaries

ADDRESS = "127.0.0.1"
AUTHORITY = "sluice-ca"
SERVICE_SUBNET = "10.96.0.0/16"
DIRECTORY_PREFIX = "sluice-controlplane-"
READY_SECONDS = 60.0
# Pods need no service account token here: nobody would issue it without the controller manager.
APISERVER_FLAGS = {"disable-admission-plugins": "ServiceAccount", "allow-privileged": "true"}


class ApiServer:
    """A running API server, for callers that know its folder."""

    def __init__(self, directory: Path, binaries: Binaries, authority: Certificate) -> None:
        self.directory = directory
        self.audit_log = directory / "audit.log"
        self.kubeconfig = directory / "kubeconfig"
        self._binaries = binaries
        self._authority = authority

    @property
    def url(self) -> str:
        (cluster,) = yaml.safe_load(self.kubeconfig.read_text())["clusters"]
        return str(cluster["cluster"]["server"])

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """Standard output of a kubectl command against this API server."""
        return run(self.kubectl_argv(*words), stdin=stdin)

    def kubectl_argv(self, *words: str) -> list[str]:
        """The command line of `kubectl`."""
        kubectl = self._binaries.program("kubectl")
        return [str(kubectl), f"--kubeconfig={self.kubeconfig}", *words]

    def serving_certificate(self, name: str, hosts: Sequence[str]) -> tuple[Path, Certificate]:
        """A server's certificate for these hosts, and the authority that issued it."""
        folder = self.directory / f"servers-of-{os.getpid()}"
        return self._authority.certificate, issue(
            self._authority, folder, name, user=name, hosts=hosts
        )

    def user_kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig of another user, who may do what RBAC grants: for tests of roles."""
        folder = self.directory / f"users-of-{os.getpid()}"  # other processes may do the same
        name = user.replace(":", "-")
        client = issue(self._authority, folder, name, user=user, groups=groups)
        path = folder / f"{name}.kubeconfig"
        return write_kubeconfig(path, self.url, self._authority.certificate, client)


def api_server_at(directory: Path) -> ApiServer:
    """The API server that another process has started in `directory`, and keeps."""
    authority = create_authority(directory / "pki", AUTHORITY)
    return ApiServer(directory, ensure_binaries(), authority)


class ControlPlane(ApiServer):
    """A running etcd and API server. Ports and data outlive `stop_apiserver`, so that
    `start_apiserver` brings the same server back."""

    def __init__(
        self,
        directory: Path,
        binaries: Binaries,
        controllers: Sequence[str],
        data: Path | None,
        feature_gates: str,
    ) -> None:
        pki = directory / "pki"
        super().__init__(directory, binaries, create_authority(pki, AUTHORITY))
        self._gates = {"feature-gates": feature_gates} if feature_gates else {}
        self._admin = issue(self._authority, pki, "admin", user="admin", groups=["system:masters"])
        self._port, etcd_port, peer_port = free_ports(3)
        url = f"https://{ADDRESS}:{self._port}"
        write_kubeconfig(self.kubeconfig, url, self._authority.certificate, self._admin)
        self._etcd_url = f"http://{ADDRESS}:{etcd_port}"
        self._etcd = self._etcd_daemon(data or directory / "etcd", f"http://{ADDRESS}:{peer_port}")
        self._signing_key = create_signing_key(pki / "service-account.key")
        self._apiserver = self._apiserver_daemon()
        self._controllers = self._controllers_daemon(controllers) if controllers else None

    def start(self) -> None:
        """Starts everything; returns when /readyz answers."""
        self._etcd.start()
        self.start_apiserver()
        if self._controllers is not None:
            self._controllers.start()

    def stop(self) -> None:
        """Kills everything; returns when it is gone."""
        for daemon in (self._controllers, self._apiserver, self._etcd):
            if daemon is not None:
                daemon.kill()

    def start_apiserver(self) -> None:
        """Starts the API server on its port and data; returns when /readyz answers."""
        self._apiserver.start()
        self._apiserver.wait_until(self._answers, READY_SECONDS)

    def stop_apiserver(self) -> None:
        """Kills the API server: open connections break, new ones are refused."""
        self._apiserver.kill()

    def _answers(self) -> bool:
        return controlplane.is_ready(ADDRESS, self._port, self._authority.certificate, self._admin)

    def _etcd_daemon(self, data: Path, peer_url: str) -> Daemon:
        etcd = self._binaries.program("etcd")
        argv = controlplane.etcd_argv(etcd, data, self._etcd_url, peer_url)
        return Daemon("etcd", argv, self.directory / "etcd.log")

    def _apiserver_daemon(self) -> Daemon:
        policy = self.directory / "audit-policy.yaml"
        policy.write_text(controlplane.audit_policy())
        argv = controlplane.apiserver_argv(
            self._binaries.program("kube-apiserver"),
            controlplane.ApiServerFiles(
                authority=self._authority.certificate,
                serving=self._serving_certificate(),
                service_account_key=self._signing_key,
                audit_policy=policy,
                audit_log=self.audit_log,
            ),
            etcd_url=self._etcd_url,
            address=ADDRESS,
            port=self._port,
            service_subnet=SERVICE_SUBNET,
            extra={**APISERVER_FLAGS, **self._aggregation_flags(), **self._gates},
        )
        # The API server collects its garbage a third as often: it computes a sixth less, and ends
        # soon.
        return Daemon(
            "kube-apiserver", ["env", "GOGC=400", *argv], self.directory / "kube-apiserver.log"
        )

    def _aggregation_flags(self) -> dict[str, str]:
        pki, name = self.directory / "pki", controlplane.FRONT_PROXY
        authority = create_authority(pki, "front-proxy-ca")
        return controlplane.aggregation_flags(
            authority.certificate, issue(authority, pki, name, user=name)
        )

    def _serving_certificate(self) -> Certificate:
        hosts = [ADDRESS, "localhost"]
        pki = self.directory / "pki"
        return issue(self._authority, pki, "kube-apiserver", user="kube-apiserver", hosts=hosts)

    def _controllers_daemon(self, controllers: Sequence[str]) -> Daemon:
        argv = controlplane.controller_manager_argv(
            self._binaries.program("kube-controller-manager"),
            self.kubeconfig,
            self._authority.certificate,
            self._signing_key,
            controllers,
            {"secure-port": "0", "horizontal-pod-autoscaler-sync-period": "1s"},
        )
        log = self.directory / "kube-controller-manager.log"
        return Daemon("kube-controller-manager", argv, log)


@contextmanager
def control_plane(
    controllers: Sequence[str] = (), data: Path | None = None, feature_gates: str = ""
) -> Iterator[ControlPlane]:
    """A control plane for the length of a `with` block; leaves no process and no file.

    `controllers` names further controllers of kube-controller-manager to run, for example
    `["garbage-collector-controller", "namespace-controller", "deployment-controller"]`. `data` is a
    folder for etcd's data, which is kept: another control plane continues with it. `feature_gates`
    are the API server's, `Name=true,…`. If this process is killed, its processes die too, and its
    files are deleted when the next control plane starts.
    """
    binaries = ensure_binaries()
    _remove_abandoned()
    directory, lock = _claim_directory()
    try:
        plane = ControlPlane(directory, binaries, controllers, data, feature_gates)
        try:
            plane.start()
            yield plane
        finally:
            plane.stop()
    finally:
        # Deleted while the lock is held, so that nobody else sweeps at the same time.
        shutil.rmtree(directory)
        lock.close()


def _claim_directory() -> tuple[Path, TextIO]:
    """A new directory and its lock, which is taken. Only then the directory gets its final name, by
    which others find and sweep it."""
    unnamed = Path(tempfile.mkdtemp(prefix="sluice-new-"))
    lock = (unnamed / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    directory = unnamed.with_name(unnamed.name.replace("sluice-new-", DIRECTORY_PREFIX))
    return unnamed.rename(directory), lock


def _remove_abandoned() -> None:
    """Removes the directories of control planes whose owner was killed: nobody holds their lock."""
    for directory in Path(tempfile.gettempdir()).glob(f"{DIRECTORY_PREFIX}*"):
        # Its owner, or another that sweeps, may remove it at any time.
        with suppress(FileNotFoundError), (directory / "lock").open() as stream:
            if _try_lock(stream):
                shutil.rmtree(directory, ignore_errors=True)


def _try_lock(stream: TextIO) -> bool:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
