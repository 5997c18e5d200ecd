"""Rules that every child obeys, whatever the service asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.api.base import ApiModel
from sluice_operator.api.environment import EnvVar, VolumeMount
from sluice_operator.cli.preview import preview
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import ENGINE, with_applied_fields
from sluice_operator.pool.plan import plan_pool

from tests.operator.api.documents import document
from tests.operator.examples import FULL_SPEC, IMAGES, of, pool, pool_observed

LONGEST = "a" * 40


def _rendered(spec: Manifest, name: str = "chat") -> tuple[Manifest, ...]:
    return preview(document(spec, name), IMAGES).manifests


TWO_POOLS: Manifest = {"prefill": {}}


@pytest.fixture(params=[{}, FULL_SPEC, TWO_POOLS], ids=["minimal", "full", "two pools"])
def manifests(request: pytest.FixtureRequest) -> tuple[Manifest, ...]:
    return _rendered(request.param)


def _pods(manifests: tuple[Manifest, ...]) -> Iterator[Manifest]:
    return (m["spec"]["template"] for m in manifests if m["kind"] == "Deployment")


def test_pods_obey_the_restricted_standard(manifests: tuple[Manifest, ...]) -> None:
    for pod in _pods(manifests):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("spec", [{}, TWO_POOLS], ids=["one pool", "two pools"])
def test_a_template_may_name_nothing_that_the_operator_sets_itself(spec: Manifest) -> None:
    """The API server answers 500 to an apply that names an entry of a list twice."""
    for pod in _pods(_rendered(spec)):
        (container,) = pod["spec"]["containers"]
        if container["name"] != ENGINE:
            continue
        for entry in container["env"]:
            _refused(EnvVar(name=entry["name"]))
        for entry in container["volumeMounts"]:
            _refused(VolumeMount(name="own", mount_path=entry["mountPath"]))


def _refused(entry: ApiModel) -> None:
    assert not all(rule.holds(entry) for rule in entry.RULES), entry


@pytest.mark.parametrize(
    ("given", "disk"),
    [
        (None, "64Mi"),
        ({"limits": {"memory": "1Gi"}}, "64Mi"),
        ({"requests": {"ephemeral-storage": "0"}}, "0"),
        ({"limits": {"ephemeral-storage": "1Gi"}}, None),
    ],
)
def test_a_router_asks_for_its_disk_unless_its_resources_say_something_of_it(
    given: Manifest | None, disk: str | None
) -> None:
    """As an engine does."""
    spec: Manifest = {"router": {"resources": given} if given else {}}
    (pod,) = (
        pod for pod in _pods(_rendered(spec)) if pod["spec"]["containers"][0]["name"] != ENGINE
    )
    requests = pod["spec"]["containers"][0]["resources"].get("requests", {})
    assert requests.get("ephemeral-storage") == disk


def test_only_routers_get_a_token(manifests: tuple[Manifest, ...]) -> None:
    tokens = {
        m["metadata"]["labels"][labels.ROLE]: m["spec"]["template"]["spec"][
            "automountServiceAccountToken"
        ]
        for m in manifests
        if m["kind"] == "Deployment"
    }
    assert tokens.pop("router") is True
    assert set(tokens) in ({"mixed"}, {"prefill", "decode"})
    assert set(tokens.values()) == {False}


def test_a_router_may_read_endpoint_slices_and_nothing_else(
    manifests: tuple[Manifest, ...],
) -> None:
    assert of(manifests, "Role")["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]


def test_every_child_carries_every_label(manifests: tuple[Manifest, ...]) -> None:
    for manifest in manifests:
        found = manifest["metadata"]["labels"]
        assert found[labels.SERVICE] == found[labels.INSTANCE] == "chat"
        assert found[labels.MANAGED_BY] == labels.MANAGED_BY_OPERATOR
        assert found.keys() >= {labels.NAME, labels.COMPONENT, labels.PART_OF}


def test_selectors_match_the_pods_they_are_for(manifests: tuple[Manifest, ...]) -> None:
    pods = [pod["metadata"]["labels"] for pod in _pods(manifests)]
    for manifest in manifests:
        selector = _selector(manifest)
        if selector is not None:
            matched = [pod for pod in pods if selector.items() <= pod.items()]
            all_engines = manifest["metadata"]["name"] == "chat-engine"
            expected = len(pods) - 1 if all_engines else 1
            assert len(matched) == expected, manifest["metadata"]["name"]


def _selector(manifest: Manifest) -> dict[str, str] | None:
    spec: Any = manifest.get("spec", {})
    if manifest["kind"] == "Service":
        return dict(spec["selector"])
    if manifest["kind"] == "NetworkPolicy":
        return dict(spec["podSelector"]["matchLabels"])
    if manifest["kind"] in ("Deployment", "PodDisruptionBudget"):
        return dict(spec["selector"]["matchLabels"])
    return None


def test_mounts_and_references_lead_somewhere(manifests: tuple[Manifest, ...]) -> None:
    config_maps = {m["metadata"]["name"] for m in manifests if m["kind"] == "ConfigMap"}
    accounts = {m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount"}
    for pod in _pods(manifests):
        spec = pod["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        assert volumes["config"]["configMap"]["name"] in config_maps
        assert spec["serviceAccountName"] in accounts
        for container in spec["containers"]:
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes.keys()


def test_the_grace_period_is_longer_than_draining() -> None:
    for seconds in (0, 120):
        manifests = _rendered({"engine": {"drainSeconds": seconds}})
        periods = [pod["spec"]["terminationGracePeriodSeconds"] for pod in _pods(manifests)]
        assert min(periods) == seconds + 10


def test_a_pod_that_loads_is_ended_when_it_stops_and_not_by_a_fixed_time() -> None:
    manifests = _rendered({"engine": {"startupSeconds": 901}})
    engine = next(
        m for m in manifests if m["kind"] == "Deployment" and "mixed" in m["metadata"]["name"]
    )
    container = engine["spec"]["template"]["spec"]["containers"][0]
    for name in ("startupProbe", "livenessProbe"):
        assert container[name]["httpGet"]["path"] == "/health?loading_seconds=901"
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    probe = container["startupProbe"]
    patience = probe["periodSeconds"] * probe["failureThreshold"]
    assert 901 <= patience < engine["spec"]["progressDeadlineSeconds"]


def test_names_fit_even_for_the_longest_service_name() -> None:
    for manifest in (*_rendered({}, LONGEST), *_rendered(TWO_POOLS, LONGEST)):
        assert len(manifest["metadata"]["name"]) <= 63, manifest["metadata"]["name"]
        assert all(len(value) <= 63 for value in manifest["metadata"]["labels"].values())


def test_names_fit_for_the_longest_role_too() -> None:
    assert len(f"{LONGEST}-prefill-0123456789") <= 63


def test_gpus_are_limits_and_bind_the_product() -> None:
    wanted = pool(FULL_SPEC)
    accelerator = {"product": "NVIDIA-A100-SXM4-40GB", "count": 1}
    wanted["spec"] = wanted["spec"] | {"accelerator": accelerator}
    deployment = plan_pool(pool_observed(with_applied_fields(wanted))).deployment
    assert deployment is not None
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"]["limits"] == {"memory": "32Gi", "nvidia.com/gpu": 1}
    assert pod["nodeSelector"] == {
        "disk": "fast",
        "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB",
    }
    assert pod["tolerations"] == [
        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
    ]


HUB: Manifest = {"uri": "hf://org/name", "tokenSecretRef": {"name": "hub", "key": "token"}}


def _engine(model: Manifest) -> Manifest:
    manifests = _rendered({"model": model})
    pods = {pod["metadata"]["labels"].get(labels.ROLE): pod for pod in _pods(manifests)}
    return pods["mixed"]


def test_an_engine_that_downloads_has_the_token_in_that_container_alone() -> None:
    pod = _engine(HUB)
    (fetches,), (engine,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert "hub-token" in {mount["name"] for mount in fetches["volumeMounts"]}
    assert "hub-token" not in {mount["name"] for mount in engine["volumeMounts"]}
    assert fetches["securityContext"] == engine["securityContext"]
    read_only = {m["name"]: m.get("readOnly", False) for m in engine["volumeMounts"]}
    assert read_only["model"] is True
    assert pod["metadata"]["labels"][labels.FETCHES] == "true"


def test_an_engine_with_a_volume_has_neither_token_nor_a_way_to_the_hub() -> None:
    pod = _engine(HUB | {"cache": {"claim": "models"}})
    assert "initContainers" not in pod["spec"]
    assert "hub-token" not in {volume["name"] for volume in pod["spec"]["volumes"]}
    assert labels.FETCHES not in pod["metadata"]["labels"]
