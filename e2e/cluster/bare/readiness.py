"""Waits until a bare cluster can run pods: checks its programs in the order in which they come
up."""

from __future__ import annotations

import http.client
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.bare import controlplane, node_process
from e2e.cluster.bare.certs import Certificate
from e2e.cluster.bare.containerd import ctr_argv
from e2e.cluster.bare.kubelet import DNS_READY_PORT, PROXY_HEALTH_PORT
from e2e.cluster.bare.layout import Layout
from e2e.cluster.bare.node_description import API_PORT
from e2e.cluster.command import succeeds
from e2e.cluster.errors import NotReadyError, ProcessDiedError, tail
from e2e.cluster.progress import Step

READY_SECONDS = 120.0
POLL_SECONDS = 0.1
PROBE_SECONDS = 2.0


@dataclass(frozen=True)
class Check:
    """A condition of readiness; `program` is the one whose log explains why it does not hold."""

    what: str
    program: str
    holds: Callable[[], bool]


def runtime_checks(layout: Layout) -> list[Check]:
    """Conditions for loading images."""
    return [Check("containerd", "containerd", lambda: succeeds(ctr_argv(layout, "version")))]


def cluster_checks(layout: Layout, kubectl: Path, admin: Certificate) -> list[Check]:
    """Conditions for pods that find each other."""

    def has(*words: str) -> bool:
        return succeeds(
            [kubectl, f"--kubeconfig={layout.kubeconfig}", "--request-timeout=5s", *words]
        )

    def api_answers() -> bool:
        authority = layout.pki / "ca.crt"
        return controlplane.is_ready(layout.node_address, API_PORT, authority, admin)

    node_ready = ("wait", "--for=condition=Ready", f"node/{layout.name}", "--timeout=1s")
    proxy = f"http://{layout.node_address}:{PROXY_HEALTH_PORT}/healthz"
    dns = f"http://{layout.node_address}:{DNS_READY_PORT}/ready"
    return [
        Check("the API server", "kube-apiserver", api_answers),
        Check("the node", "kubelet", lambda: has(*node_ready)),
        Check(
            "the default service account",
            "kube-controller-manager",
            lambda: has("get", "serviceaccount", "default"),
        ),
        Check("the service proxy", "kube-proxy", lambda: _answers(proxy)),
        Check("DNS", "coredns", lambda: _answers(dns)),
    ]


def wait_for(layout: Layout, checks: list[Check], step: Step) -> None:
    """Returns when all hold. Raises NotReadyError, with the log of the program to blame."""
    for check in checks:
        step.detail(check.what)
        deadline = time.monotonic() + READY_SECONDS
        while not check.holds():
            if node_process.find_node(layout) is None:
                raise ProcessDiedError("the node", layout.logs / "init.log")
            if time.monotonic() > deadline:
                raise _not_ready(layout, check)
            time.sleep(POLL_SECONDS)


def _not_ready(layout: Layout, check: Check) -> NotReadyError:
    log = layout.logs / f"{check.program}.log"
    return NotReadyError(
        f"{check.what} is not ready after {READY_SECONDS:.0f} s; "
        f"last lines of {log}:\n{tail(log)}\nand of init.log:\n"
        f"{tail(layout.logs / 'init.log')}\n`down`, then `up`, begins anew."
    )


def _answers(url: str) -> bool:
    # No proxy of the environment: the address is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=PROBE_SECONDS) as response:
            return bool(response.status == http.client.OK)
    except OSError:
        return False
