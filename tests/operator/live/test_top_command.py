"""`sluice top` against a cluster, as somebody with the role `view` of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sluice_operator.cli.main import main
from sluice_operator.kube.kinds import INFERENCE_SERVICE, ROLE, ROLE_BINDING

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.scenery import chat, is_ready, play_controllers

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
GROUP = "rbac.authorization.k8s.io"


async def bind(cluster: Cluster, namespace: str, user: str, kind: str, name: str) -> None:
    binding = {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": {"name": name, "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": kind, "name": name},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }
    await cluster.create(ROLE_BINDING, binding)


@pytest.fixture
def user(plane: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose kubeconfig the command uses; may do nothing yet."""
    name = f"viewer-of-{namespace}"
    monkeypatch.setenv("KUBECONFIG", str(plane.user_kubeconfig(name, [])))
    monkeypatch.setenv("COLUMNS", "200")
    return name


async def top(*words: str) -> int:
    return await asyncio.to_thread(main, ["top", *words])


async def test_all_is_shown_and_the_rule_that_view_lacks_is_named(
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    user: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    start_operator()
    await bind(cluster, namespace, user, "ClusterRole", "view")
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await play_controllers(cluster, namespace, router_address="127.0.0.1")
    await cluster.until(INFERENCE_SERVICE, namespace, is_ready())

    assert await top("-n", namespace) == 0
    shown = capsys.readouterr().out
    assert f"{namespace}/chat  Serving  Mixed on CPU  http://chat.{namespace}.svc" in shown
    rows = [line.split() for line in shown.splitlines()]
    assert ["mixed", "1", "of", "1", "ready", *"-----"] in rows
    assert ["ready", *"-----"] in [row[1:] for row in rows]
    assert ["routers", "2", "of", "2", "ready"] in rows
    assert f"no right to get pods/proxy in namespace {namespace}" in shown
    assert '{apiGroups: [""], resources: [pods/proxy], verbs: [get]}' in shown

    role = {
        "apiVersion": ROLE.api_version,
        "kind": ROLE.kind,
        "metadata": {"name": "top", "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]}],
    }
    await cluster.create(ROLE, role)
    await bind(cluster, namespace, user, "Role", "top")
    assert await top("chat", "-n", namespace, "--once") == 0
    shown = capsys.readouterr().out
    assert "no right" not in shown
    # No API server goes to a loopback address, so here it goes no further than the right.
    assert "router chat-router-0" in shown
    assert "reports no load: 400 address not allowed" in shown
    assert "reports no metrics" not in shown


async def test_who_may_not_read_services_gets_the_server_s_words(
    namespace: str, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await top("-n", namespace) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"sluice top: GET /apis/serving.sluice.dev/v1alpha1/namespaces/{namespace}"
    )
    assert f'User "{user}" cannot list resource "inferenceservices"' in said


async def test_a_service_that_is_not_there_is_said(
    cluster: Cluster, namespace: str, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await bind(cluster, namespace, user, "ClusterRole", "view")
    assert await top("gone", "-n", namespace) == 1
    said = f"InferenceService gone is not in namespace {namespace}"
    assert capsys.readouterr().err.strip() == f"sluice top: {said}"
