"""An engine moves to the other pool, on a real API server with Kubernetes' own Deployments and
ReplicaSets. The kubelet is played by hand: no pod that starts later gets ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role
from sluice_operator.apply.events import EVENT
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.autoscale.mover import MANAGER
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, POD, Manifest
from sluice_operator.scaled import MOVED, MOVING

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from tests.operator.autoscale.world import load, row
from tests.operator.conftest import OPERATOR_NAMESPACE, OPERATOR_USER
from tests.operator.harness.cluster import Cluster, State
from tests.operator.harness.fake_router import FakeRouter, fake_router
from tests.operator.harness.plane import CONTROLLERS, install
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Seen, proxying
from tests.operator.harness.scenery import chat, is_ready

pytestmark = [pytest.mark.apiserver, pytest.mark.xdist_group("moved")]
StartOperator = Callable[..., OperatorProcess]
PATIENCE_SECONDS: Final = 90.0
START_SECONDS: Final = 60.0
"""Of an engine, as its pod says."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane whose Deployments have pods."""
    with control_plane([*CONTROLLERS, "deployment-controller", "replicaset-controller"]) as running:
        install(running)
        yield running


@pytest.fixture(scope="module")
def operator_kubeconfig(plane: ControlPlane) -> Path:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]
    return plane.user_kubeconfig(OPERATOR_USER, groups)


@pytest.fixture
async def router() -> AsyncIterator[FakeRouter]:
    async with fake_router() as found:
        yield found


def split(namespace: str, prefill: int, decode: int, *, on_gpus: bool = False) -> Manifest:
    """A service whose pools are to have so many engines. `on_gpus`: of one GPU each, and no more
    GPUs than these."""
    gpus: Manifest = {"accelerator": {"count": 1}} if on_gpus else {}
    budget: Manifest = {"gpuBudget": prefill + decode} if on_gpus else {}
    own, other = ({"minReplicas": size, "maxReplicas": size} for size in (prefill, decode))
    return chat(namespace, autoscaling=other | budget, prefill={"autoscaling": own}, **gpus)


def role_of(pod: Manifest) -> str:
    return str(pod["metadata"]["labels"].get(labels.ROLE))


def counted(prefill: int, decode: int) -> Callable[[State], bool]:
    """Whether there are so many pods of each pool, none of them about to go."""
    sizes = {"prefill": prefill, "decode": decode}
    return lambda pods: (
        sizes == {role: sum(role_of(pod) == role for pod in pods.values()) for role in sizes}
    )


async def gets_ready(cluster: Cluster, pod: Manifest, address: str) -> None:
    """As a kubelet says it of a pod that has started."""
    now = datetime.now(UTC)
    since = {"PodScheduled": now - timedelta(seconds=START_SECONDS), "Ready": now}
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": f"{time:%Y-%m-%dT%H:%M:%SZ}"}
        for kind, time in since.items()
    ]
    status: Manifest = {"phase": "Running", "conditions": conditions}
    if role_of(pod) == "router":
        status["podIP"] = address
    metadata = pod["metadata"]
    await cluster.patch(POD, metadata["namespace"], metadata["name"], {"status": status}, "status")


async def two_pools_that_serve(
    cluster: Cluster, namespace: str, router: FakeRouter, *, on_gpus: bool = False
) -> dict[str, str]:
    """Two prefill engines and one that decodes; the uid of each."""
    await cluster.create(INFERENCE_SERVICE, split(namespace, 2, 1, on_gpus=on_gpus))
    pods = await cluster.until(
        POD, namespace, lambda found: counted(2, 1)(found) and len(found) > 3, PATIENCE_SECONDS
    )
    for pod in pods.values():
        await gets_ready(cluster, pod, router.address)
    engines = {name: pod for name, pod in pods.items() if role_of(pod) in ("prefill", "decode")}
    busy, *_ = sorted(name for name, pod in engines.items() if role_of(pod) == "prefill")
    router.load = load(
        *(
            row(name, role=Role(role_of(pod)), queued_requests=int(name == busy))
            for name, pod in engines.items()
        )
    )
    await cluster.until(INFERENCE_SERVICE, namespace, is_ready(), PATIENCE_SECONDS)
    return {name: pod["metadata"]["uid"] for name, pod in engines.items()}


