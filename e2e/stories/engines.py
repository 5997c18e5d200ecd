"""The engine pods of a service, as an administrator of the node sees them: load reports, processes,
network namespaces.

Processes are found on this machine, so stories that need them are skipped where the node is
elsewhere. Knows nothing of what an engine computes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.labels import Role
from sluice_contract.load import LoadReport
from sluice_contract.ports import ENGINE_HTTP, KV_TRANSFER_MAX, KV_TRANSFER_MIN

from e2e.cluster.command import run
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE, Service

POLL_SECONDS = 0.1
KV_PORTS = f"{KV_TRANSFER_MIN}:{KV_TRANSFER_MAX}"


@dataclass(frozen=True)
class Engine:
    """One engine pod that is not being deleted."""

    name: str
    address: str
    container_id: str

    def processes(self) -> list[int]:
        """PIDs on this machine, the container's first process first."""
        found = [
            int(group.parent.name)
            for group in Path("/proc").glob("[0-9]*/cgroup")
            if self.container_id in _text_of(group)
        ]
        if not found:
            pytest.skip(f"the processes of pod {self.name} are not on this machine")
        return sorted(found)

    def kill(self) -> None:
        """SIGKILL to the container's first process, which takes the others with it."""
        os.kill(self.processes()[0], signal.SIGKILL)

    def kill_engine_process(self) -> None:
        """SIGKILL to the process that computes; the one that answers HTTP lives on."""
        (computing,) = [pid for pid in self.processes() if _is_engine_process(pid)]
        os.kill(computing, signal.SIGKILL)

    def in_network(self, *argv: str) -> str:
        """Standard output of a command in the pod's network namespace."""
        return run(["nsenter", f"--net=/proc/{self.processes()[0]}/ns/net", *argv])


def engines(kubectl: Kubectl, service: Service, role: Role) -> list[Engine]:
    """Those that run, by name."""
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role={role}"
    pods = kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
    return sorted((_engine(pod) for pod in pods if _runs(pod)), key=lambda engine: engine.name)


def load_report(kubectl: Kubectl, engine: Engine) -> LoadReport:
    """What the engine tells the router, read through the API server."""
    pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{engine.name}:{ENGINE_HTTP}/proxy/load"
    return LoadReport.model_validate_json(kubectl.run("get", "--raw", pod))


def metric(kubectl: Kubectl, engine: Engine, name: str) -> float:
    """The sum of a metric's samples, over all labels."""
    pod = f"/api/v1/namespaces/{NAMESPACE}/pods/{engine.name}:{ENGINE_HTTP}/proxy/metrics"
    lines = kubectl.run("get", "--raw", pod).splitlines()
    samples = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    assert samples, f"{engine.name} has no metric {name}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)


def is_idle(report: LoadReport) -> bool:
    """Whether it holds no request, no room and no page but cached ones."""
    requests = report.running_requests + report.queued_requests
    waiting = sum(report.queues.model_dump().values())
    free = report.kv_pages_free + report.kv_pages_evictable
    return (requests, waiting, free) == (0, 0, report.kv_pages_total)


def wait_until_idle(kubectl: Kubectl, found: list[Engine], timeout_seconds: float) -> None:
    """Fails with the load report of one that still holds something."""
    for engine in found:
        idle = poll(partial(_holds_nothing, kubectl, engine), timeout_seconds)
        assert idle, f"{engine.name} does not become idle: {load_report(kubectl, engine)}"


def poll(predicate: Callable[[], bool], timeout_seconds: float) -> bool:
    """Whether it became true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def rule(engine: Engine, *words: str) -> Iterator[Callable[[], int]]:
    """An iptables rule in the pod's namespace, first of its chain, for the length of the block;
    yields what tells the bytes that it has met."""
    chain, *rest = words
    engine.in_network("iptables", "-I", chain, *rest)

    def met_bytes() -> int:
        table = engine.in_network("iptables", "-L", chain, "1", "-nvx")
        return int(table.split()[1])

    try:
        yield met_bytes
    finally:
        engine.in_network("iptables", "-D", chain, *rest)


def _holds_nothing(kubectl: Kubectl, engine: Engine) -> bool:
    return is_idle(load_report(kubectl, engine))


def _runs(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    running = [status for status in statuses if "running" in status["state"]]
    return "deletionTimestamp" not in pod["metadata"] and bool(running)


def _engine(pod: dict[str, Any]) -> Engine:
    container_id = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    return Engine(pod["metadata"]["name"], pod["status"]["podIP"], container_id)


def _is_engine_process(pid: int) -> bool:
    return "sluice_runtime.engine" in _text_of(Path(f"/proc/{pid}/cmdline")).split("\0")


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the process has ended
        return ""
