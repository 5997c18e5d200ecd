"""What an InferenceService's plan wants, and what it leaves alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import FIELD_MANAGER, Role
from sluice_contract.config.engine import SloTargets, parse_engine_config
from sluice_contract.config.router import parse_router_config
from sluice_operator.kube.kinds import OPTIONAL_CHILDREN, POD_MONITOR, Kind, Manifest
from sluice_operator.manifests.deployments import INPUTS
from sluice_operator.manifests.metadata import note_of
from sluice_operator.service.names import child_names
from sluice_operator.service.plan import plan_service
from sluice_operator.service.revisions.parts import engine_part
from sluice_operator.service.revisions.revision import revisions_of
from sluice_operator.service.revisions.settings import settings_status

from tests.examples import examples
from tests.operator.api.documents import with_nulls
from tests.operator.examples import (
    FULL_SPEC,
    FULL_TEMPLATE,
    SERVICE_UID,
    complete_service,
    live,
    of,
    pool_plan,
    service,
    service_observed,
    service_plan,
    written,
)
from tests.operator.harness.memory_cluster import running

SPECS = st.fixed_dictionaries(
    {"model": st.sampled_from([{"uri": "dummy://a"}, {"uri": "pvc://c/p"}, {"uri": "file:///m"}])},
    optional={
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "chunkSize": st.sampled_from([-1, 16, 512]),
                "dtype": st.sampled_from(["auto", "float32"]),
                "drainSeconds": st.integers(0, 100),
            },
        ),
        "replicas": st.integers(0, 5),
        "template": st.just(FULL_TEMPLATE),
        "prefill": st.sampled_from([{}, {"replicas": 2}, {"template": {}}]),
        "router": st.fixed_dictionaries({"replicas": st.integers(1, 3)}),
        "paused": st.booleans(),
    },
)


async def test_a_spec_with_nulls_is_carried_out_as_one_that_leaves_them_out() -> None:
    """Nothing restarts when they come."""
    spec = {"engine": {"chunkSize": 64}, "router": {"replicas": 1}}
    filled = with_nulls({"model": {"uri": "dummy://tiny"}} | spec)
    made, edited = await running(**filled), await running(**spec)
    assert made.templates == edited.templates
    before = len(edited.api.writes)
    await edited.edited(**filled)
    assert {request.path.rpartition("/")[2] for request in edited.api.writes[before:]} == {"status"}


@given(SPECS)
@examples(30)
def test_equal_observations_give_equal_plans(spec: dict[str, Any]) -> None:
    text = json.dumps(service(spec))
    first, second = (plan_service(service_observed(json.loads(text))) for _ in range(2))
    assert first == second


@given(SPECS)
@examples(20)
def test_at_rest_nothing_is_pruned_and_nothing_said(spec: dict[str, Any]) -> None:
    plan = plan_service(service_observed(service(spec)))
    again = plan_service(service_observed(service(spec), [live(m) for m in plan.apply]))
    assert (again.apply, again.prune, again.events) == (plan.apply, (), ())


def test_every_child_is_owned() -> None:
    for manifest in service_plan().apply:
        (reference,) = manifest["metadata"]["ownerReferences"]
        assert reference["kind"] == "InferenceService"
        assert reference["uid"] == SERVICE_UID
        assert reference["controller"] is True


def test_what_pods_need_comes_first_and_optional_kinds_last() -> None:
    route = {"route": {"parentRefs": [{"name": "public"}], "hostnames": ["m.example.com"]}}
    pool = {"inferencePool": {"endpointPickerRef": {"name": "picker", "port": 9002}}}
    item = complete_service({"slo": {"itlMilliseconds": 50}, "router": route | pool})
    plan = plan_service(service_observed(item, optional_kinds=OPTIONAL_CHILDREN))
    assert list(dict.fromkeys(manifest["kind"] for manifest in plan.apply)) == [
        "ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Service", "NetworkPolicy",
        "Deployment", "EnginePool", "PodDisruptionBudget",
        "PodMonitor", "PrometheusRule", "InferencePool", "HTTPRoute",
    ]  # fmt: skip


def test_the_engine_reads_what_the_operator_writes() -> None:
    files = [m for m in service_plan(FULL_SPEC).apply if m["kind"] == "ConfigMap"]
    text = next(m["data"]["engine.json"] for m in files if "engine.json" in m["data"])
    config = parse_engine_config(text)
    assert config.model.uri == "file:///mnt/model/qwen3/8b"
    assert config.model.name == "qwen3-8b"
    assert (config.chunk_size, config.page_size, config.mixed_chunk) == (1024, 32, False)
    assert config.server.host == "0.0.0.0"
    assert config.server.drain_seconds == 60


def test_the_router_reads_what_the_operator_writes() -> None:
    files = [m for m in service_plan().apply if m["kind"] == "ConfigMap"]
    text = next(m["data"]["router.json"] for m in files if "router.json" in m["data"])
    config = parse_router_config(text)
    assert config.discovery is not None
    assert config.discovery.service == "chat"


def test_another_setting_is_another_config_map_and_the_old_one_stays_while_mounted() -> None:
    before = service_plan()
    old = of(before.apply, "ConfigMap", before.pools[0].config_map["metadata"]["name"])
    deployment = pool_plan().deployment
    assert deployment is not None
    children = [live(m) for m in before.apply]
    changed = service({"engine": {"chunkSize": 64}})
    still = plan_service(service_observed(changed, [*children, live(deployment)]))
    new = still.pools[0].config_map["metadata"]["name"]
    assert new != old["metadata"]["name"]
    assert still.prune == ()
    applied = [live(m) for m in still.apply]
    later = plan_service(service_observed(changed, [*applied, live(old)]))
    assert [ref.name for ref in later.prune] == [old["metadata"]["name"]]


def test_what_others_own_is_not_pruned() -> None:
    foreign = live(service_plan().pools[0].config_map)
    foreign["metadata"] |= {"name": "mine", "ownerReferences": []}
    assert plan_service(service_observed(children=[foreign])).prune == ()


def test_a_name_that_is_taken_refuses_everything() -> None:
    foreign = {"kind": "Service", "metadata": {"name": "chat", "namespace": "default"}}
    plan = plan_service(service_observed(name_conflicts=(foreign,)))
    assert plan.refusal is not None
    assert plan.refusal.reason == "NameTaken"
    assert "Service chat" in plan.refusal.message
    assert (plan.apply, plan.prune) == ((), ())


@pytest.mark.parametrize("optional", [(), (POD_MONITOR,), OPTIONAL_CHILDREN])
@pytest.mark.parametrize("spec", [{}, {"slo": {"ttftMilliseconds": 800}}], ids=["", "slo"])
def test_every_name_is_known_before_the_plan_is_made(
    optional: tuple[Kind, ...], spec: Manifest
) -> None:
    observed = service_observed(service(spec), optional_kinds=optional)
    planned = {
        (manifest["kind"], manifest["metadata"]["name"])
        for manifest in written(plan_service(observed))
        if manifest["kind"] not in ("ConfigMap", "ControllerRevision")
    }
    known = child_names(observed.service, optional)
    assert {(kind.kind, name) for kind, name in known} == planned


def test_what_is_paused_has_no_name_conflicts() -> None:
    foreign = {"kind": "Service", "metadata": {"name": "chat", "namespace": "default"}}
    item = service({"paused": True})
    assert plan_service(service_observed(item, name_conflicts=(foreign,))).refusal is None


def test_paused_writes_nothing() -> None:
    plan = plan_service(service_observed(service({"paused": True})))
    assert plan.paused
    assert (plan.apply, plan.prune, plan.events) == ((), (), ())


def test_a_service_that_is_going_gets_nothing() -> None:
    going = service(deletionTimestamp="2026-01-01T00:00:00Z")
    assert plan_service(service_observed(going)).apply == ()


def test_scaling_is_told_with_both_numbers() -> None:
    children = [live(m) for m in service_plan().apply]
    changed = service({"replicas": 4})
    (event,) = plan_service(service_observed(changed, children)).events
    assert (event.reason, event.type) == ("Scaled", "Normal")
    assert "from 1 to 4" in event.message


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ((2, 4), (2, 5), "Pool prefill: replicas from 4 to 5 (spec.prefill.replicas)."),
        ((2, 4), (3, 4), "Pool decode: replicas from 2 to 3 (spec.replicas)."),
        (
            (2, 4),
            (0, 4),
            "Pool prefill: replicas from 4 to 0 (spec.replicas).\n"
            "Pool decode: replicas from 2 to 0 (spec.replicas).",
        ),
    ],
)
def test_a_scaled_pool_of_two_is_told_with_the_field_that_did_it(
    before: tuple[int, int], after: tuple[int, int], message: str
) -> None:
    def numbers(replicas: int, prefill: int) -> Manifest:
        return {"replicas": replicas, "prefill": {"replicas": prefill}}

    children = [live(m) for m in service_plan(numbers(*before)).apply]
    plan = plan_service(service_observed(service(numbers(*after)), children))
    scaled = [event.message for event in plan.events if event.reason == "Scaled"]
    assert "\n".join(scaled) == message


def test_a_stopped_pool_that_is_scaled_starts_with_its_fewest_and_says_whose_number_it_is() -> None:
    own = {"autoscaling": {"minReplicas": 2, "maxReplicas": 4}}
    stopped, started = ({"replicas": count, "prefill": own} for count in (0, 2))
    children = [live(m) for m in service_plan(stopped).apply]
    fields: Manifest = {"f:spec": {"f:replicas": {}}}
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    for pool in (child for child in children if child["kind"] == "EnginePool"):
        pool["metadata"]["managedFields"] = [entry]
    plan = plan_service(service_observed(service(started), children))
    (event, *_) = (event for event in plan.events if event.reason == "Scaled")
    assert event.message == (
        "Pool prefill: replicas from 0 to 2 (spec.prefill.autoscaling.minReplicas)."
    )


@pytest.mark.parametrize(
    "parts",
    [
        {"prefill": {"autoscaling": {"minReplicas": 0, "maxReplicas": 3}}},
        {"prefill": {"autoscaling": {"minReplicas": 1, "maxReplicas": 3}}},
        {"prefill": {"replicas": 4}},
        {"prefill": {}},
        {},
    ],
)
def test_a_service_that_is_stopped_and_started_keeps_routers_and_revisions(parts: Manifest) -> None:
    started, stopped = (service_plan(parts | {"replicas": count}) for count in (2, 0))
    assert started.router == stopped.router
    assert started.decided is not None
    assert stopped.spec is not None
    assert revisions_of((started.decided,)).of(stopped.spec) is not None


def test_a_roll_out_is_told_with_what_has_changed() -> None:
    before = service_plan()
    children = [live(m) for m in before.apply]
    old = before.pools[0].manifest["spec"]["revisions"][0]["name"]
    of(children, "EnginePool")["status"] = {"revisions": [{"name": old, "current": True}]}
    assert plan_service(service_observed(children=children)).events == ()
    plan = plan_service(service_observed(service({"engine": {"image": "new:2"}}), children))
    (event,) = plan.events
    new = plan.pools[0].manifest["spec"]["revisions"][0]["name"]
    assert event.reason == "RollingOut"
    assert f"revision {old} is replaced by {new} (changed: image)" in event.message
    # Another edit, before the pool has taken the new revision in.
    edited = service({"engine": {"image": "new:2"}, "replicas": 3})
    asked = of([live(m) for m in plan.apply], "EnginePool")
    asked["status"] = of(children, "EnginePool")["status"]
    (event,) = plan_service(
        service_observed(edited, [asked if m["kind"] == "EnginePool" else m for m in children])
    ).events
    assert event.reason == "Scaled"


def test_a_pool_that_somebody_scaled_was_not_scaled_by_the_plan() -> None:
    plan = service_plan()
    children = [live(m) for m in plan.apply]
    pool = of(children, "EnginePool")
    children[children.index(pool)] = pool | {"spec": pool["spec"] | {"replicas": 7}}
    again = plan_service(service_observed(service(), children))
    assert (again.apply, again.events) == (plan.apply, ())


def test_a_deleted_child_is_made_again_and_told() -> None:
    plan = service_plan()
    children = [live(m) for m in plan.apply if m["kind"] != "Service"]
    (event,) = plan_service(service_observed(children=children)).events
    assert event.message == "Created Service chat, Service chat-mixed."


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"router": {"replicas": 1}}, True),
        ({"replicas": 9}, True),
        ({"engine": {"chunkSize": 64}}, False),
        ({"engine": {"drainSeconds": 7}}, False),
        ({"model": {"uri": "dummy://other"}}, False),
    ],
)
def test_the_config_map_changes_exactly_with_the_engine(change: Manifest, same: bool) -> None:
    names = {service_plan(spec).pools[0].config_map["metadata"]["name"] for spec in ({}, change)}
    assert (len(names) == 1) is same


def test_the_engines_are_told_what_is_promised_between_tokens() -> None:
    def slo_of(spec: Manifest) -> SloTargets | None:
        files = [m for m in service_plan(spec).apply if m["kind"] == "ConfigMap"]
        text = next(m["data"]["engine.json"] for m in files if "engine.json" in m["data"])
        return parse_engine_config(text).slo

    assert slo_of({}) is None
    for percentile, asked in ((95, {}), (99, {"percentile": 99})):
        promise = SloTargets(itl_milliseconds=50, percentile=percentile)
        assert slo_of({"slo": {"itlMilliseconds": 50, **asked}}) == promise


def _settings_of(spec: Manifest) -> Manifest:
    return settings_status(service_plan(spec).pools[0].settings)


def test_a_pools_own_settings_go_before_those_of_all_and_say_so() -> None:
    engine = {"maxRunningRequests": 8, "chunkSize": 64, "image": "all:1"}
    own = {"maxRunningRequests": 9, "image": "own:1"}
    spec = {"engine": engine, "prefill": {"engine": own}}
    found = _settings_of(spec)
    assert found["maxRunningRequests"] == {
        "value": 9, "source": "User", "from": "spec.prefill.engine",
    }  # fmt: skip
    assert found["chunkSize"] == {"value": 64, "source": "User", "from": "spec.engine"}
    images = [pool.manifest["spec"]["image"] for pool in service_plan(spec).pools]
    assert images == ["own:1", "all:1"]


def test_tracing_reaches_every_process_and_opens_the_way_to_the_collector() -> None:
    tracing = {"endpoint": "http://collector.monitoring:4318", "samplePercent": 10}
    plan, without = service_plan({"tracing": tracing}), service_plan()
    files = [m["data"] for m in plan.apply if m["kind"] == "ConfigMap"]
    found = {name: json.loads(text) for data in files for name, text in data.items()}
    assert found["router.json"]["tracing"] == {"endpoint": tracing["endpoint"], "sampleRatio": 0.1}
    assert found["engine.json"]["tracing"] == {"endpoint": tracing["endpoint"]}
    ways = {"ports": [{"port": 4318, "protocol": "TCP"}]}
    for m in (m for m in plan.apply if m["kind"] == "NetworkPolicy"):
        (way,) = (rule for rule in m["spec"]["egress"] if rule.items() >= ways.items())
        assert "namespaceSelector" in way["to"][0]
    assert "4318" not in str(without.apply)


def test_names_of_metrics_reach_engines() -> None:
    plan = service_plan({"metrics": {"compatibility": "vLLM"}})
    texts = (m["data"].get("engine.json") for m in plan.apply if m["kind"] == "ConfigMap")
    config = parse_engine_config(next(filter(None, texts)))
    assert config.server.metrics_compatibility == "vLLM"


def test_priorities_of_tenants_reach_routers() -> None:
    tenants = [{"name": "a", "defaultPriority": 2, "maxPriority": 9}, {"name": "b"}]
    auth = {"secretRef": {"name": "team-keys"}, "tenants": tenants}
    plan = service_plan({"router": {"auth": auth}})
    texts = (m["data"].get("router.json") for m in plan.apply if m["kind"] == "ConfigMap")
    config = parse_router_config(next(filter(None, texts)))
    assert config.auth is not None
    assert config.to_json_dict()["auth"]["tenants"] == tenants


def test_api_keys_are_mounted_into_routers_alone_and_read_by_nobody_else() -> None:
    plan = service_plan({"router": {"auth": {"secretRef": {"name": "team-keys"}}}})
    assert plan.refusal is None
    assert plan.router is not None
    pod = plan.router["spec"]["template"]["spec"]
    (volume,) = (v for v in pod["volumes"] if v.get("secret") == {"secretName": "team-keys"})
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["name"] == volume["name"])
    assert mount["readOnly"]
    assert "subPath" not in mount, "a changed Secret would not be seen"
    texts = (m["data"].get("router.json") for m in plan.apply if m["kind"] == "ConfigMap")
    config = parse_router_config(next(filter(None, texts)))
    assert config.auth is not None
    assert config.auth.keys_directory == mount["mountPath"]
    others = [m for m in plan.apply[:-1] if m is not plan.router]
    assert "team-keys" not in str(others)
    assert "auth" not in str(service_plan().router)


@pytest.mark.parametrize("pools", [{}, {"prefill": {}}], ids=["one pool", "two pools"])
def test_engines_beside_api_keys_serve_nobody_but_routers(pools: Manifest) -> None:
    for router, required in (({}, None), ({"auth": {"secretRef": {"name": "team-keys"}}}, True)):
        plan = service_plan({"router": router} | pools)
        assert plan.refusal is None
        configs = [
            parse_engine_config(pool.config_map["data"]["engine.json"]) for pool in plan.pools
        ]
        assert {config.server.require_signature for config in configs} == {required}


def test_that_keys_are_asked_for_is_an_input_of_engines() -> None:
    """They demand the routers' signature then, so that they have to start anew."""
    auth = {"router": {"auth": {"secretRef": {"name": "team-keys"}}}}
    plans = [service_plan(spec) for spec in ({}, auth)]
    parts = [engine_part(plan.spec, Role.MIXED) for plan in plans if plan.spec]
    assert parts[0] != parts[1]


def test_routers_follow_an_edit_of_what_they_inherit() -> None:
    """It is an input of theirs: otherwise they would stay as another release has applied them."""
    first = service_plan()
    tolerant = {"template": {"tolerations": [{"key": "gpu"}], "nodeSelector": {"a": "b"}}}
    notes = [
        note_of(plan.router or {}, INPUTS)
        for plan in (first, service_plan(tolerant), service_plan({"template": {"labels": {}}}))
    ]
    assert notes[0] == notes[2] != notes[1]
    observed = service_observed(service(tolerant), [live(manifest) for manifest in first.apply])
    router = plan_service(observed).router
    assert router is not None
    assert router["spec"]["template"]["spec"]["tolerations"] == [{"key": "gpu"}]
