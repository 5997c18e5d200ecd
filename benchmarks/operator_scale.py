"""The operator beside a large fleet: `python -m benchmarks.operator_scale --services 1000`.

A real API server with Deployment and ReplicaSet controllers, a scheduler and KWOK. Measures a
start with everything there, rest, single edits and a storm of them. One JSON line a figure. The
whole control plane runs on the same cores, so CPU seconds of the operator say more than seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE
from sluice_operator.manifests.engine import MIN_READY_SECONDS

from benchmarks.operator_edits import (
    PATIENCE_SECONDS,
    Place,
    Replicas,
    edit_latencies,
    storm_seconds,
)
from benchmarks.operator_fleet import (
    CONTROLLERS,
    Size,
    fake_kubelets,
    populate,
    scale,
    until_ready,
)
from e2e.cluster.controlplane_only import ControlPlane, control_plane
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess

ROOT = Path(__file__).parents[1]
USER = "operator"
TARGETS = {
    "cold_resync_seconds": 20.0,
    "edit_to_child_p50_seconds": 0.2,
    "edit_to_child_p99_seconds": 0.4,
    "edit_calls": 8.0,
    "storm_rest_seconds": 60.0,
    "storm_rest_cpu_seconds": 35.0,
    "resident_peak_mib": 220.0,
    "idle_cpu_percent": 0.5,
    "writes_at_rest": 0.0,
}
RESYNC_SECONDS = 600.0
"""The operator's default; a resync is measured apart and spread over it."""
SETTLE_SECONDS = 10.0
POLL_SECONDS = 0.5
QUIET_SECONDS = MIN_READY_SECONDS + 3.0
"""Time without a write after which an operator with an empty queue is at rest: an engine counts as
available `MIN_READY_SECONDS` after it is ready."""
COUNTED_EDITS = 3
"""Edits of one service each whose API calls are counted."""
SERVED_SECONDS = 180.0
"""Seconds to wait for the API server: with a large fleet, it answers its first listing late."""
DONE = re.compile(
    r'^sluice_operator_reconcile_total\{kind="(\w+)",outcome="success"\} ([\d.]+)', re.MULTILINE
)
WAITING = re.compile(r"^sluice_operator_queue_depth\{.*\} ([\d.]+)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--pods-per-service", type=int, default=10)
    parser.add_argument("--edits", type=int, default=200)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--patience-seconds", type=float, default=3600.0)
    parser.add_argument("--data", type=Path, help="keep the fleet in this folder, or go on with it")
    parser.add_argument("--only-populate", action="store_true", help="for --data: measure nothing")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        control_plane(CONTROLLERS, asked.data) as plane,
    ):
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "crds"))
        with fake_kubelets(plane, Path(folder)):
            asyncio.run(_run(plane, Path(folder), asked))


async def _run(plane: ControlPlane, folder: Path, asked: argparse.Namespace) -> None:
    cluster, size = Cluster(plane.kubeconfig), Size(asked.services, asked.pods_per_service)
    operator = _operator(plane, folder)
    try:
        for kind in (INFERENCE_SERVICE, ENGINE_POOL):
            await cluster.until_served(kind, SERVED_SECONDS)
        await populate(cluster, size)
        operator.start()
        await until_ready(cluster, size, asked.patience_seconds)
        if not asked.only_populate:
            await _measure(plane, cluster, operator, size, asked)
    finally:
        operator.kill()
        await cluster.close()


async def _measure(
    plane: ControlPlane,
    cluster: Cluster,
    operator: OperatorProcess,
    size: Size,
    asked: argparse.Namespace,
) -> None:
    await asyncio.sleep(SETTLE_SECONDS)
    operator.kill()
    tell("load_average", os.getloadavg()[0], size)
    await _cold_start(operator, size)
    await asyncio.sleep(SETTLE_SECONDS)
    tell("resident_after_start_mib", resident_mib(operator.pid), size)
    await _rest(plane, operator, size, asked.idle_seconds)
    async with Replicas.followed(cluster) as replicas:
        places = random.Random(0).sample(list(size.places()), min(asked.edits, size.services))
        latencies = await edit_latencies(cluster, replicas, places, size.engines - 1)
        tell("edit_to_child_p50_seconds", statistics.median(latencies), size)
        tell("edit_to_child_p99_seconds", _percentile(latencies, 99), size)
        await _count_calls(plane, cluster, operator, size, places)
        await _storm(plane, cluster, operator, size, replicas)
    tell("resident_mib", resident_mib(operator.pid), size)
    tell("resident_peak_mib", resident_mib(operator.pid, "VmHWM"), size)


async def _count_calls(
    plane: ControlPlane,
    cluster: Cluster,
    operator: OperatorProcess,
    size: Size,
    places: Sequence[Place],
) -> None:
    """Calls to the API server for one more engine, from the edit to rest."""
    await Work(plane, operator).until_rest()
    counts = []
    for place in places[:COUNTED_EDITS]:
        work = Work(plane, operator)
        await scale(cluster, place, size.engines)
        await work.until_rest()
        counts.append(work.calls)
    tell("edit_calls", statistics.median(calls.total() for calls in counts), size)
    for call, count in sorted(sum(counts, Counter()).items()):
        tell(f"edit_calls: {call}", count / len(counts), size)


