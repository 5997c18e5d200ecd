"""The pods of a service, as an administrator of the node sees them: load reports, metrics,
processes, network namespaces.

Processes are found on this machine, so stories that need them are skipped where the node is
elsewhere. Knows nothing of what they compute.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Literal

import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.cluster.ports import (
    ENGINE_HTTP,
    ENGINE_METRICS,
    KV_TRANSFER_MAX,
    KV_TRANSFER_MIN,
)
from sluice_contract.wire.load import LoadReport

from e2e.cluster.command import run
from e2e.kubectl import Kubectl
from e2e.stories.service import NAMESPACE, Service
from tests.busy_machine import BusyMachine

POLL_SECONDS: Final = 0.1
PATIENCE_SECONDS: Final = 120.0
"""Seconds to wait for something that must happen; stories count their bounds otherwise."""
KV_PORTS: Final = f"{KV_TRANSFER_MIN}:{KV_TRANSFER_MAX}"


@dataclass(frozen=True)
class Pod:
    """One pod of a service that is not being deleted."""

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
        """Sends SIGKILL to the container's first process, which takes the others with it."""
        os.kill(self.processes()[0], signal.SIGKILL)

    def freeze(self) -> None:
        """Sends SIGSTOP to all processes: connections stay, and nobody answers. Only killing the
        pod ends this state."""
        for pid in reversed(self.processes()):
            os.kill(pid, signal.SIGSTOP)

    def kill_engine_process(self) -> None:
        """Sends SIGKILL to the process that computes; the process that answers HTTP lives on."""
        (computing,) = [pid for pid in self.processes() if _is_engine_process(pid)]
        os.kill(computing, signal.SIGKILL)

    def in_network(self, *argv: str) -> str:
        """Standard output of a command in the pod's network namespace."""
        return run(["nsenter", f"--net=/proc/{self.processes()[0]}/ns/net", *argv])


def pods(kubectl: Kubectl, service: Service, role: Role | Literal["router"]) -> list[Pod]:
    """Running pods of a role, by name."""
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role={role}"
    found = kubectl.get("pods", "-n", service.namespace, "-l", selector)["items"]
    return sorted((_pod(pod) for pod in found if _runs(pod)), key=lambda pod: pod.name)


def load_report(kubectl: Kubectl, engine: Pod) -> LoadReport:
    """The load report of an engine, read through the API server."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{engine.name}:{ENGINE_HTTP}/proxy/load"
    return LoadReport.model_validate_json(kubectl.run("get", "--raw", path))


def metric(kubectl: Kubectl, pod: Pod, name: str, port: int = ENGINE_METRICS) -> float:
    """The sum of a metric's samples, over all labels; 0 without any."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod.name}:{port}/proxy/metrics"
    lines = kubectl.run("get", "--raw", path).splitlines()
    samples = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(float(line.rsplit(" ", 1)[1]) for line in samples)


def is_idle(report: LoadReport) -> bool:
    """Whether an engine holds no request, no room, and no pages except cached ones."""
    figures = report.figures
    return held_requests(report) == 0 and figures.kv_pages_available == figures.kv_pages_total


def held_requests(report: LoadReport) -> int:
    """Requests that an engine computes, or that wait in any of its queues."""
    return report.figures.requests


def wait_until_idle(kubectl: Kubectl, found: list[Pod], within_seconds: float) -> None:
    """Fails, with its load report, if an engine still holds something then. Only seconds count in
    which no process of this machine waited for a processor."""
    machine, deadline = BusyMachine(), time.monotonic() + PATIENCE_SECONDS
    for engine in found:
        while not is_idle(report := load_report(kubectl, engine)):
            in_time = machine.calm_seconds <= within_seconds and time.monotonic() < deadline
            assert in_time, f"{engine.name} does not become idle: {report}"
            time.sleep(POLL_SECONDS)


@contextmanager
def watched_ready_times(kubectl: Kubectl, service: Service) -> Iterator[dict[str, float]]:
    """Unix seconds at which each pod of the service was first seen ready, by name; filled while the
    block runs. Objects have these times only in whole seconds."""
    ready = '{.status.conditions[?(@.type=="Ready")].status}'
    selector = f"serving.sluice.dev/service={service.name}"
    argv = kubectl.argv(
        "get", "pods", "-n", service.namespace, "-l", selector, "--watch",
        f'-o=jsonpath={{.metadata.name}} {ready}{{"\\n"}}',
    )  # fmt: skip
    seen: dict[str, float] = {}

    def read(lines: IO[str]) -> None:
        for line in lines:
            name, _, is_ready = line.strip().partition(" ")
            if is_ready == "True":
                seen.setdefault(name, time.time())

    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        reader = threading.Thread(target=read, args=(watch.stdout,))
        reader.start()
        try:
            yield seen
        finally:
            watch.terminate()
            reader.join()


def routed_seconds(kubectl: Kubectl, service: Service, request_id: str) -> float:
    """Seconds that a request took, by its router's log."""
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role=router"
    told: list[str] = []

    def is_told() -> bool:
        log = kubectl.run("logs", "-n", NAMESPACE, "-l", selector, "--tail=-1")
        told[:] = re.findall(rf"{re.escape(request_id)} POST .* seconds=([0-9.]+)", log)
        return bool(told)

    assert poll(is_told, PATIENCE_SECONDS), f"no router has logged request {request_id}"
    return float(told[-1])


def poll(predicate: Callable[[], bool], timeout_seconds: float) -> bool:
    """Whether `predicate` became true in time."""
    deadline = time.monotonic() + timeout_seconds
    while not predicate():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


@contextmanager
def rule(pod: Pod, *words: str) -> Iterator[Callable[[], int]]:
    """Adds an iptables rule as the first of its chain in the pod's namespace, for the length of the
    block. Yields a function that returns the bytes the rule has matched."""
    chain, *rest = words
    pod.in_network("iptables", "-I", chain, *rest)

    def met_bytes() -> int:
        table = pod.in_network("iptables", "-L", chain, "1", "-nvx")
        return int(table.split()[1])

    try:
        yield met_bytes
    finally:
        pod.in_network("iptables", "-D", chain, *rest)


def _runs(pod: dict[str, Any]) -> bool:
    statuses = pod["status"].get("containerStatuses", [])
    running = [status for status in statuses if "running" in status["state"]]
    return "deletionTimestamp" not in pod["metadata"] and bool(running)


def _pod(pod: dict[str, Any]) -> Pod:
    container_id = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    return Pod(pod["metadata"]["name"], pod["status"]["podIP"], container_id)


def _is_engine_process(pid: int) -> bool:
    return "sluice_runtime.engine" in _text_of(Path(f"/proc/{pid}/cmdline")).split("\0")


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the process has ended
        return ""
