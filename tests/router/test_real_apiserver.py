"""Discovery against a real API server, with the rights and credentials that a router pod has."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_contract.config.router import Discovery
from sluice_router.attempts import open_session
from sluice_router.discovery import SliceFollower, slice_client
from sluice_router.engines import Fleet, Phase
from sluice_router.kube import in_cluster

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from tests.connections import cut_connections
from tests.patience import PATIENCE_SECONDS
from tests.router.fake_kube import endpoint_slice

pytestmark = [pytest.mark.apiserver, pytest.mark.xdist_group("router-apiserver")]

NAMESPACE = "shop"
DISCOVERY = Discovery(service="chat")
ROLE = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "Role",
    "metadata": {"name": "router", "namespace": NAMESPACE},
    "rules": [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ],
}


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        running.kubectl("create", "namespace", NAMESPACE)
        running.kubectl("create", "-n", NAMESPACE, "serviceaccount", "router")
        running.kubectl("apply", "-f", "-", stdin=json.dumps(ROLE))
        binding = ("--role=router", f"--serviceaccount={NAMESPACE}:router")
        running.kubectl("create", "-n", NAMESPACE, "rolebinding", "router", *binding)
        yield running


@pytest.fixture
def account(plane: ControlPlane, tmp_path: Path) -> Path:
    """What the kubelet mounts into a router pod."""
    token = plane.kubectl("create", "-n", NAMESPACE, "token", "router")
    (tmp_path / "token").write_text(token)
    cluster = yaml.safe_load(plane.kubeconfig.read_text())["clusters"][0]["cluster"]
    authority = base64.b64decode(cluster["certificate-authority-data"])
    (tmp_path / "ca.crt").write_bytes(authority)
    return tmp_path


@asynccontextmanager
async def following(
    plane: ControlPlane, account: Path, sleep: Callable[[float], Any] = asyncio.sleep
) -> AsyncIterator[Fleet]:
    host, _, port = plane.url.removeprefix("https://").partition(":")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    fleet = Fleet(asyncio.get_running_loop().time)
    async with open_session(2.0) as session:
        client = slice_client(session, in_cluster(environ, account), NAMESPACE, DISCOVERY)
        follower = SliceFollower(client, fleet, DISCOVERY, random.Random(1), sleep)
        task = asyncio.create_task(follower.run())
        try:
            yield fleet
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    await cut_connections()


async def sees(fleet: Fleet, **phases: Phase) -> None:
    """Wait until exactly these engines are known, in these phases."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while {e.endpoint.name: e.endpoint.phase for e in fleet.engines()} != phases:
            await fleet.wait_for_change(20)


def apply(plane: ControlPlane, piece: dict[str, Any]) -> None:
    manifest = piece | {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
    plane.kubectl("apply", "-n", NAMESPACE, "-f", "-", stdin=json.dumps(manifest))


async def test_engines_come_and_go_and_an_outage_takes_none(
    plane: ControlPlane, account: Path
) -> None:
    apply(plane, endpoint_slice("one", "a"))
    apply(plane, endpoint_slice("other", "x", role="decode"))
    async with following(plane, account) as fleet:
        await sees(fleet, a=Phase.READY)
        apply(plane, endpoint_slice("two", "b"))
        await sees(fleet, a=Phase.READY, b=Phase.READY)
        leaving = {"ready": False, "serving": True, "terminating": True}
        apply(plane, endpoint_slice("one", ("a", leaving)))
        await sees(fleet, a=Phase.TERMINATING, b=Phase.READY)
        plane.stop_apiserver()
        assert len(fleet.engines()) == 2
        plane.start_apiserver()
        assert len(fleet.engines()) == 2
        plane.kubectl("delete", "-n", NAMESPACE, "endpointslice", "one")
        await sees(fleet, b=Phase.READY)


async def test_a_new_token_is_picked_up(plane: ControlPlane, account: Path) -> None:
    apply(plane, endpoint_slice("two", "b"))
    good = (account / "token").read_text()
    (account / "token").write_text("expired")
    refused, rotated = asyncio.Event(), asyncio.Event()

    async def pause(seconds: float) -> None:
        refused.set()
        await rotated.wait()

    async with following(plane, account, pause) as fleet:
        await asyncio.wait_for(refused.wait(), PATIENCE_SECONDS)
        assert not fleet.discovered
        (account / "token").write_text(good)
        rotated.set()
        await sees(fleet, b=Phase.READY)