async def _storm(
    plane: ControlPlane,
    cluster: Cluster,
    operator: OperatorProcess,
    size: Size,
    replicas: Replicas,
) -> None:
    """An edit of every service at once: when the last Deployment follows, and when all rests."""
    done, work = await _reconciled(operator), Work(plane, operator)
    seconds = await storm_seconds(cluster, replicas, list(size.places()), size.engines + 1)
    tell("storm_deployments_seconds", seconds, size)
    tell("storm_deployments_cpu_seconds", work.cpu_since(), size)
    await work.until_rest()
    tell("storm_rest_seconds", work.seconds, size)
    tell("storm_rest_cpu_seconds", work.cpu_seconds, size)
    for kind, count in (await _reconciled(operator)).items():
        tell(f"storm_reconciles_{kind}", count - done[kind], size)
    tell("storm_calls", work.calls.total(), size)
    for call, count in sorted(work.calls.items()):
        tell(f"storm_calls: {call}", count, size)


class Work:
    """The operator's work from one moment until rest."""

    def __init__(self, plane: ControlPlane, operator: OperatorProcess) -> None:
        self._audit, self._operator = AuditLog(plane.audit_log), operator
        self._began, self._cpu_before = time.monotonic(), cpu_seconds(operator.pid)
        self.seconds = self.cpu_seconds = 0.0
        """Time until the last write, to `POLL_SECONDS`."""
        self.calls: Counter[str] = Counter()
        """Requests to the API server by verb, resource and code, without those for the Lease."""

    def cpu_since(self) -> float:
        """CPU seconds of the operator so far."""
        return cpu_seconds(self._operator.pid) - self._cpu_before

    async def until_rest(self) -> None:
        """Returns once nothing was written for `QUIET_SECONDS`, and no key waits."""
        self._note()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await self._rests():
                pass

    async def _rests(self) -> bool:
        await asyncio.sleep(POLL_SECONDS)
        is_quiet = time.monotonic() - self._began - self.seconds >= QUIET_SECONDS
        has_written = self._note()
        return not has_written and is_quiet and _waiting(await _metrics(self._operator)) == 0

    def _note(self) -> bool:
        """Counts calls since the last time; whether one was a write."""
        calls = [c for c in self._audit.next_calls() if c.user == USER and c.resource != "leases"]
        self.calls.update(f"{call.verb} {call.resource} {call.code}" for call in calls)
        has_written = any(call.is_write for call in calls)
        if has_written:
            self.seconds, self.cpu_seconds = time.monotonic() - self._began, self.cpu_since()
        return has_written


async def _cold_start(operator: OperatorProcess, size: Size) -> None:
    """From the start of the process until every key was reconciled and none waits."""
    started = time.monotonic()
    operator.start()
    await _until_reconciled(operator, size.services)
    tell("cold_resync_seconds", time.monotonic() - started, size)
    tell("cold_resync_cpu_seconds", cpu_seconds(operator.pid), size)


async def _rest(
    plane: ControlPlane, operator: OperatorProcess, size: Size, idle_seconds: float
) -> None:
    """CPU and requests while nothing changes; no resync falls into this time."""
    audit, cpu = AuditLog(plane.audit_log), cpu_seconds(operator.pid)
    await asyncio.sleep(idle_seconds)
    spent = cpu_seconds(operator.pid) - cpu
    calls = [c for c in audit.calls() if c.user == USER and c.resource != "leases"]
    tell("idle_cpu_percent", 100 * spent / idle_seconds, size)
    tell("writes_at_rest", sum(call.is_write for call in calls), size)
    tell("reads_at_rest", sum(not call.is_write for call in calls), size)


async def _until_reconciled(operator: OperatorProcess, count: int) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await _has_reconciled(operator, count):  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


async def _metrics(operator: OperatorProcess) -> str:
    async with aiohttp.ClientSession() as session, session.get(operator.metrics_url) as answer:
        return await answer.text()


async def _reconciled(operator: OperatorProcess) -> dict[str, float]:
    """Number of reconciles so far, by kind."""
    return {kind: float(value) for kind, value in DONE.findall(await _metrics(operator))}


async def _has_reconciled(operator: OperatorProcess, count: int) -> bool:
    try:
        text = await _metrics(operator)
    except aiohttp.ClientError:
        return False
    done = {kind: float(value) for kind, value in DONE.findall(text)}
    kinds = (INFERENCE_SERVICE.kind, ENGINE_POOL.kind)
    return _waiting(text) == 0 and all(done.get(kind, 0) >= count for kind in kinds)


def _waiting(metrics: str) -> float:
    """How many keys wait for a worker."""
    return sum(float(value) for value in WAITING.findall(metrics))


def _operator(plane: ControlPlane, folder: Path) -> OperatorProcess:
    return OperatorProcess(
        plane.user_kubeconfig(USER, ["system:masters"]),
        folder / "operator.log",
        POD_NAME="operator",
        POD_NAMESPACE="default",
        SLUICE_RESYNC_SECONDS=str(RESYNC_SECONDS),
    )


def tell(figure: str, value: float, size: Size) -> None:
    """Prints one figure."""
    line = {
        "bench": "operator",
        "services": size.services,
        "pods": size.services * size.pods_per_service,
        "figure": figure,
        "value": round(value, 3),
    }
    if figure in TARGETS:
        line["target"] = TARGETS[figure]
    print(json.dumps(line), flush=True)


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int, field: str = "VmRSS") -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


if __name__ == "__main__":
    main()
