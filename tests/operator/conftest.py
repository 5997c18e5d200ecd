"""An API server for each worker that runs operator tests, and in it a namespace for each test."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import yaml
from sluice_operator.kube.kinds import ROLE, ROLE_BINDING

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from e2e.cluster.errors import CommandFailedError
from tests.connections import cut_connections
from tests.operator.harness.cluster import NAMESPACE, Cluster
from tests.operator.harness.process import OperatorProcess
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
OPERATOR_NAMESPACE = "sluice-system"
OPERATOR_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:sluice-operator"
LEASE_ROLE = ROOT / "manifests" / "operator" / "lease_role.yaml"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane() -> Iterator[ControlPlane]:
    """etcd, API server and two controllers, with Sluice's kinds, and the rights to them."""
    controllers = ["garbage-collector-controller", "clusterrole-aggregation-controller"]
    with control_plane(controllers) as running:
        install(running)
        yield running


def wait_until_served(running: ControlPlane) -> None:
    """New kinds are not in the index at once, and their first requests are answered with 429."""
    until_done(running, "get", "inferenceservices.serving.sluice.dev,enginepools", "-A")


def install(running: ControlPlane) -> None:
    """Sluice's kinds and rights; returns when the kinds are served."""
    until_done(running, "apply", "--server-side", "-k", str(ROOT / "manifests" / "base"))
    until_done(running, "wait", "--for=condition=Established", "crd", "--all")
    wait_until_served(running)


def until_done(running: ControlPlane, *words: str) -> None:
    """Tries a command of kubectl until it succeeds: an API server that has just started, or has new
    kinds, refuses some requests."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            running.kubectl(*words)
        except CommandFailedError:
            if time.monotonic() > deadline:
                raise
        else:
            return


@pytest.fixture(scope="session")
def operator_kubeconfig(plane: ControlPlane) -> Path:
    """What the operator's ServiceAccount may do, and no more."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]
    return plane.user_kubeconfig(OPERATOR_USER, groups)


@pytest.fixture
async def cluster(plane: ControlPlane) -> AsyncIterator[Cluster]:
    """The API server, for an administrator."""
    opened = Cluster(plane.kubeconfig)
    yield opened
    await opened.close()
    await cut_connections()


@pytest.fixture
async def namespace(cluster: Cluster) -> str:
    """A new namespace, in which operators may hold a Lease of their own."""
    name = f"test-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await cluster.create(NAMESPACE, body)
    role, binding = yaml.safe_load_all(LEASE_ROLE.read_text())
    binding["subjects"][0]["namespace"] = OPERATOR_NAMESPACE
    for kind, manifest in ((ROLE, role), (ROLE_BINDING, binding)):
        manifest["metadata"]["namespace"] = name
        await cluster.create(kind, manifest)
    return name


@pytest.fixture
def start_operator(
    operator_kubeconfig: Path, namespace: str, tmp_path: Path
) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators for the test's namespace, and kills what is left of them afterwards."""
    started: list[OperatorProcess] = []

    def start(name: str = "operator-0", **environment: str) -> OperatorProcess:
        process = OperatorProcess(
            Path(environment.pop("KUBECONFIG", operator_kubeconfig)),
            tmp_path / f"{name}.log",
            POD_NAME=name,
            POD_NAMESPACE=namespace,
            **{"SLUICE_NAMESPACES": namespace, **environment},
        )
        started.append(process)
        process.start()
        return process

    yield start
    for process in started:
        process.kill()
