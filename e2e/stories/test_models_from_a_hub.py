"""A platform engineer names a model of a hub and applies. The hub is in the cluster and counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import FETCH_ROLE, Role

from e2e.cluster.provider import Cluster
from e2e.first_token import stream_answer
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.hub import REPOSITORY, Hub
from e2e.stories.service import (
    KIND,
    MODEL,
    NAMESPACE,
    Service,
    chat_service,
    disaggregated_service,
    own_namespace,
    unix_seconds,
)
from e2e.stories.volume import claimed_volume

URI: Final = f"hf://{REPOSITORY}"
CONTENT: Final = "/lfs/"
"""Path at which the hub has weights."""
OTHER_COMMIT: Final = "decade" * 6 + "4567"
NAMED_WITHIN_SECONDS: Final = 30
EXIT_REFUSED: Final = 2
"""Exit status of the fetcher when trying again does not help."""
QUOTA: Final = {
    "requests.cpu": "1",
    "requests.memory": "4Gi",
    "limits.cpu": "12",
    "limits.memory": "16Gi",
    "pods": "4",
}
"""A quota that admits a pod only if all its containers have requests and limits of cpu and
memory."""
IN_QUOTA: Final[dict[str, Any]] = {
    "requests": {"cpu": "50m", "memory": "256Mi"},
    "limits": {"cpu": "4", "memory": "2Gi"},
}
BRINGS: Final[dict[str, Any]] = {
    "requests": {"cpu": "20m", "memory": "64Mi"},
    "limits": {"cpu": "1", "memory": "512Mi"},
}
"""`model.resources` of a story."""
TOKEN: Final = "hub-token-of-a-story"
PROMPT, ANSWER = make_prompt("copy", 64, seed=5)


@pytest.fixture
def claim(kubectl: Kubectl, installed_images: dict[str, str]) -> Iterator[str]:
    """A claim whose volume nothing else uses."""
    with claimed_volume(kubectl, "hub-story", installed_images["SLUICE_ENGINE_IMAGE"]) as found:
        yield found


@pytest.fixture
def quota(cluster: Cluster, kubectl: Kubectl, installed_images: dict[str, str]) -> Iterator[str]:
    """A namespace with a quota of requests, limits and pods, and a claim of the same name."""
    image = installed_images["SLUICE_ENGINE_IMAGE"]
    with own_namespace(cluster, "hub-quota") as name:
        words = ",".join(f"{key}={value}" for key, value in QUOTA.items())
        kubectl.run("create", "quota", "team", f"--hard={words}", "-n", name)
        with claimed_volume(kubectl, name, image, name):
            yield name


@pytest.fixture
def make(kubectl: Kubectl, hub: Hub) -> Iterator[Callable[[dict[str, Any]], Service]]:
    """Applies a manifest; its service is deleted after the story, and the hub is reset."""
    first = hub.revisions()
    hub.set(token=None)
    made: list[Service] = []

    def applied(manifest: dict[str, Any]) -> Service:
        metadata = manifest["metadata"]
        service = Service(kubectl, metadata["name"], metadata["namespace"])
        made.append(service)
        service.apply(manifest)
        return service

    yield applied
    for service in made:
        service.delete()
        service.wait_until_children_are_gone()
    hub.set(token=None, revisions=first)


def model(**more: Any) -> dict[str, Any]:
    return {"uri": URI, "name": MODEL, **more}


def wait_for(kubectl: Kubectl, service: Service, place: str, value: str) -> None:
    """Waits until status has `value` at `place`."""
    path = f"--for=jsonpath={{.status.{place}}}={value}"
    kubectl.run("wait", path, f"{KIND}/{service.name}", "-n", NAMESPACE, "--timeout=120s")


def answer(cluster: Cluster, service: Service) -> str:
    with reach(cluster, service.namespace, service.name) as url:
        return "".join(stream_answer(url, MODEL, PROMPT.rstrip(), len(ANSWER) + 8))


def selected(kubectl: Kubectl, service: Service, *roles: str) -> list[dict[str, Any]]:
    """Pods of these roles, including pods that have ended."""
    role = f"serving.sluice.dev/role in ({','.join(roles)})"
    selector = f"serving.sluice.dev/service={service.name},{role}"
    words = ("pods", "-n", service.namespace, "-l", selector)
    found: list[dict[str, Any]] = kubectl.get(*words)["items"]
    return found


def test_two_pools_share_one_download_and_a_moved_branch_changes_nothing(
    cluster: Cluster,
    kubectl: Kubectl,
    hub: Hub,
    claim: str,
    make: Callable[[dict[str, Any]], Service],
) -> None:
    before, cached = hub.revisions()["main"], model(cache={"claim": claim})
    service = make(disaggregated_service("hub-pair", 1, 1, model=cached))
    service.wait_for("Ready", "True")
    assert answer(cluster, service) == ANSWER
    assert len(hub.requests(CONTENT)) == 1
    assert service.get()["status"]["model"]["commit"] == before
    assert not any("initContainers" in pod["spec"] for pod in selected(kubectl, service, *Role))

    hub.set(revisions={"main": OTHER_COMMIT, before: before, OTHER_COMMIT: OTHER_COMMIT})
    service.apply(disaggregated_service("hub-pair", 1, 2, model=cached))
    wait_for(kubectl, service, "pools.decode.readyReplicas", "2")
    assert hub.requests() == [], "an engine that starts later asks the hub"
    assert service.get()["status"]["model"]["commit"] == before

    service.apply(disaggregated_service("hub-pair", 1, 2, model=cached | {"refresh": "once"}))
    wait_for(kubectl, service, "model.commit", OTHER_COMMIT)
    service.wait_for("Updated", "True")
    assert hub.requests(CONTENT) == [], "what both commits have is downloaded again"
    assert answer(cluster, service) == ANSWER


def test_two_engines_of_a_bucket_s_model_share_one_download(
    cluster: Cluster,
    kubectl: Kubectl,
    hub: Hub,
    claim: str,
    make: Callable[[dict[str, Any]], Service],
) -> None:
    """The service first lacks credentials, and its condition says so."""
    bucket = model(uri="s3://models/sluice/tiny", cache={"claim": claim})
    service = make(disaggregated_service("bucket-pair", 1, 1, model=bucket))
    condition = service.wait_for_reason("Updated", "AccessDenied")
    assert "credentials" in condition["message"]
    variables = {"env": "AWS_ACCESS_KEY_ID=reader\nAWS_SECRET_ACCESS_KEY=s3cret\n"}
    with secret(kubectl, "bucket-pair", variables):
        with_credentials = bucket | {"tokenSecretRef": {"name": "bucket-pair", "key": "env"}}
        service.apply(disaggregated_service("bucket-pair", 1, 1, model=with_credentials))
        service.wait_for("Ready", "True")
        assert answer(cluster, service) == ANSWER
        weights = [path for path in hub.bucket_requests() if path.endswith(".safetensors")]
        assert weights == ["/models/sluice/tiny/model.safetensors"]


def test_a_quota_of_requests_and_limits_admits_what_brings_the_model(
    cluster: Cluster, kubectl: Kubectl, quota: str, make: Callable[[dict[str, Any]], Service]
) -> None:
    """The quota admits Jobs that fill a claim with default resources, and engines that download
    with `model.resources`."""
    router = {"replicas": 1, "resources": IN_QUOTA}

    def within(**more: Any) -> dict[str, Any]:
        made = chat_service(quota, model=model(**more), resources=IN_QUOTA, router=router)
        return made | {"metadata": {"name": quota, "namespace": quota}}

    service = make(within(cache={"claim": quota}))
    service.wait_for("Updated", "True")
    assert answer(cluster, service) == ANSWER

    service.apply(within(resources=BRINGS))
    service.wait_for("Updated", "True")
    assert answer(cluster, service) == ANSWER
    specs = (pod["spec"] for pod in selected(kubectl, service, *Role))
    bringers = [bringer for spec in specs for bringer in spec.get("initContainers", ())]
    assert [bringer["resources"]["limits"] for bringer in bringers] == [BRINGS["limits"]]


def test_a_wrong_repository_is_named_at_once_and_correcting_it_is_enough(
    cluster: Cluster, kubectl: Kubectl, hub: Hub, make: Callable[[dict[str, Any]], Service]
) -> None:
    service = make(chat_service("hub-wrong", model=model(uri="hf://sluice/nothing")))
    condition = service.wait_for_reason("Updated", "RepositoryNotFound")
    assert "sluice/nothing" in condition["message"]
    stalled = service.condition("Stalled")
    assert stalled["status"] == "True"
    created = service.get()["metadata"]["creationTimestamp"]
    named = unix_seconds(stalled["lastTransitionTime"]) - unix_seconds(created)
    assert named < NAMED_WITHIN_SECONDS
    assert tried_once(kubectl, service)
    service.apply(chat_service("hub-wrong", model=model()))
    service.wait_for("Ready", "True")
    assert answer(cluster, service) == ANSWER
    assert len(hub.requests(CONTENT)) == 1


def test_a_gated_repository_is_named_and_its_token_is_seen_by_nobody_else(
    kubectl: Kubectl, hub: Hub, make: Callable[[dict[str, Any]], Service]
) -> None:
    hub.set(token=TOKEN)
    service = make(chat_service("hub-gated", model=model()))
    condition = service.wait_for_reason("Updated", "AccessDenied")
    assert REPOSITORY in condition["message"]
    assert tried_once(kubectl, service)
    with secret(kubectl, "hub-gated", {"token": TOKEN}):
        with_token = model(tokenSecretRef={"name": "hub-gated", "key": "token"})
        service.apply(chat_service("hub-gated", model=with_token))
        service.wait_for("Ready", "True")
        (pod,) = selected(kubectl, service, *Role)
        (engine,) = pod["spec"]["containers"]
        assert "hub-token" not in {mount["name"] for mount in engine["volumeMounts"]}


@contextmanager
def secret(kubectl: Kubectl, name: str, content: dict[str, str]) -> Iterator[None]:
    made = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "stringData": content,
    }
    kubectl.apply(json.dumps(made))
    try:
        yield
    finally:
        kubectl.run("delete", "secret", name, "-n", NAMESPACE)


def tried_once(kubectl: Kubectl, service: Service) -> bool:
    """Whether a Job has given up after its first pod."""
    (pod,) = selected(kubectl, service, FETCH_ROLE)
    (status,) = pod["status"]["containerStatuses"]
    ended = status["state"]["terminated"]
    return (ended["exitCode"], status["restartCount"]) == (EXIT_REFUSED, 0)