async def wants_another_split(cluster: Cluster, namespace: str, *, on_gpus: bool = False) -> None:
    spec = split(namespace, 1, 2, on_gpus=on_gpus)["spec"]
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": spec})


async def has_moved(cluster: Cluster, namespace: str, before: dict[str, str]) -> str:
    """Waits for it; the name of the engine."""
    await cluster.until(
        ENGINE_POOL,
        namespace,
        lambda pools: (
            [pools[f"chat-{role}"]["spec"]["replicas"] for role in ("prefill", "decode")] == [1, 2]
            and MOVING not in pools["chat-decode"]["metadata"].get("annotations", {})
        ),
        PATIENCE_SECONDS,
    )
    pods = await cluster.until(POD, namespace, counted(1, 2), PATIENCE_SECONDS)
    uids = {name: pod["metadata"]["uid"] for name, pod in pods.items()}
    assert {name: uids.get(name) for name in before} == before, "no engine that served was ended"
    (moved,) = (pod for pod in pods.values() if MOVED in pod["metadata"].get("annotations", {}))
    pattern = next(pod for pod in pods.values() if role_of(pod) == "decode" and pod is not moved)
    assert moved["metadata"]["labels"] == pattern["metadata"]["labels"]
    owners = [pod["metadata"]["ownerReferences"][0]["uid"] for pod in (moved, pattern)]
    assert owners[0] == owners[1]
    return str(moved["metadata"]["name"])


@pytest.mark.parametrize("on_gpus", [False, True], ids=["on CPUs", "within a budget of GPUs"])
async def test_the_engine_with_the_least_work_goes_to_the_other_pool(
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    router: FakeRouter,
    on_gpus: bool,
) -> None:
    start_operator()
    before = await two_pools_that_serve(cluster, namespace, router, on_gpus=on_gpus)
    assert router.load is not None
    reports = {engine.name: engine.report for engine in router.load.engines}
    (idle,) = (
        name
        for name, report in reports.items()
        if report and report.role is Role.PREFILL and not report.figures.queued_requests
    )
    await wants_another_split(cluster, namespace, on_gpus=on_gpus)
    assert await has_moved(cluster, namespace, before) == idle
    text = f"Engine {idle} moves from pool prefill to pool decode, and takes its role."
    await cluster.until(
        EVENT, namespace, lambda events: any(event["note"] == text for event in events.values())
    )


async def test_operators_that_die_after_each_step_are_continued(
    cluster: Cluster,
    namespace: str,
    operator_kubeconfig: Path,
    start_operator: StartOperator,
    router: FakeRouter,
    tmp_path: Path,
) -> None:
    killed: list[str] = []
    died = asyncio.Event()

    def is_step(seen: Seen) -> bool:
        writes = seen.is_write and seen.query.get("fieldManager") in (REPLICAS_MANAGER, MANAGER)
        return writes and ("/enginepools/" in seen.path or "/pods/" in seen.path)

    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        operator = start_operator(KUBECONFIG=str(kubeconfig))
        before = await two_pools_that_serve(cluster, namespace, router)

        def dies(seen: Seen) -> None:
            if is_step(seen) and len(killed) < 3:
                operator.kill()
                killed.append(seen.path.rpartition("/")[2])
                died.set()

        proxy.after = dies
        await wants_another_split(cluster, namespace)
        for _ in range(3):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await died.wait()
            died.clear()
            operator = start_operator(KUBECONFIG=str(kubeconfig))
        name = await has_moved(cluster, namespace, before)
    assert killed == ["chat-decode", name, "chat-prefill"]
