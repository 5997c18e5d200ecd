"""`provider: External` with KEDA itself: our sample scales a pool up and to the least again.

Everything is real but the engines: the API server with its aggregation layer, the controller of
HorizontalPodAutoscalers, KEDA's operator and metrics adapter with their own rights, a Prometheus,
our operator. Prometheus scrapes a figure that the test sets.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, Kind, Manifest

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from tests.dashboards.prometheus import Target, scraping
from tests.operator.conftest import OPERATOR_NAMESPACE, OPERATOR_USER
from tests.operator.gitops.test_external_scaling import read
from tests.operator.harness.cluster import Cluster, State, condition
from tests.operator.harness.keda import running_keda
from tests.operator.harness.plane import install
from tests.operator.harness.process import OperatorProcess

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.full,
    pytest.mark.timeout(2 * 3600),  # by itself, it builds KEDA
    pytest.mark.xdist_group("keda"),
]
StartOperator = Callable[..., OperatorProcess]
PATIENCE_SECONDS = 120.0
POOL = "external-prefill"
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects")
HPA = Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
LEAST, MOST = 1, 4
"""Of the sample."""


class QueuedWork:
    """A page of metrics with the seconds of work that wait in all prefill engines."""

    def __init__(self) -> None:
        self.seconds = 0.0
        work = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = f"sluice_queued_work_seconds {work.seconds}\n".encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane whose controller manager scales."""
    with control_plane(["horizontal-pod-autoscaler-controller"]) as running:
        install(running)
        yield running


@pytest.fixture(scope="module")
def operator_kubeconfig(plane: ControlPlane) -> Path:
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]
    return plane.user_kubeconfig(OPERATOR_USER, groups)


@pytest.fixture(scope="module")
def keda(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """KEDA's logs."""
    folder = tmp_path_factory.mktemp("keda") / "keda"
    with running_keda(plane, folder):
        yield folder


@pytest.fixture
def work() -> Iterator[QueuedWork]:
    work = QueuedWork()
    serving = threading.Thread(target=work.server.serve_forever)
    serving.start()
    yield work
    work.server.shutdown()
    serving.join()
    work.server.server_close()


@pytest.fixture
async def stack() -> AsyncIterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


def sample(namespace: str, server: str) -> Manifest:
    """The first ScaledObject of keda.yaml, edited as its head says, and quick to shrink."""
    found = read("keda.yaml")[0]
    text = yaml.safe_dump(found).replace('namespace="default"', f'namespace="{namespace}"')
    edited: Manifest = yaml.safe_load(text)
    edited["metadata"]["namespace"] = namespace
    (trigger,) = edited["spec"]["triggers"]
    trigger["metadata"]["serverAddress"] = server
    behavior = edited["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    behavior["scaleDown"]["stabilizationWindowSeconds"] = 0
    return edited


def replicas(count: int) -> Callable[[State], bool]:
    return lambda pools: POOL in pools and pools[POOL]["spec"]["replicas"] == count


async def test_the_sample_scales_its_pool_up_to_the_least_again_and_to_the_most_without_figures(
    cluster: Cluster,
    namespace: str,
    keda: Path,
    work: QueuedWork,
    stack: ExitStack,
    start_operator: StartOperator,
    tmp_path: Path,
) -> None:
    start_operator()
    (service,) = read("external-service.yaml")
    service["metadata"]["namespace"] = namespace
    await cluster.create(INFERENCE_SERVICE, service)
    await cluster.until(ENGINE_POOL, namespace, replicas(LEAST))
    target = Target(work.url, "a", "prefill", service="external", namespace=namespace)
    prometheus = stack.enter_context(scraping(tmp_path / "prometheus", [target]))
    await cluster.create(SCALED_OBJECT, sample(namespace, prometheus.url))

    made = await cluster.until(HPA, namespace, lambda all_: len(all_) == 1, PATIENCE_SECONDS)
    (spec,) = (hpa["spec"] for hpa in made.values())
    assert spec["scaleTargetRef"] == {
        "apiVersion": ENGINE_POOL.api_version, "kind": ENGINE_POOL.kind, "name": POOL,
    }  # fmt: skip
    assert (spec["minReplicas"], spec["maxReplicas"]) == (LEAST, MOST)
    (metric,) = spec["metrics"]
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": "1"}

    work.seconds = 2.5
    await cluster.until(ENGINE_POOL, namespace, replicas(3), PATIENCE_SECONDS)
    found = await cluster.until(
        INFERENCE_SERVICE,
        namespace,
        lambda all_: condition(all_["external"], "ScalingActive")["reason"] == "ScaledFromOutside",
    )
    assert condition(found["external"], "ScalingActive")["status"] == "Unknown"
    work.seconds = 60.0
    await cluster.until(ENGINE_POOL, namespace, replicas(MOST), PATIENCE_SECONDS)
    work.seconds = 0.0
    await cluster.until(ENGINE_POOL, namespace, replicas(LEAST), PATIENCE_SECONDS)

    stack.close()  # no Prometheus: what the sample says of missing figures
    await cluster.until(ENGINE_POOL, namespace, replicas(MOST), PATIENCE_SECONDS)
