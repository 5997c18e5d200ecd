"""`sluice rollout` against a cluster, as somebody with the role `edit` of a namespace."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sluice_contract.cluster.labels import CANARY
from sluice_operator.api.conditions import PROGRESSING
from sluice_operator.cli.main import main
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    INFERENCE_SERVICE,
    ROLE_BINDING,
    SERVICE,
    Manifest,
)
from sluice_operator.manifests.deployments import RESTARTED_AT
from sluice_operator.service.revisions.revision import Revision, revisions_of

from e2e.cluster.controlplane_only import ApiServer
from tests.operator.harness.cluster import Cluster, State
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.rest import comes_to_rest
from tests.operator.harness.scenery import chat_that_serves, is_ready, play_controllers

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]
Sluice = Callable[..., Coroutine[Any, Any, int]]
GROUP = "rbac.authorization.k8s.io"


@pytest.fixture
async def sluice(
    plane: ApiServer, cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> Sluice:
    """The command, for a person who may edit what is in the namespace."""
    user = f"editor-of-{namespace}"
    binding = {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": {"name": "edit", "namespace": namespace},
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}],
    }
    await cluster.create(ROLE_BINDING, binding)
    monkeypatch.setenv("KUBECONFIG", str(plane.user_kubeconfig(user, [])))

    async def run(command: str, *words: str) -> int:
        argv = ["rollout", command, "chat", "-n", namespace, *words]
        return await asyncio.to_thread(main, argv)

    return run


@pytest.fixture
async def chat(cluster: Cluster, namespace: str, start_operator: StartOperator) -> None:
    """A service that an operator keeps and that serves."""
    start_operator()
    await chat_that_serves(cluster, namespace)


def complete_ones(found: State) -> list[Revision]:
    kind = {"kind": CONTROLLER_REVISION.kind}  # which items of a list do not have
    return revisions_of(tuple(item | kind for item in found.values())).complete


def newest_chunk(found: State) -> int | None:
    """Of the revision that was complete last."""
    complete = complete_ones(found)
    chunk: int | None = complete[-1].spec.get("engine", {}).get("chunkSize") if complete else None
    return chunk


def recorded(revisions: int, chunk: int | None) -> Callable[[State], bool]:
    return lambda found: len(complete_ones(found)) == revisions and newest_chunk(found) == chunk


async def with_chunk(cluster: Cluster, namespace: str, chunk: int) -> None:
    """The service asks for engines with this chunk, and has them."""
    engine: Manifest = {"spec": {"engine": {"chunkSize": chunk}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", engine)
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await play_controllers(cluster, namespace)
    await cluster.until(INFERENCE_SERVICE, namespace, is_ready())
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 2)


@pytest.mark.usefixtures("chat")
async def test_a_spec_that_was_complete_is_gone_back_to(
    cluster: Cluster,
    namespace: str,
    sluice: Sluice,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await cluster.until(CONTROLLER_REVISION, namespace, recorded(1, None))
    await with_chunk(cluster, namespace, 256)
    await cluster.until(CONTROLLER_REVISION, namespace, recorded(2, 256))
    await comes_to_rest(cluster, namespace)

    assert await sluice("undo", "--dry-run") == 0
    assert (await cluster.get(INFERENCE_SERVICE, namespace, "chat"))["spec"]["engine"]
    assert await sluice("undo") == 0
    assert "chat: back to revision 1, which is revision 3 from now on\n" in capsys.readouterr().out
    assert "engine" not in (await cluster.get(INFERENCE_SERVICE, namespace, "chat"))["spec"]
    waiting = asyncio.create_task(sluice("status", "--timeout", "20s"))
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await play_controllers(cluster, namespace)
    assert await waiting == 0
    assert "Done: AllReady" in capsys.readouterr().out
    await cluster.until(CONTROLLER_REVISION, namespace, recorded(2, None))
    await comes_to_rest(cluster, namespace)

    assert await sluice("history") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["revision", "2", "3"]
    assert lines[-1].endswith("now")


@pytest.mark.usefixtures("chat")
async def test_a_restart_leaves_names_and_settings_as_they_are(
    cluster: Cluster, namespace: str, sluice: Sluice
) -> None:
    await comes_to_rest(cluster, namespace)
    before = await cluster.list(DEPLOYMENT, namespace)
    assert await sluice("restart") == 0
    after = await cluster.until(
        DEPLOYMENT, namespace, lambda found: json.dumps(found).count(f'"{RESTARTED_AT}":') >= 2
    )
    assert after.keys() == before.keys()
    await comes_to_rest(cluster, namespace)


def is_observed(found: State) -> bool:
    """Whether the operator has looked at the present spec."""
    metadata, status = found["chat"]["metadata"], found["chat"].get("status") or {}
    return bool(status.get("observedGeneration") == metadata["generation"])


async def labelled(cluster: Cluster, namespace: str, percent: str | None) -> None:
    """Waits for the canary's share in the label of the pool's Service."""

    def is_so(found: State) -> bool:
        label = found["chat-mixed"]["metadata"]["labels"].get(CANARY)
        return bool((label and label.rpartition(".")[2]) == percent)

    await cluster.until(SERVICE, namespace, is_so)


@pytest.mark.usefixtures("chat")
async def test_a_canary_is_promoted_and_another_one_aborted(
    cluster: Cluster,
    namespace: str,
    sluice: Sluice,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await cluster.until(CONTROLLER_REVISION, namespace, recorded(1, None))
    assert await sluice("promote") == 1
    assert "spec.rollout.canary is not set" in capsys.readouterr().err
    rollout: Manifest = {"rollout": {"canary": {"steps": [25]}}}
    change = rollout | {"engine": {"chunkSize": 256}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", {"spec": change})
    await labelled(cluster, namespace, "0")
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await cluster.until(INFERENCE_SERVICE, namespace, is_observed)
    assert await sluice("promote") == 1
    assert "is not reached" in capsys.readouterr().err
    await play_controllers(cluster, namespace)
    await labelled(cluster, namespace, "25")
    await comes_to_rest(cluster, namespace)
    assert len(await cluster.list(DEPLOYMENT, namespace)) == 3, "nothing of it is ended"
    assert await sluice("status", "--no-watch") == 0
    assert "Canary: CanaryStep: Step 1 of 1, 25 %" in capsys.readouterr().out

    spec = (await cluster.get(INFERENCE_SERVICE, namespace, "chat"))["spec"]
    assert await sluice("promote") == 0
    assert capsys.readouterr().out == "chat: promoted to all requests\n"
    await play_controllers(cluster, namespace)
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 2)
    await labelled(cluster, namespace, None)
    await cluster.until(CONTROLLER_REVISION, namespace, recorded(2, 256))
    assert (await cluster.get(INFERENCE_SERVICE, namespace, "chat"))["spec"] == spec

    bad: Manifest = {"spec": {"engine": {"chunkSize": 128}}}
    await cluster.patch(INFERENCE_SERVICE, namespace, "chat", bad)
    await cluster.until(DEPLOYMENT, namespace, lambda found: len(found) == 3)
    await play_controllers(cluster, namespace)
    await cluster.until(INFERENCE_SERVICE, namespace, progressing("CanaryStep"))
    assert await sluice("abort") == 0
    await cluster.until(INFERENCE_SERVICE, namespace, progressing("CanaryAborted"))
    await labelled(cluster, namespace, "0")
    await cluster.until(
        DEPLOYMENT,
        namespace,
        lambda found: any(item["spec"]["replicas"] == 0 for item in found.values()),
    )
    await play_controllers(cluster, namespace)
    await labelled(cluster, namespace, None)
    await comes_to_rest(cluster, namespace)
    assert await sluice("status") == 1
    assert "Stopped: CanaryAborted" in capsys.readouterr().out


def progressing(reason: str) -> Callable[[State], bool]:
    def is_so(found: State) -> bool:
        status = found["chat"].get("status") or {}
        return (find(status, PROGRESSING) or {}).get("reason") == reason

    return is_so


async def test_what_is_not_there_is_said(
    cluster: Cluster, namespace: str, sluice: Sluice, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await sluice("status") == 1
    said = f"InferenceService chat is not in namespace {namespace}"
    assert capsys.readouterr().err.strip() == f"sluice rollout status: {said}"
