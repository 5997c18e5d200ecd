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


async def refusal(
    capsys: pytest.CaptureFixture[str], status: int, namespace: str, *words: str
) -> str:
    """The command's message when it fails with this exit status."""
    ended = await asyncio.to_thread(main, ["chat", "chat", "-n", namespace, *words, "hi"])
    written = capsys.readouterr()
    assert (ended, written.out) == (status, "")
    return written.err


async def test_the_role_edit_may_chat_and_less_is_named(
    cluster: Cluster, namespace: str, user: str, capsys: pytest.CaptureFixture[str]
) -> None:
    await bind(cluster, namespace, user, "ClusterRole", "view")
    for words, verb in ((), "get"), (("-m", "tiny"), "create"):
        rule = f'{{apiGroups: [""], resources: [services/proxy], verbs: [{verb}]}}'
        said = await refusal(capsys, 2, namespace, *words)
        assert said == (
            f"sluice chat: no right to {verb} services/proxy in namespace {namespace}; "
            f"a Role needs the rule {rule}\n"
        )
    await bind(cluster, namespace, user, "ClusterRole", "edit")
    gone = f"sluice chat: InferenceService chat is not in namespace {namespace}; `kubectl get"
    for words in (), ("-m", "tiny"):
        assert (await refusal(capsys, 1, namespace, *words)).startswith(gone)
