"""An API server for all operator tests, and in it a namespace for each."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_operator.kube.kinds import ROLE, ROLE_BINDING

from e2e.cluster.controlplane_only import ApiServer, ControlPlane, api_server_at
from tests.connections import cut_connections
from tests.operator.harness.cluster import NAMESPACE, Cluster
from tests.operator.harness.plane import DIRECTORY, OWN_PLANE, ROOT, installed_plane
from tests.operator.harness.process import OperatorProcess

OPERATOR_NAMESPACE = "sluice-system"
OPERATOR_USER = f"system:serviceaccount:{OPERATOR_NAMESPACE}:sluice-operator"
LEASE_ROLE = ROOT / "manifests" / "operator" / "lease_role.yaml"
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def own_plane() -> Iterator[ControlPlane]:
    """The API server of this process alone."""
    with installed_plane() as running:
        yield running


@pytest.fixture(scope="session")
def shared_plane(request: pytest.FixtureRequest) -> ApiServer:
    """That of all workers, where there are some."""
    directory = workerinput(request).get(DIRECTORY)
    if directory is None:
        own: ControlPlane = request.getfixturevalue("own_plane")
        return own
    return api_server_at(Path(directory))


@pytest.fixture
def plane(request: pytest.FixtureRequest) -> ApiServer:
    """An API server with Sluice's kinds, and the rights to them."""
    owns = OWN_PLANE.mark in request.node.iter_markers()
    found: ApiServer = request.getfixturevalue("own_plane" if owns else "shared_plane")
    return found


def workerinput(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = getattr(request.config, "workerinput", {})
    return found


@pytest.fixture
def operator_kubeconfig(plane: ApiServer) -> Path:
    """What the operator's ServiceAccount may do, and no more."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{OPERATOR_NAMESPACE}"]
    return plane.user_kubeconfig(OPERATOR_USER, groups)


@pytest.fixture
async def cluster(plane: ApiServer) -> AsyncIterator[Cluster]:
    """The API server, for an administrator."""
    opened = Cluster(plane.kubeconfig)
    yield opened
    await opened.close()
    await cut_connections()


@pytest.fixture
async def namespace(cluster: Cluster) -> str:
    """A new namespace, in which operators may hold a Lease of their own."""
    name = f"test-{WORKER}{next(_numbers)}"
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
