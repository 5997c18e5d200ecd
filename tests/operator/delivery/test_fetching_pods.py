"""What containers that fetch are given of a company's network and of processors and memory, and
Jobs of the pools' templates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_fetch.__main__ import _parse
from sluice_operator.api.base import Resources
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.quantities import is_at_most
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.template import RESERVED_CONTAINERS
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest
from sluice_operator.manifests.engine import engine_deployment
from sluice_operator.manifests.hub import HubAccess
from sluice_operator.manifests.metadata import owner
from sluice_operator.manifests.pods import bringing_resources
from sluice_operator.service.observe import Installation
from sluice_operator.service.revisions.parts import engine_part

from tests.operator.delivery.world import World
from tests.operator.examples import of
from tests.operator.model_pods import COMMIT, resolved, said

HUB: Manifest = {"uri": "hf://Qwen/Qwen3-8B"}
CACHED: Manifest = HUB | {"cache": {"size": "20Gi"}}
NETWORK = HubAccess(https_proxy="http://proxy:3128", no_proxy="a,b", certificates="PEM")
BEHIND = Installation(hub=NETWORK)


def served(spec: Manifest, installation: Installation) -> tuple[World, list[Manifest]]:
    """A service with engines, and the specs of the pods in which something is fetched, each with
    the container that does alone."""
    world, pods = World(spec, installation=installation), {}
    for _ in range(6):
        world.reconcile()
        for job in (child for (kind, _), child in world.children.items() if kind == "Job"):
            name = job["metadata"]["name"]
            pods[name] = job["spec"]["template"]["spec"]
            world.ends(0, resolved() if "resolve" in name else said("ModelFetched", COMMIT))
    pool = of(world.children.values(), "EnginePool")
    made = engine_deployment(owner(ENGINE_POOL, pool, "chat"), parse_pool(pool))
    engine = made["spec"]["template"]["spec"]
    if first := engine.get("initContainers"):
        pods["engine"] = {**engine, "containers": first}
    return world, list(pods.values())


def parse_pool(pool: Manifest) -> EnginePoolSpec:
    return EnginePoolSpec.model_validate(pool["spec"])


@pytest.mark.parametrize("model", [HUB, CACHED])
def test_every_container_that_fetches_has_proxies_and_authorities(model: Manifest) -> None:
    world, pods = served({"model": model}, BEHIND)
    assert len(pods) == 2
    kept = world.children["ConfigMap", "chat-hub-ca"]["data"]
    for pod in pods:
        (container,) = pod["containers"]
        variables = {each["name"]: each.get("value") for each in container["env"]}
        assert variables["HTTPS_PROXY"] == NETWORK.https_proxy
        assert variables["NO_PROXY"] == NETWORK.no_proxy
        assert "HTTP_PROXY" not in variables
        (mount,) = (m for m in container["volumeMounts"] if m["name"] == "sluice-hub-ca")
        (volume,) = (v for v in pod["volumes"] if v["name"] == "sluice-hub-ca")
        assert volume["configMap"]["name"] == "chat-hub-ca"
        (key,) = kept
        options = _parse(container["args"])
        assert str(options.ca_file) == f"{mount['mountPath']}/{key}"


def test_a_volume_of_the_template_may_be_called_hub_ca() -> None:
    volume = {"name": "hub-ca", "emptyDir": {}}
    spec = {"model": HUB, "template": {"volumes": [volume]}}
    _, (_, engine) = served(spec, BEHIND)
    names = [each["name"] for each in engine["volumes"]]
    assert "hub-ca" in names
    assert len(names) == len(set(names))


def test_other_certificates_change_no_pod_and_none_leave_nothing_behind() -> None:
    world, _ = served({"model": HUB}, BEHIND)
    before = world.revisions()
    world.installation = Installation(hub=HubAccess(**{**vars(NETWORK), "certificates": "NEW"}))
    world.reconcile()
    assert world.children["ConfigMap", "chat-hub-ca"]["data"] == {"ca.crt": "NEW"}
    assert world.revisions() == before
    plain, pods = served({"model": CACHED}, Installation())
    assert ("ConfigMap", "chat-hub-ca") not in plain.children
    assert not any("HTTPS_PROXY" in str(pod) or "hub-ca" in str(pod) for pod in pods)


def test_engines_that_keep_their_proxy_reach_it_under_other_settings() -> None:
    world, _ = served({"model": HUB}, BEHIND)
    new = HubAccess("https://hub.corp:8443", https_proxy="http://new:8080")
    world.installation = Installation(hub=new)
    world.reconcile()
    fetch = of(world.children.values(), "EnginePool")["spec"]["fetch"]
    assert fetch["network"]["httpsProxy"] == NETWORK.https_proxy
    (_, hub) = world.children["NetworkPolicy", "chat-fetch"]["spec"]["egress"]
    assert [each["port"] for each in hub["ports"]] == [443, 3128, 8080, 8443]


def test_engines_that_mount_authorities_keep_them_when_the_operator_has_none_any_more() -> None:
    world, _ = served({"model": HUB}, BEHIND)
    world.installation = Installation()
    for _ in range(2):
        world.reconcile()
        assert world.children["ConfigMap", "chat-hub-ca"]["data"] == {"ca.crt": "PEM"}
    world.spec = world.spec | {"engine": {"drainSeconds": 7}}
    for _ in range(2):
        world.reconcile()
    assert ("ConfigMap", "chat-hub-ca") not in world.children


def job_of(spec: dict[str, Any]) -> Manifest:
    """The pod template of the Job that resolves the model."""
    world = World({"model": HUB, **spec})
    world.reconcile()
    template: Manifest = world.job()["spec"]["template"]
    return template


TOLERATION = {"key": "team", "value": "a", "effect": "NoSchedule"}


def test_a_job_runs_where_and_as_the_pods_of_its_only_pool() -> None:
    template = {
        "imagePullSecrets": [{"name": "registry"}],
        "tolerations": [TOLERATION],
        "nodeSelector": {"disk": "fast"},
        "labels": {"team": "a"},
        "annotations": {"sidecar.istio.io/inject": "false"},
        "priorityClassName": "serving",
    }
    found = job_of({"template": template, "accelerator": {"count": 1}})
    pod, metadata = found["spec"], found["metadata"]
    assert pod["imagePullSecrets"] == template["imagePullSecrets"]
    assert pod["tolerations"][0] == TOLERATION
    assert "nvidia.com/gpu" in {each["key"] for each in pod["tolerations"]}
    assert pod["nodeSelector"] == template["nodeSelector"]
    assert metadata["annotations"] == template["annotations"]
    assert "team" not in metadata["labels"], "what selects engines by it selects no download"
    assert metadata["labels"]["serving.sluice.dev/fetches"] == "true"
    assert "priorityClassName" not in pod


def test_of_two_pools_a_job_takes_what_suits_both() -> None:
    shared = {"imagePullSecrets": [{"name": "registry"}], "tolerations": [TOLERATION]}
    other = {"key": "big", "operator": "Exists", "effect": "NoSchedule"}
    prefill = shared | {"nodeSelector": {"zone": "a", "gpu": "big"}}
    decode = {
        "nodeSelector": {"zone": "a", "gpu": "small"},
        "imagePullSecrets": [{"name": "registry"}, {"name": "more"}],
        "tolerations": [TOLERATION, other],
    }
    pod = job_of({"template": decode, "prefill": {"template": prefill}})["spec"]
    assert pod["nodeSelector"] == {"zone": "a"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}, {"name": "more"}]
    assert pod["tolerations"] == [TOLERATION, other]


def test_without_templates_a_job_is_as_it_was() -> None:
    found = job_of({})
    assert "annotations" not in found["metadata"]
    assert not {"nodeSelector", "tolerations", "imagePullSecrets"} & found["spec"].keys()


def test_jobs_of_adapters_are_given_the_same() -> None:
    adapters = [{"name": "sql", "uri": "hf://org/sql"}]
    model = {"uri": "dummy://tiny", "cache": {"claim": "cache"}, "adapters": adapters}
    template = {"tolerations": [TOLERATION]}
    spec = {"model": model, "template": template}
    world = World(spec, installation=BEHIND)
    world.reconcile()
    pod = world.job()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "HTTPS_PROXY", "value": NETWORK.https_proxy} in container["env"]
    assert "--ca-file" in container["args"]
    assert pod["tolerations"] == [TOLERATION]
    assert ("ConfigMap", "chat-hub-ca") in world.children


AMOUNTS: Manifest = {
    "requests": {"cpu": "1", "memory": "2Gi"},
    "limits": {"cpu": "2", "memory": "3Gi"},
}
BESIDE: Manifest = {
    "sidecars": [{"name": "beside", "image": "a", "resources": AMOUNTS}],
    "initContainers": [{"name": "before", "image": "a", "resources": AMOUNTS}],
}
SIZED: Manifest = {
    "resources": AMOUNTS,
    "template": BESIDE,
    "router": {"resources": AMOUNTS, "template": {"sidecars": BESIDE["sidecars"]}},
}
"""A service that says of each container of its own what it takes."""
BROUGHT: dict[str, Manifest] = {
    "nothing": {"uri": "dummy://a"},
    "a hub by each engine": HUB,
    "a hub to a claim": CACHED,
    "a bucket": {"uri": "s3://models/a", "cache": {"claim": "c"}},
    "an image": {"uri": "oci://registry/a:1"},
    "an adapter": {
        "uri": "dummy://a",
        "cache": {"claim": "c"},
        "adapters": [{"name": "sql", "uri": "hf://org/sql"}],
    },
}
QUOTA = [(part, name) for part in ("requests", "limits") for name in ("cpu", "memory")]


def containers_of(spec: Manifest) -> list[tuple[str, Manifest]]:
    """Every container of every pod that is made of a service from its first moment on: its name
    and its resources."""
    world, pods = served(spec, Installation())
    engine = of(world.children.values(), "EnginePool")
    mounted = parse_pool(engine)
    if mounted.model_image is not None:
        image = mounted.model_image.model_copy(update={"mounted": True})
        mounted = mounted.model_copy(update={"model_image": image})
    for pool in (parse_pool(engine), mounted):
        made = engine_deployment(owner(ENGINE_POOL, engine, "chat"), pool)
        pods.append(made["spec"]["template"]["spec"])
    pods.append(of(world.children.values(), "Deployment")["spec"]["template"]["spec"])
    every = [c for pod in pods for c in (*pod.get("initContainers", ()), *pod["containers"])]
    return [(container["name"], container.get("resources", {})) for container in every]


@pytest.mark.parametrize("model", BROUGHT.values(), ids=BROUGHT)
def test_a_quota_of_processors_and_memory_admits_every_container(model: Manifest) -> None:
    for name, resources in containers_of(SIZED | {"model": model}):
        missing = [(part, what) for part, what in QUOTA if what not in resources.get(part, {})]
        assert not missing, name


def test_these_are_all_containers_there_are() -> None:
    names = {
        name for model in BROUGHT.values() for name, _ in containers_of(SIZED | {"model": model})
    }
    assert names == {*RESERVED_CONTAINERS, "beside", "before"}


@pytest.mark.parametrize("model", list(BROUGHT.values())[1:], ids=list(BROUGHT)[1:])
def test_containers_that_bring_models_take_what_model_resources_says(model: Manifest) -> None:
    brings = {*RESERVED_CONTAINERS} - {"engine", "router"}
    containers = containers_of({"model": model | {"resources": AMOUNTS}})
    bringing = [resources for name, resources in containers if name in brings]
    assert bringing
    assert all(resources == AMOUNTS for resources in bringing)


@given(
    requests=st.dictionaries(st.sampled_from(["cpu", "memory", "a/b"]), st.integers(0, 2**33)),
    limits=st.dictionaries(st.sampled_from(["cpu", "memory", "a/b"]), st.integers(0, 2**33)),
)
def test_a_default_gives_way_to_what_it_would_contradict(
    requests: dict[str, int], limits: dict[str, int]
) -> None:
    requests = {name: min(value, limits.get(name, value)) for name, value in requests.items()}
    own = Resources.model_validate({"requests": requests, "limits": limits})
    result = bringing_resources(own)
    assert result["requests"].items() >= requests.items()
    assert result["limits"].items() >= limits.items()
    for part, name in QUOTA:
        assert name in result[part]
    for name, value in result["requests"].items():
        assert is_at_most(value, result["limits"].get(name, value)), name


def test_resources_of_downloads_restart_only_engines_that_download() -> None:
    for model, restarts in ((HUB, True), (CACHED, False), (BROUGHT["an image"], True)):
        inputs = [
            engine_part(InferenceServiceSpec.model_validate({"model": model | more}), Role.MIXED)
            for more in ({}, {"resources": AMOUNTS})
        ]
        assert (inputs[0] != inputs[1]) == restarts, model
