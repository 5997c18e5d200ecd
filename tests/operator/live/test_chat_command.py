"""`sluice chat` against an API server: the rights it needs, and a service that is not there."""

from __future__ import annotations

import asyncio

import pytest
from sluice_operator.cli.main import main

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.cluster import Cluster
from tests.operator.live.test_top_command import bind

pytestmark = pytest.mark.apiserver


@pytest.fixture
def user(plane: ApiServer, namespace: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whose kubeconfig the command uses; may do nothing yet."""
    name = f"talker-of-{namespace}"
    monkeypatch.setenv("KUBECONFIG", str(plane.user_kubeconfig(name, [])))
    return name


async def refusal(capsys: pytest.CaptureFixture[str], namespace: str, *words: str) -> str:
    """What the command says when it fails."""
    status = await asyncio.to_thread(main, ["chat", "chat", "-n", namespace, *words, "hi"])
    said = capsys.readouterr()
    assert (status, said.out) == (1, "")
    return said.err


async def test_the_role_edit_may_chat_and_less_is_named(
    cluster: Cluster, namespace: str, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await bind(cluster, namespace, user, "ClusterRole", "view")
    for words, verb in ((), "get"), (("-m", "tiny"), "create"):
        rule = f'{{apiGroups: [""], resources: [services/proxy], verbs: [{verb}]}}'
        said = await refusal(capsys, namespace, *words)
        assert said == (
            f"sluice chat: no right to {verb} services/proxy in namespace {namespace}; "
            f"a Role needs the rule {rule}\n"
        )
    await bind(cluster, namespace, user, "ClusterRole", "edit")
    gone = f"sluice chat: InferenceService chat is not in namespace {namespace}; `kubectl get"
    for words in (), ("-m", "tiny"):
        assert (await refusal(capsys, namespace, *words)).startswith(gone)
