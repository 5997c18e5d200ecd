"""A platform engineer adds an adapter to a service and takes another away, under load, from a
volume or a hub: no engine restarts, and clients of the model notice nothing."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any, Final

import httpx
import pytest
from sluice_contract.cluster.labels import Role

from e2e.cluster.provider import Cluster
from e2e.install import ROOT
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.adapters import adapter_files
from e2e.stories.hub import Hub
from e2e.stories.load import CLIENTS, load
from e2e.stories.pods import poll
from e2e.stories.service import MODEL, NAMESPACE, Service, chat_service
from e2e.stories.volume import claimed_volume

CONFIG: Final = ROOT / "e2e" / "model" / "sluice-tiny" / "config.json"
PROMPT, _ = make_prompt("copy", 64, seed=5)
BROUGHT_SECONDS: Final = 240
"""Seconds until adapters are loaded: the kubelet brings a ConfigMap within two minutes."""
ROUTERS_MET: Final = 8
"""Number of connections that almost certainly reach both of two routers."""
ENGINE: Final = {"dtype": "float32", "kvPoolTokens": 16384, "maxLorasPerBatch": 2}


@pytest.fixture
def claim(kubectl: Kubectl, installed_images: dict[str, str]) -> Iterator[str]:
    """A claim with the adapters `poems` and `law` of the small model."""
    image = installed_images["SLUICE_ENGINE_IMAGE"]
    with claimed_volume(kubectl, "adapters-story", image) as found:
        filled(kubectl, found, image)
        yield found


@pytest.fixture
def hub_claim(kubectl: Kubectl, installed_images: dict[str, str]) -> Iterator[str]:
    """An empty claim for downloads."""
    image = installed_images["SLUICE_ENGINE_IMAGE"]
    with claimed_volume(kubectl, "adapters-cache", image) as found:
        yield found


@pytest.fixture
def service(kubectl: Kubectl) -> Iterator[Service]:
    made = Service(kubectl, "adapted")
    yield made
    made.delete()
    made.wait_until_children_are_gone()


def filled(kubectl: Kubectl, claim: str, image: str) -> None:
    """Fills the claim with the adapters: a pod copies them from a ConfigMap."""
    config = json.loads(CONFIG.read_text())
    data, items = {}, []
    for seed, name in enumerate(("poems", "law")):
        for file, content in adapter_files(config, seed).items():
            data[f"{name}.{file}"] = base64.b64encode(content).decode()
            items.append({"key": f"{name}.{file}", "path": f"{name}/{file}"})
    metadata = {"name": claim, "namespace": NAMESPACE}
    files = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}
    container = {
        "name": "fill",
        "image": image,
        "command": ["cp", "-rL", "/files/poems", "/files/law", "/volume"],
        "volumeMounts": [
            {"name": "files", "mountPath": "/files"},
            {"name": "volume", "mountPath": "/volume"},
        ],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "files", "configMap": {"name": claim, "items": items}},
            {"name": "volume", "persistentVolumeClaim": {"claimName": claim}},
        ],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    kubectl.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [files, pod]}))
    try:
        ended = "--for=jsonpath={.status.phase}=Succeeded"
        kubectl.run("wait", ended, f"pod/{claim}", "-n", NAMESPACE, "--timeout=60s")
    finally:
        kubectl.run("delete", f"pod/{claim}", f"configmap/{claim}", "-n", NAMESPACE)


def serve(service: Service, claim: str, *names: str) -> None:
    """Applies the service with these adapters of the claim."""
    adapters = [{"name": name, "uri": f"pvc://{claim}/{name}"} for name in names]
    model = {"uri": "file:///models/sluice-tiny", "name": MODEL, "adapters": adapters}
    service.apply(chat_service(service.name, model=model, engine=ENGINE))


def ask(url: str, model: str) -> httpx.Response:
    body = {"model": model, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60, trust_env=False)


def text(url: str, model: str) -> str:
    answer = ask(url, model)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def engines(kubectl: Kubectl, service: Service) -> dict[str, Any]:
    """Restarts of the service's engines, by pod."""
    selector = f"serving.sluice.dev/service={service.name},serving.sluice.dev/role={Role.MIXED}"
    found = kubectl.get("pods", "-n", NAMESPACE, "-l", selector)["items"]
    return {
        pod["metadata"]["name"]: [
            each["restartCount"] for each in pod["status"]["containerStatuses"]
        ]
        for pod in found
    }


