"""Rules that every child obeys, whatever the service asks for."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.api.base import ApiModel
from sluice_operator.api.environment import EnvVar, VolumeMount
from sluice_operator.api.template import PodTemplate, RouterTemplate
from sluice_operator.cli.preview import preview
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import ENGINE, with_applied_fields
from sluice_operator.pool.plan import plan_pool

from tests.operator.api.documents import document
from tests.operator.examples import FULL_SPEC, FULL_TEMPLATE, IMAGES, of, pool, pool_observed

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


FOR_ENGINES_ALONE = ("affinity", "initContainers")
"""Fields of an engine's template that a router's lacks, or has a part of."""
ROUTER_TEMPLATE: Manifest = {
    **{key: value for key, value in FULL_TEMPLATE.items() if key not in FOR_ENGINES_ALONE},
    "nodeSelector": {"disk": "fast"},
    "topologySpreadConstraints": [
        {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    ],
    "schedulerName": "another",
    "fsGroup": 4711,
    "labels": {"team": "a"},
    "annotations": {"sidecar.istio.io/inject": "false"},
}
ON_CPUS: Manifest = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}
            ]
        }
    }
}


def test_the_template_of_routers_has_all_that_suits_them() -> None:
    fields = {field.alias for field in RouterTemplate.model_fields.values()}
    assert fields == {field.alias for field in PodTemplate.model_fields.values()} - {
        "initContainers"
    }
    assert fields - ROUTER_TEMPLATE.keys() == {"affinity"}


@pytest.mark.parametrize("field", ROUTER_TEMPLATE)
def test_a_field_of_a_template_does_to_routers_what_it_does_to_engines(field: str) -> None:
    """Volumes and what mounts them go together."""
    together = ("volumes", "volumeMounts")
    names = together if field in together else (field,)
    template = {name: ROUTER_TEMPLATE[name] for name in names}
    spec = {"router": {"template": template}, "template": template}
    router, engine = (_changes(role, spec) for role in ("router", "mixed"))
    assert router == engine != {}


def _changes(role: str, spec: Manifest, base: Manifest | None = None) -> Manifest:
    """What `spec` changes in the pods of a role, compared with `base` alone: the new values by
    path, and of lists the new entries."""
    before, after = (_pod(role, (base or {}) | more) for more in ({}, spec))
    return {
        path: [entry for entry in value if entry not in before.get(path, ())]
        if isinstance(value, list)
        else value
        for path, value in after.items()
        if value != before.get(path)
    }


def _pod(role: str, spec: Manifest) -> Manifest:
    """The fields of a role's pods, by path, without what tells its selector and its revision."""
    pods = {pod["metadata"]["labels"][labels.ROLE]: pod for pod in _pods(_rendered(spec))}
    pod = copy.deepcopy(pods[role])
    own = (*pod["spec"].pop("containers"),)
    for constraint in pod["spec"]["topologySpreadConstraints"]:
        del constraint["labelSelector"]
    names = {"labels", "annotations"}
    metadata = {key: value for key, value in pod["metadata"].items() if key in names}
    of_selector = {labels.REVISION, labels.ROLE}
    metadata["labels"] = [i for i in metadata["labels"].items() if i[0] not in of_selector]
    return {**metadata, **pod["spec"], "own": own[0]["env"] + own[0]["volumeMounts"],
            "beside": list(own[1:])}  # fmt: skip


def test_routers_may_be_kept_to_some_nodes() -> None:
    spec = _pod("router", {"router": {"template": {"affinity": ON_CPUS}}})
    assert spec["affinity"] == ON_CPUS


ON_TAINTED_NODES: Manifest = {
    "imagePullSecrets": [{"name": "registry"}],
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "priorityClassName": "serving",
}


@pytest.mark.parametrize("spec", [{}, {"prefill": {}}], ids=["one pool", "two pools"])
def test_routers_have_what_a_cluster_demands_of_engines(spec: Manifest) -> None:
    for_engines = {
        "nodeSelector": {"gpu": "big"},
        "runtimeClassName": "nvidia",
        "annotations": {"prometheus.io/port": "8080"},
        "labels": {"engines": "ours"},
        "schedulerName": "gangs",
    }
    template = ON_TAINTED_NODES | for_engines
    accelerator = {"product": "NVIDIA-L4"}
    changed = _changes("router", {"template": template, "accelerator": accelerator}, spec)
    assert changed == ON_TAINTED_NODES


def test_routers_take_the_demands_of_both_pools_and_no_priority_of_one() -> None:
    decode = {"imagePullSecrets": [{"name": str(n)} for n in range(8)], "priorityClassName": "a"}
    prefill = {"imagePullSecrets": [{"name": str(n)} for n in range(4, 12)]}
    pod = _pod("router", {"template": decode, "prefill": {"template": prefill}})
    assert {secret["name"] for secret in pod["imagePullSecrets"]} == {str(n) for n in range(12)}
    assert len(pod["imagePullSecrets"]) == 12
    assert "priorityClassName" not in pod


@pytest.mark.parametrize("field", ON_TAINTED_NODES)
def test_what_the_template_of_routers_has_goes_before_that_of_engines(field: str) -> None:
    own: Any = {"priorityClassName": "front"}.get(field, [])
    spec = {"template": ON_TAINTED_NODES, "router": {"template": {field: own}}}
    pod = _pod("router", spec)
    assert pod.get(field) == (own or None)
    assert all(
        pod[other] == ON_TAINTED_NODES[other] for other in ON_TAINTED_NODES if other != field
    )
