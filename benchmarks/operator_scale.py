"""How the operator does with many services: `python -m benchmarks.operator_scale --services 200`.

A real API server without controllers; the time until every service has been carried out, what a
resync costs when nothing differs, and the process's memory and CPU. One JSON line out.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sluice_operator.kube.kinds import INFERENCE_SERVICE

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from tests.operator.harness.audit import AuditLog
from tests.operator.harness.cluster import NAMESPACE, Cluster, State
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat

ROOT = Path(__file__).parents[1]
TARGET = "scale"
ADMIN = "admin"
SECONDS_PER_SERVICE = 0.25
"""Resyncs are so far apart that one is over before the next begins, also on a busy machine."""
PATIENCE_SECONDS = 1800.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=200)
    count = parser.parse_args().services
    with control_plane() as plane, tempfile.TemporaryDirectory() as directory:
        plane.kubectl("apply", "--server-side", "-k", str(ROOT / "crds"))
        plane.kubectl("wait", "--for=condition=Established", "crd", "--all")
        print(json.dumps(asyncio.run(measure(plane, Path(directory), count))))


async def measure(plane: ControlPlane, directory: Path, count: int) -> dict[str, float]:
    cluster = Cluster(plane.kubeconfig)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TARGET}}
    await cluster.create(NAMESPACE, namespace)
    for number in range(count):
        await cluster.create(INFERENCE_SERVICE, chat(TARGET, f"chat-{number}"))
    operator = OperatorProcess(
        plane.kubeconfig,
        directory / "operator.log",
        POD_NAME="operator",
        POD_NAMESPACE=TARGET,
        SLUICE_RESYNC_SECONDS=str(count * SECONDS_PER_SERVICE),
    )
    started = time.monotonic()
    operator.start()
    try:
        await cluster.until(INFERENCE_SERVICE, TARGET, all_seen(count), PATIENCE_SECONDS)
        created_seconds, cpu = time.monotonic() - started, cpu_seconds(operator.pid)
        resync = await resync_cost(plane, operator, count)
        return {
            "services": count,
            "created_seconds": round(created_seconds, 1),
            "created_cpu_ms_per_service": round(1000 * cpu / count, 1),
            **resync,
            "resident_mib": resident_mib(operator.pid),
        }
    finally:
        operator.kill()
        await cluster.close()


async def resync_cost(
    plane: ControlPlane, operator: OperatorProcess, count: int
) -> dict[str, float]:
    """Over two resyncs, once what the creation has stirred up is over."""
    resync_seconds = count * SECONDS_PER_SERVICE
    await asyncio.sleep(2 * resync_seconds)
    audit, cpu = AuditLog(plane.audit_log), cpu_seconds(operator.pid)
    await asyncio.sleep(2 * resync_seconds)
    calls = [call for call in audit.calls() if call.user == ADMIN and call.resource != "leases"]
    reads = sum(call.resource == "inferenceservices" and bool(call.name) for call in calls)
    spent = cpu_seconds(operator.pid) - cpu
    return {
        "reads_per_reconciled_service": round(len(calls) / max(reads / 2, 1), 1),
        "writes_at_rest": sum(call.is_write for call in calls),
        "resync_cpu_ms_per_service": round(1000 * spent / max(reads / 2, 1), 1),
    }


def all_seen(count: int) -> Callable[[State], bool]:
    def check(services: State) -> bool:
        seen = (item.get("status", {}).get("observedGeneration") for item in services.values())
        return sum(generation == 1 for generation in seen) == count

    return check


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return round(kib / 1024, 1)


if __name__ == "__main__":
    main()