def served_after(url: str, name: str, status: int) -> float:
    """Seconds until both routers answer requests for this adapter with `status`."""
    began = time.monotonic()

    def everywhere() -> bool:
        return all(ask(url, name).status_code == status for _ in range(ROUTERS_MET))

    assert poll(everywhere, BROUGHT_SECONDS), ask(url, name).text
    return time.monotonic() - began


@pytest.mark.full
def test_adapters_of_a_hub_are_downloaded_beside_engines_that_serve(
    cluster: Cluster, kubectl: Kubectl, hub: Hub, hub_claim: str, service: Service
) -> None:
    commit = hub.revisions()["main"]
    cached = {"uri": "file:///models/sluice-tiny", "name": MODEL, "cache": {"claim": hub_claim}}

    def serve_with(**repositories: str) -> None:
        adapters = [{"name": name, "uri": f"hf://{uri}"} for name, uri in repositories.items()]
        model = cached | {"adapters": adapters}
        service.apply(chat_service(service.name, model=model, engine=ENGINE))

    serve_with()
    service.wait_for("Updated", "True")
    before = engines(kubectl, service)
    serve_with(poems="sluice/poems", law=f"sluice/law@{commit}", prose="sluice/nothing")
    failed = service.wait_for_reason("AdaptersLoaded", "RepositoryNotFound")
    assert "prose is not downloaded: hf://sluice/nothing" in failed["message"]
    with reach(cluster, NAMESPACE, service.name) as url:
        for name in ("poems", "law"):
            served_after(url, name, 200)
        answers = {text(url, name) for name in (MODEL, "poems", "law")}
        assert len(answers) == 3
    assert service.condition("Updated")["status"] == "True"
    there = {each["name"]: each["commit"] for each in service.get()["status"]["adapters"]}
    assert there == {"poems": commit, "law": commit}
    serve_with(poems="sluice/poems", law=f"sluice/law@{commit}")
    service.wait_for("AdaptersLoaded", "True")
    assert engines(kubectl, service) == before, "no engine has restarted"


@pytest.mark.full
def test_adapters_come_and_go_under_load_without_a_restart(
    cluster: Cluster, kubectl: Kubectl, claim: str, service: Service
) -> None:
    serve(service, claim, "poems")
    service.wait_for("Updated", "True")
    service.wait_for("AdaptersLoaded", "True")
    before = engines(kubectl, service)
    with reach(cluster, NAMESPACE, service.name) as url, load(url) as tally:
        tally.wait_for_more(CLIENTS)
        base, poems = text(url, MODEL), text(url, "poems")
        assert base != poems
        assert ask(url, "law").status_code == 404

        serve(service, claim, "poems", "law")
        print(f"from the edit to an answer of a new adapter: {served_after(url, 'law', 200):.0f} s")
        assert text(url, "law") not in {base, poems}
        assert text(url, "poems") == poems

        serve(service, claim, "law")
        print(f"from the edit to no adapter any more: {served_after(url, 'poems', 404):.0f} s")
        error = ask(url, "poems").json()["error"]
        assert error["code"] == "model_not_found"
        assert "poems" in error["message"]
        assert text(url, MODEL) == base
        service.wait_for("AdaptersLoaded", "True")
        tally.wait_for_more(CLIENTS)
        assert tally.wrong == []
    assert engines(kubectl, service) == before, "no engine has restarted"
