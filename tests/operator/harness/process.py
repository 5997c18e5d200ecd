"""The operator as a real process, started, awaited, stopped and killed by tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from sluice_operator.process.lease import LEASE

from e2e.cluster.ports import free_ports
from tests.operator.harness.cluster import Cluster, State
from tests.patience import PATIENCE_SECONDS

ADDRESS = f"127.1.{os.getpid() // 256 % 256}.{os.getpid() % 256}"
"""A loopback address of this process alone: no other can take a port between its choice and use."""
IMAGES = {
    "SLUICE_ENGINE_IMAGE": "sluice/engine:test",
    "SLUICE_ROUTER_IMAGE": "sluice/router:test",
    "SLUICE_GPU_ENGINE_IMAGE": "sluice/engine-cuda:test",
    "SLUICE_FETCH_IMAGE": "sluice/fetch:test",
}


class OperatorProcess:
    """`python -m sluice_operator` against a kubeconfig; the kernel kills it with the tests."""

    def __init__(self, kubeconfig: Path, log: Path, **environment: str) -> None:
        self.name = environment["POD_NAME"]
        self.namespace = environment["POD_NAMESPACE"]
        health_port, metrics_port = free_ports(2, ADDRESS)
        self.health_url = f"http://{ADDRESS}:{health_port}"
        self.metrics_url = f"http://{ADDRESS}:{metrics_port}/metrics"
        self.log = log
        self._environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "POD_IP": ADDRESS,
            "SLUICE_HEALTH_PORT": str(health_port),
            "SLUICE_METRICS_PORT": str(metrics_port),
            **IMAGES,
            **environment,
        }
        self._program = environment.pop("PROGRAM", "sluice_operator")
        self._environment.pop("PROGRAM", None)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv = ["setpriv", "--pdeathsig", "SIGKILL", sys.executable, "-m", self._program]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(argv, env=self._environment, stdout=log, stderr=log)

    async def leads(self, cluster: Cluster, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Returns when it holds its Lease."""
        await cluster.until(LEASE, self.namespace, self._is_holder, timeout_seconds)

    def _is_holder(self, leases: State) -> bool:
        assert self.running, self.log.read_text()
        return any(lease["spec"].get("holderIdentity") == self.name for lease in leases.values())

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def exited(self) -> int:
        """The exit status, when it ends by itself or has been told to."""
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait)

    async def terminate(self) -> int:
        """SIGTERM, as the kubelet sends it; the exit status."""
        assert self._process is not None
        self._process.terminate()
        return await self.exited()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone. Harmless when it is not running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
