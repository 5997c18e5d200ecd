"""A service whose prefill and decode have a pool each: its children, its key, and its roll-outs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import EngineConfig, SloTargets, parse_engine_config
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.config.router import parse_router_config
from sluice_contract.wire.load import HandoverWire
from sluice_operator.api.findings import parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import owner
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status
from sluice_operator.service.names import child_names
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.status import service_status
from sluice_operator.service.resolve.resolved_service import resolve
from sluice_operator.service.rollout.pairing import fingerprint_of
from sluice_operator.service.rollout.revisions import pool_state

from tests.operator.examples import (
    NOW,
    complete,
    live,
    of,
    pods,
    pools,
    service,
    service_observed,
    service_plan,
)

SPEC: Manifest = {"prefill": {}}
ROLES = (Role.PREFILL, Role.DECODE)


def _files(plan: ServicePlan) -> dict[Role, EngineConfig]:
    texts = {pool.role: pool.config_map["data"]["engine.json"] for pool in plan.pools}
    return {role: parse_engine_config(text) for role, text in texts.items()}


def _deployments(plan: ServicePlan) -> dict[str, Manifest]:
    """By role, as the plans of service and pools have them."""
    assert plan.router is not None
    found = {"router": plan.router}
    for pool in plan.pools:
        built = plan_pool(PoolObserved(_pool(pool.manifest), service(SPEC))).deployment
        assert built is not None
        found[pool.role] = built
    return found


def _pool(manifest: Manifest) -> Manifest:
    return live(manifest, uid=manifest["metadata"]["name"])


def _there(plan: ServicePlan, ready: Iterable[str] = ("router", *ROLES)) -> list[Manifest]:
    """All children of a plan, with the Deployments of `ready` complete."""
    complete_ones = set(ready)
    children = [
        _pool(m) if m["kind"] == "EnginePool" else live(m)
        for m in plan.apply
        if m["kind"] != "Deployment"
    ]
    for role, built in _deployments(plan).items():
        owned = built if role == "router" else _owned(built, f"chat-{role}")
        children.append(complete(owned) if role in complete_ones else live(owned))
    return children


def _owned(deployment: Manifest, pool_uid: str) -> Manifest:
    reference = {"kind": "EnginePool", "uid": pool_uid, "controller": True}
    metadata = deployment["metadata"] | {"ownerReferences": [reference]}
    return deployment | {"metadata": metadata}


def test_decode_engines_speculate_and_prefill_engines_have_nothing_to_draft() -> None:
    speculation = {"method": "NGram", "tokens": 6}
    files = _files(service_plan(SPEC | {"engine": {"speculation": speculation}}))
    assert files[Role.PREFILL].speculation is None
    decode = files[Role.DECODE].speculation
    assert decode is not None
    assert decode.to_json_dict() == speculation


def test_decode_engines_alone_have_a_draft_model() -> None:
    speculation = {"method": "Draft", "draft": {"uri": "pvc://drafts/small/1/"}}
    plan = service_plan(SPEC | {"engine": {"speculation": speculation}})
    files = _files(plan)
    assert files[Role.PREFILL].speculation is None
    decode = files[Role.DECODE].speculation
    assert decode is not None
    assert decode.draft is not None
    assert decode.draft.uri == "file:///mnt/adapters/drafts/small/1"
    claims = {p.role: p.manifest["spec"].get("adapterClaims") for p in plan.pools}
    assert claims == {Role.PREFILL: None, Role.DECODE: ["drafts"]}
    volumes = _deployments(plan)[Role.DECODE]["spec"]["template"]["spec"]["volumes"]
    assert {"claimName": "drafts"} in [v.get("persistentVolumeClaim") for v in volumes]


HOST_CACHE = {"memory": "2Gi", "disk": {"size": "10Gi"}}


def test_prefill_engines_have_a_host_cache_and_decode_engines_have_none() -> None:
    plan = service_plan(SPEC | {"engine": {"hostCache": HOST_CACHE}})
    files = _files(plan)
    pools = {m["spec"]["role"]: m["spec"] for m in plan.apply if m["kind"] == "EnginePool"}
    prefill = files[Role.PREFILL]
    assert prefill.host_cache is not None
    assert prefill.host_cache.to_json_dict() == HOST_CACHE
    assert prefill.host_cache_folder == "/var/lib/sluice/host-cache"
    assert files[Role.DECODE].host_cache is None
    assert files[Role.DECODE].host_cache_folder is None
    assert pools["prefill"]["hostCache"] == HOST_CACHE
    assert "hostCache" not in pools["decode"]


def test_engines_that_have_no_host_cache_may_have_several_gpus() -> None:
    gpu = {"product": "NVIDIA-H100-80GB-HBM3"}
    engine = {"hostCache": HOST_CACHE}

    def plan(prefill: int, decode: int) -> ServicePlan:
        counts = {"prefill": prefill, "decode": decode}
        gpus = {role: {"accelerator": gpu | {"count": n}} for role, n in counts.items()}
        return service_plan(SPEC | {"engine": engine} | pools(**gpus))

    assert plan(1, 2).refusal is None
    refusal = plan(2, 1).refusal
    assert refusal is not None
    assert "tensorParallelSize is 2" in refusal.message


@pytest.mark.parametrize(
    ("volume", "path", "field", "value"),
    [
        ("sluice-host-cache", "/data", "volumes[0].name", "sluice-host-cache"),
        ("mine", "/var/lib/sluice/host-cache", "volumeMounts[0].mountPath", None),
        ("mine", "//var/./lib/sluice/host-cache/", "volumeMounts[0].mountPath", None),
        ("mine", "/var/lib/sluice/host-cache/own", "volumeMounts[0].mountPath", None),
    ],
)
def test_volumes_of_a_user_do_not_take_the_place_of_the_host_cache_s_disk(
    volume: str, path: str, field: str, value: str | None
) -> None:
    template = {
        "volumes": [{"name": volume, "emptyDir": {}}],
        "volumeMounts": [{"name": volume, "mountPath": path}],
    }
    spec = SPEC | {"template": template}
    refusal = service_plan(spec | {"engine": {"hostCache": HOST_CACHE}}).refusal
    assert refusal is not None
    assert refusal.field == f"spec.template.{field}"
    own = {"prefill": {"template": template}, "engine": {"hostCache": HOST_CACHE}}
    refusal = service_plan(SPEC | own).refusal
    assert refusal is not None
    assert refusal.field == f"spec.prefill.template.{field}"
    assert f'"{value or path}" is not allowed; allowed: ' in refusal.message
    assert "engine.hostCache.disk" in refusal.message
    memory = {"engine": {"hostCache": {"memory": "2Gi"}}}
    assert service_plan(spec | memory).refusal is None


def test_each_pool_has_its_children() -> None:
    plan = service_plan(SPEC)
    names = {(m["kind"], m["metadata"]["name"]) for m in plan.apply}
    for role in ROLES:
        for kind in ("EnginePool", "Service", "NetworkPolicy"):
            assert (kind, f"chat-{role}") in names
        service_of_pool = of(plan.apply, "Service", f"chat-{role}")
        assert service_of_pool["spec"]["clusterIP"] == "None"
    assert not [name for _, name in names if "mixed" in name]


def test_every_name_is_looked_up_before_it_is_taken() -> None:
    plan = service_plan(SPEC)
    known = {(kind.kind, name) for kind, name in child_names(service(SPEC), ())}
    made = {(m["kind"], m["metadata"]["name"]) for m in plan.apply if m["kind"] != "ConfigMap"}
    assert made == known


def test_engines_are_told_their_role_and_where_the_key_is() -> None:
    for role, config in _files(service_plan(SPEC)).items():
        assert config.role is role
        assert config.handover_key_file == "/etc/sluice/handover/key"
        assert config.kv_transfer == KvTransfer(backend="TCP")
    engine = {"engine": {"kvTransfer": {"backend": "TCP", "bootstrapPort": 9000}}}
    for config in _files(service_plan(SPEC | engine)).values():
        assert config.kv_transfer == KvTransfer(backend="TCP", bootstrap_port=9000)


def test_the_promise_between_two_tokens_is_kept_where_tokens_are_decoded() -> None:
    files = _files(service_plan(SPEC | {"slo": {"itlMilliseconds": 50}}))
    assert files[Role.PREFILL].slo is None
    assert files[Role.DECODE].slo == SloTargets(itl_milliseconds=50, percentile=95)
    both = {"slo": {"ttftMilliseconds": 900, "itlMilliseconds": 50}}
    files = _files(service_plan(SPEC | both))
    assert files[Role.PREFILL].slo == SloTargets(ttft_milliseconds=900, percentile=95)
    assert {file.scheduling_policy for file in files.values()} == {"slack"}
    uncut = {"prefill": {"engine": {"chunkSize": -1}}}
    assert service_plan(SPEC | uncut | {"slo": {"itlMilliseconds": 50}}).refusal is None


def test_the_router_follows_both_pools() -> None:
    plan = service_plan(SPEC)
    texts = (m["data"].get("router.json") for m in plan.apply if m["kind"] == "ConfigMap")
    config = parse_router_config(next(filter(None, texts)))
    assert config.discovery is not None
    assert config.discovery.roles == ROLES
    assert config.handover_key_file == "/etc/sluice/handover/key"


def test_every_pod_has_the_key_read_only_and_prefill_alone_the_port() -> None:
    for role, deployment in _deployments(service_plan(SPEC)).items():
        pod = deployment["spec"]["template"]["spec"]
        (volume,) = (each for each in pod["volumes"] if "secret" in each)
        assert volume["secret"] == {"secretName": "chat-handover"}
        container = pod["containers"][0]
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == volume["name"])
        assert (mount["mountPath"], mount["readOnly"]) == ("/etc/sluice/handover", True)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports.get("bootstrap") == (8998 if role == Role.PREFILL else None)


def test_a_mixed_service_hands_no_cache_over() -> None:
    plan = service_plan({})
    (config,) = _files(plan).values()
    assert config.kv_transfer is None
    assert "bootstrap" not in str(plan.apply)
    policies = {m["metadata"]["name"] for m in plan.apply if m["kind"] == "NetworkPolicy"}
    assert policies == {"chat-router", "chat-engine"}


def test_the_key_is_made_before_anything_waits_for_it() -> None:
    (secret,) = service_plan(SPEC).secrets
    metadata = secret.manifest["metadata"]
    assert metadata["name"] == "chat-handover"
    assert metadata["ownerReferences"][0]["kind"] == "InferenceService"
    assert not secret.manifest.keys() & {"data", "stringData"}, "nobody plans a key"


def test_the_key_is_tried_while_pods_are_missing_and_at_rest_never() -> None:
    plan = service_plan(SPEC)
    seen: list[str] = []
    for ready in ((), ("router",), ("router", Role.PREFILL)):
        observed = service_observed(service(SPEC), _there(plan, ready))
        (secret,) = plan_service(observed).secrets
        assert plan_service(observed).secrets == (secret,)
        seen.append(secret.waiting)
    assert len(set(seen)) == len(seen), "each is another state"
    (secret,) = plan_service(service_observed(service(SPEC), _there(plan))).secrets
    assert secret.waiting == ""


@pytest.mark.parametrize("spec", [SPEC | {"paused": True}, SPEC | {"engine": {"pageSize": 0}}])
def test_no_key_for_a_service_that_is_paused_or_refused(spec: Manifest) -> None:
    assert plan_service(service_observed(service(spec))).secrets == ()


def test_at_rest_nothing_is_pruned_and_nothing_said() -> None:
    plan = service_plan(SPEC)
    for _ in range(2):  # what serves is noted once
        before, plan = plan, plan_service(service_observed(service(SPEC), _there(plan)))
    assert (plan.apply, plan.prune, plan.events) == (before.apply, (), ())


def test_conditions_and_numbers_of_both_pools() -> None:
    plan = service_plan(SPEC)
    built = _deployments(plan)
    children = [child for child in _there(plan) if child["kind"] != "EnginePool"]
    for pool in plan.pools:
        there = _pool(pool.manifest)
        own, count = built[pool.role], 1 if pool.role is Role.PREFILL else 0
        below = (complete(own) if count else live(own),)
        found = PoolObserved(there, service(SPEC), below, tuple(pods(own, count)))
        children.append(there | {"status": pool_status(found, plan_pool(found), NOW)})
    routers = tuple(pods(built["router"]))
    observed = service_observed(service(SPEC), children, pods=routers)
    status = service_status(observed, plan_service(observed), NOW)

    def condition(kind: str) -> Any:
        found = find(status, kind)
        assert found is not None, kind
        return found["status"]

    assert (condition("PrefillReady"), condition("DecodeReady")) == ("True", "False")
    assert condition("Ready") == "False", "without decode engines nothing is served"
    assert find(status, "MixedReady") is None
    assert status["pools"][Role.PREFILL]["summary"] == "1/1"
    assert status["pools"][Role.DECODE]["summary"] == "0/1"
    assert status["resolved"].keys() == set(ROLES)


@pytest.mark.parametrize(
    ("rates", "rate"),
    [
        ((None, None), {}),
        ((None, 1.4), {"megabytesPerSecond": 1400}),
        ((3.0, 1.0, 2.0), {"megabytesPerSecond": 2000}),
    ],
)
def test_the_status_tells_what_carries_pages_and_how_fast(
    rates: tuple[float | None, ...], rate: Manifest
) -> None:
    plan = service_plan(SPEC)
    decode = next(pool for pool in plan.pools if pool.role is Role.DECODE)
    engines = pods(_deployments(plan)[Role.DECODE], len(rates) + 1)
    wires = {
        pod["metadata"]["name"]: HandoverWire(
            backend="Mooncake", protocol="rdma", gigabytes_per_second=measured
        )
        for pod, measured in zip(engines, rates, strict=False)
    }
    pool = _pool(decode.manifest)
    found = PoolObserved(pool, service(SPEC), (), tuple(engines), wires=wires)
    told = pool_status(found, plan_pool(found), NOW)
    assert told["handover"] == {"backend": "Mooncake", "protocol": "rdma"} | rate
    children = [child for child in _there(plan) if child["metadata"] != pool["metadata"]]
    observed = service_observed(service(SPEC), [*children, pool | {"status": told}])
    assert service_status(observed, plan_service(observed), NOW)["handover"] == told["handover"]


def test_the_fingerprint_is_what_pages_depend_on() -> None:
    def found(**engine: Any) -> set[str]:
        plan = service_plan(SPEC | {"engine": engine})
        return {fingerprint_of(pool.config_map) for pool in plan.pools}

    (same,) = found()
    assert found(chunkSize=64, maxRunningRequests=3) == {same}
    (pages,), (dtype,) = found(pageSize=32), found(dtype="float32")
    assert len({same, pages, dtype}) == 3
    assert fingerprint_of({"data": {"engine.json": "[]"}}) == ""
    assert fingerprint_of({}) == ""


def test_a_pool_that_is_complete_waits_for_the_other_with_its_fingerprint() -> None:
    """Prefill of the new page size is complete, decode is not: the former pair stays whole."""
    before = service_plan(SPEC)
    former = _there(before)
    noted = {pool.role.value: _wanted(pool.manifest) for pool in before.pools}
    changed = service(SPEC | {"engine": {"pageSize": 32}})
    changed["status"] = {"rollout": {"reason": "a", "message": "b", "stable": noted}}
    middle = plan_service(service_observed(changed, former))
    for pool in middle.pools:
        shares = {each["name"]: each["replicas"] for each in pool.manifest["spec"]["revisions"]}
        assert shares == {_wanted(pool.manifest): 1, noted[pool.role.value]: 1}

    new = [
        child
        for child in _there(middle, ("router", Role.PREFILL))
        if child["kind"] in ("Deployment", "ConfigMap")
        and child["metadata"]["labels"].get(labels.ROLE) != "router"
    ]
    observed = service_observed(changed, [*former, *new])
    half = plan_service(observed)
    assert half.rollout is not None
    assert half.rollout.reason == "WaitsForPool"
    for pool in half.pools:
        names = [each["name"] for each in pool.manifest["spec"]["revisions"]]
        assert noted[pool.role.value] in names
    assert half.prune == (), "the former engines' files stay while they are mounted"

    all_new = [complete(child) if child["kind"] == "Deployment" else child for child in new]
    done = plan_service(replace(observed, children=(*former, *all_new)))
    assert done.rollout is not None
    assert done.rollout.stable == {pool.role: _wanted(pool.manifest) for pool in done.pools}


def test_a_revision_that_still_serves_keeps_its_port_open() -> None:
    changed = SPEC | {"engine": {"kvTransfer": {"bootstrapPort": 9000}}}
    middle = plan_service(service_observed(service(changed), _there(service_plan(SPEC))))
    (rule,) = of(middle.apply, "NetworkPolicy", "chat-prefill")["spec"]["ingress"]
    assert [each["port"] for each in rule["ports"]] == [8998, 9000, 15000]


def test_revisions_are_told_apart_by_the_files_of_their_engines() -> None:
    before = service_plan(SPEC)
    observed = service_observed(service(SPEC | {"engine": {"pageSize": 32}}), _there(before))
    top = owner(INFERENCE_SERVICE, observed.service, "chat")
    seen: list[tuple[str, str]] = []
    for role in ROLES:
        pools = resolve(observed, top, _parsed(observed.service)).resolved().pools
        (resolved,) = (pool for pool in pools if pool.spec.role == role)
        state = pool_state(observed.children, resolved.spec, resolved.config_map)
        (former,) = state.others
        seen.append((state.desired.fingerprint, former.fingerprint))
    (new, old), of_decode = seen
    assert of_decode == (new, old), "each revision has a partner in the other pool"
    assert "page=32" in new
    assert "page=16" in old


def _parsed(item: Manifest) -> InferenceServiceSpec:
    return parse(InferenceServiceSpec, item["spec"], "spec")


def _wanted(pool: Manifest) -> str:
    return str(pool["spec"]["revisions"][0]["name"])


@pytest.mark.parametrize(
    ("given", "resource"),
    [({}, "rdma/hca_shared_devices_a"), ({"resourceName": "nvidia.com/hostdev"}, None)],
)
def test_rdma_has_its_device_its_right_and_a_warning(given: Manifest, resource: str | None) -> None:
    transfer = {"protocol": "rdma", "device": "mlx5_0"} | given
    limits = {"memory": "2Gi"}
    spec = SPEC | {"engine": {"kvTransfer": transfer}, "resources": {"limits": limits}}
    plan = service_plan(spec)
    assert plan.refusal is None
    name = resource or given["resourceName"]
    for pool in plan.pools:
        built = plan_pool(PoolObserved(_pool(pool.manifest), service(SPEC))).deployment
        assert built is not None
        (engine,) = built["spec"]["template"]["spec"]["containers"]
        assert engine["resources"]["limits"] == limits | {name: 1}
        assert engine["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    for config in _files(plan).values():
        rdma = KvTransfer(backend="Mooncake", protocol="rdma", device="mlx5_0")
        assert config.kv_transfer == rdma
    (warning,) = (event for event in plan.events if event.type == "Warning")
    assert warning.reason == "LeavesRestricted"
    assert "Pools prefill and decode: " in warning.message
    there = [live(pool.manifest) for pool in plan.pools]
    again = plan_service(service_observed(service(spec), there))
    assert not [event for event in again.events if event.reason == "LeavesRestricted"]


def test_over_tcp_engines_have_no_further_right() -> None:
    for role, deployment in _deployments(service_plan(SPEC)).items():
        for container in deployment["spec"]["template"]["spec"]["containers"]:
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}, role
