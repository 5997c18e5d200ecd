"""The operator killed between any two calls: what it left half done, the next one finishes.

Reads change nothing, so the places that differ are those after each write. The sweep kills a
reconcile there; a few kills of the whole process show that nothing else keeps state.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sluice_operator.kube.connection import Request, Response, Transport
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.conftest import WORKER
from tests.operator.harness.cluster import NAMESPACE, Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Proxy, Seen, proxying
from tests.operator.harness.rest import (
    EXISTS,
    CountingTransport,
    Reconciler,
    comes_to_rest,
    snapshot,
)
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
EDIT = {"spec": {"engine": {"chunkSize": 128}, "router": {"replicas": 3}}}
"""Brings another ConfigMap, another revision and another Deployment; the former ones go."""
_numbers = itertools.count(1)


class Killed(BaseException):
    """Ends a reconcile as a SIGKILL would: no handler of errors sees it."""


class DyingTransport:
    """Carries out `writes` write requests, and dies before the answer to the last arrives."""

    def __init__(self, inner: Transport, writes: int) -> None:
        self._inner = inner
        self._left = writes

    async def send(self, request: Request) -> Response:
        response = await self._inner.send(request)
        if request.method != "GET" and response.status != EXISTS:
            self._left -= 1
            if self._left == 0:
                raise Killed
        return response


async def new_namespace(cluster: Cluster) -> str:
    name = f"sweep-{WORKER}{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await cluster.create(NAMESPACE, body)
    return name


async def reconcile_to_rest(cluster: Cluster, namespace: str, operator: str | None = None) -> int:
    """A new process's reconciles, until one writes nothing; how many writes that took."""
    transport = CountingTransport(cluster.transport)
    reconciler = Reconciler(transport)
    while True:
        before = len(transport.writes)
        await reconciler.once(namespace, operator=operator)
        if len(transport.writes) == before:
            return before


async def die_after(cluster: Cluster, namespace: str, writes: int) -> bool:
    """Reconciles until the given write; False when it was at rest before."""
    reconciler = Reconciler(DyingTransport(cluster.transport, writes))
    try:
        for _ in range(5):
            await reconciler.once(namespace)
    except Killed:
        return True
    return False


@pytest.mark.parametrize("change", ["create", "edit"])
async def test_a_kill_after_any_write_is_made_good(cluster: Cluster, change: str) -> None:
    undisturbed = await new_namespace(cluster)
    await begin(cluster, undisturbed, change)
    writes = await reconcile_to_rest(cluster, undisturbed)
    expected = await snapshot(cluster, undisturbed)
    kinds = Counter(name.split()[0] for name in expected)
    assert (kinds["Deployment"], kinds["ConfigMap"]) == (2, 2), "nothing of a former revision"
    for number in range(1, writes + 1):
        namespace = await new_namespace(cluster)
        await begin(cluster, namespace, change)
        assert await die_after(cluster, namespace, number)
        await reconcile_to_rest(cluster, namespace)
        assert_same(expected, await snapshot(cluster, namespace), f"write {number}")
    print(f"{change}: killed after each of {writes} writes")


async def begin(cluster: Cluster, namespace: str, change: str) -> None:
    """A service that has just been created, or one at rest that has just been edited."""
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    if change == "edit":
        await reconcile_to_rest(cluster, namespace)
        await cluster.patch(INFERENCE_SERVICE, namespace, "chat", EDIT)


def assert_same(expected: dict[str, Manifest], found: dict[str, Manifest], when: str) -> None:
    assert found.keys() == expected.keys(), when
    for name, item in expected.items():
        assert found[name] == item, (when, name)


async def kill_after(proxy: Proxy, operator: OperatorProcess, writes: int) -> None:
    """SIGKILL when the given write has been answered, and before the process hears of it."""
    proxy.seen.clear()

    def kill(seen: Seen) -> None:
        if seen.is_write and len(proxy.writes()) >= writes:
            operator.kill()

    proxy.after = kill
    assert await operator.exited() == -9
    proxy.after = lambda seen: None


@pytest.mark.parametrize(
    "every", [8, pytest.param(1, marks=[pytest.mark.full, pytest.mark.timeout(900)])]
)
async def test_a_process_killed_after_a_write_is_made_good_by_the_next(
    plane: ApiServer,
    cluster: Cluster,
    operator_kubeconfig: Path,
    namespace: str,
    start_operator: StartOperator,
    tmp_path: Path,
    every: int,
) -> None:
    undisturbed = await new_namespace(cluster)
    await begin(cluster, undisturbed, "create")
    writes = await reconcile_to_rest(cluster, undisturbed, namespace)
    expected = await snapshot(cluster, undisturbed)
    async with proxying(operator_kubeconfig, tmp_path) as (proxy, kubeconfig):
        for number in range(1, writes + 1, every):
            target = await new_namespace(cluster)
            await begin(cluster, target, "create")
            settings = {"KUBECONFIG": str(kubeconfig), "SLUICE_NAMESPACES": target}
            operator = start_operator(**settings)
            await kill_after(proxy, operator, number)
            operator = start_operator(**settings)
            await cluster.until(INFERENCE_SERVICE, target, settled())
            await comes_to_rest(cluster, target, operator=namespace)
            operator.kill()
            assert_same(expected, await snapshot(cluster, target), f"write {number}")
