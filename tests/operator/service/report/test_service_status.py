"""What an InferenceService reports in the situations of its life, against golden files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from sluice_contract.config.sizing import Resolved, Source, resolve_settings
from sluice_contract.wire.load import Ledger
from sluice_operator.api.conditions import Check
from sluice_operator.api.crd import DEFAULT_STATUS
from sluice_operator.apply.applier import Refused
from sluice_operator.apply.plan import Identity
from sluice_operator.conditions.conditions import conditions, find, status_events
from sluice_operator.kube.errors import ApiError
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.pool.plan import plan_pool
from sluice_operator.scaled import Scaling
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import (
    NOW,
    complete,
    live,
    pods,
    pool_observed,
    service,
    service_observed,
    service_plan,
    written,
)
from tests.operator.service.report.situations import (
    PINNED,
    SITUATIONS,
    SLO,
    STALLED,
    paused_service,
    refused_service,
    serving_service,
    sized_before,
    status_of,
    with_pool,
    with_spec,
)
from tests.operator.statuses import (
    assert_at_rest,
    assert_situation,
    condition,
)


@pytest.mark.parametrize("name", SITUATIONS)
def test_status_in_each_situation(name: str) -> None:
    observe, told = SITUATIONS[name]
    assert_situation(status_of(observe()), told, stalled=name in STALLED, golden=f"service-{name}")


@pytest.mark.parametrize("name", SITUATIONS)
def test_nothing_happened_nothing_changes(name: str) -> None:
    observed = SITUATIONS[name][0]()
    first = status_of(observed)
    seen = replace(observed, service=observed.service | {"status": first})
    later = service_status(seen, plan_service(seen), NOW + timedelta(hours=1))
    assert_at_rest(first, later)


def test_a_refusal_is_a_warning_that_names_the_field() -> None:
    observed = refused_service()
    before, after = observed.service["status"], status_of(observed)
    (event,) = status_events(before, after)
    assert (event.type, event.reason) == ("Warning", "NotImplemented")
    assert "spec.slo" in event.message


ERROR = ApiError("PATCH /apis/x", 403, "Forbidden", "exceeded quota: small")
REFUSED = (Refused(Identity("Deployment", "chat-router"), ERROR),)


def test_a_child_that_is_refused_is_told_and_stalls() -> None:
    observed = serving_service()
    status = service_status(observed, plan_service(observed), NOW, REFUSED)
    kinds = ("Ready", "Updated", "Reconciling", "Stalled")
    found = {kind: condition(status, kind) for kind in kinds}
    assert (found["Updated"]["status"], found["Updated"]["reason"]) == ("False", "ApplyFailed")
    assert found["Updated"]["message"] == "PATCH /apis/x: 403 Forbidden: exceeded quota: small"
    assert found["Ready"]["status"] == "True", "what serves still serves"
    assert (found["Stalled"]["status"], found["Reconciling"]["status"]) == ("True", "False")
    (event,) = status_events(status_of(observed), status)
    assert (event.type, event.reason) == ("Warning", "ApplyFailed")


def test_a_refusal_is_told_of_an_object_that_has_just_been_made() -> None:
    observed = service_observed(service() | {"status": DEFAULT_STATUS})
    status = service_status(observed, plan_service(observed), NOW, REFUSED)
    for kind in ("Ready", "Updated"):
        assert condition(status, kind)["reason"] == "ApplyFailed"


def test_a_refusal_keeps_the_url_that_still_answers() -> None:
    assert status_of(refused_service())["url"] == "http://chat.default.svc"


@pytest.mark.parametrize(
    "spec", [SLO, {"engine": {"dtype": "int3"}}, {"engine": {"pageSize": 1024}}]
)
def test_a_refused_change_tells_which_generation_keeps_serving(spec: Manifest) -> None:
    observed = with_spec(serving_service(), spec)
    status = status_of(observed)
    for kind in ("Updated", "Progressing", "Stalled"):
        message = condition(status, kind)["message"]
        assert message.endswith("; the settings of generation 1 keep serving"), kind
    (event,) = status_events(observed.service["status"], status)
    assert event.message == message
    plan, served = plan_service(observed), plan_service(serving_service())
    assert (plan.apply, plan.prune, plan.events) == (served.apply, (), ())


def test_the_generation_that_keeps_serving_outlasts_several_refusals() -> None:
    second = with_spec(with_spec(serving_service(), SLO), SLO | {"paused": True}, generation=3)
    status = status_of(second)
    assert (status["observedGeneration"], status["appliedGeneration"]) == (3, 1)
    assert "the settings of generation 1 keep serving" in condition(status, "Updated")["message"]


def test_settings_with_no_engine_ready_are_only_in_place() -> None:
    broken = with_pool(engines_ready=False, routers_ready=True)
    status = status_of(with_spec(broken, SLO))
    message = condition(status, "Updated")["message"]
    assert message.endswith("; the settings of generation 1 stay in place")
    assert condition(status, "Ready")["reason"] == "ModelLoadFailed", "why nobody is served"


def _then(before: ServiceObserved, now: ServiceObserved) -> ServiceObserved:
    """What is seen of the parts now, while the service is refused as before."""
    return replace(before, children=now.children, pods=now.pods)


def test_a_refused_service_tells_how_its_parts_are_doing_now() -> None:
    died = with_pool(engines_ready=False, routers_ready=False)
    before = status_of(refused_service())
    assert before["pools"]["mixed"]["summary"] == "1/1"
    assert condition(before, "MixedReady")["status"] == "True"
    status = status_of(_then(refused_service(), died))
    assert status["pools"]["mixed"]["summary"] == "0/1"
    assert status["pools"]["mixed"]["accelerator"] == before["pools"]["mixed"]["accelerator"]
    told = {kind: condition(status, kind)["reason"] for kind in ("MixedReady", "RouterReady")}
    assert told == {"MixedReady": "ModelLoadFailed", "RouterReady": "Starting"}
    assert "pod chat-mixed-" in condition(status, "MixedReady")["message"], "the failing pod"
    assert condition(status, "ModelAvailable")["reason"] == "ModelLoadFailed"
    assert condition(status, "Updated")["message"].endswith("generation 1 stay in place")
    assert condition(status, "Ready")["reason"] == "ModelLoadFailed", "why nobody is served"


def test_a_refused_service_keeps_all_the_conditions_it_had() -> None:
    before, after = (
        [each["type"] for each in status_of(seen)["conditions"]]
        for seen in (serving_service(), refused_service())
    )
    assert after == [*before, "Stalled"]


def test_a_healthy_service_has_only_conditions_that_say_something() -> None:
    kinds = [each["type"] for each in status_of(serving_service())["conditions"]]
    assert kinds == [
        "Ready", "Updated", "Progressing", "MixedReady", "RouterReady", "ModelAvailable",
    ]  # fmt: skip


def test_where_all_is_gone_a_refused_service_is_not_ready() -> None:
    status = status_of(_then(refused_service(), service_observed()))
    assert "pools" not in status
    assert condition(status, "Ready")["reason"] == "NotImplemented"


@pytest.mark.parametrize(
    ("observe", "refused", "reason"),
    [
        (paused_service, (), "Missing"),
        (serving_service, REFUSED, "ApplyFailed"),
        (refused_service, REFUSED, "NotImplemented"),
    ],
)
def test_a_service_whose_kubernetes_service_is_gone_for_good_is_not_ready(
    observe: Callable[[], ServiceObserved], refused: tuple[Refused, ...], reason: str
) -> None:
    """Engines and routers serve, but clients find nobody, and nothing is made again."""
    there = observe()
    gone = [child for child in there.children if child["kind"] != "Service"]
    for children, told in ((there.children, ("True", "Serving")), (gone, ("False", reason))):
        seen = replace(there, children=tuple(children))
        ready = condition(service_status(seen, plan_service(seen), NOW, refused), "Ready")
        assert (ready["status"], ready["reason"]) == told


def test_parts_that_a_paused_service_never_had_are_not_missed() -> None:
    paused = service_observed(service({"paused": True}))
    status = status_of(with_spec(paused, SLO))
    assert not {"pools", "resolved"} & status.keys()
    assert find(status, "MixedReady") is find(status, "RouterReady") is None


def test_a_pool_of_somebody_elses_is_not_reported() -> None:
    foreign = live(service_plan().pools[0].manifest)
    foreign["metadata"] |= {"ownerReferences": []}
    status = status_of(service_observed(service(SLO), [foreign]))
    assert "pools" not in status


def test_a_refusal_keeps_the_settings_that_are_in_use() -> None:
    assert status_of(refused_service())["resolved"] == status_of(serving_service())["resolved"]


def test_a_name_that_is_taken_for_a_while_changes_no_size() -> None:
    taken = {"kind": "Service", "metadata": {"name": "chat", "namespace": "default"}}
    status = status_of(replace(sized_before(), name_conflicts=(taken,)))
    assert condition(status, "Ready")["reason"] == "NameTaken"
    again = replace(sized_before(), service=service() | {"status": status})
    assert plan_service(again).pools[0].settings["max_running_requests"].value == 77


@pytest.mark.parametrize("kept_from", ["paused", "failed"])
def test_settings_that_were_not_carried_out_are_not_those_in_use(kept_from: str) -> None:
    paused = kept_from == "paused"
    changed = with_spec(serving_service(), {"engine": {"chunkSize": 64}, "paused": paused})
    refused = () if paused else REFUSED
    status = service_status(changed, plan_service(changed), NOW, refused)
    assert status["resolved"] == status_of(serving_service())["resolved"]


def test_a_first_spec_that_is_refused_leaves_nothing_serving() -> None:
    status = status_of(service_observed(service(SLO)))
    assert not {"appliedGeneration", "pools", "resolved"} & status.keys()
    assert "generation" not in condition(status, "Ready")["message"]


def test_a_refusal_of_the_generation_in_use_names_no_other() -> None:
    taken = {"kind": "Service", "metadata": {"name": "chat", "namespace": "default"}}
    observed = replace(with_spec(serving_service(), {}, generation=1), name_conflicts=(taken,))
    assert "generation" not in condition(status_of(observed), "Ready")["message"]


def test_what_was_not_carried_out_is_not_the_generation_in_use() -> None:
    failed = with_spec(serving_service(), {"engine": {"chunkSize": 64}})
    status = service_status(failed, plan_service(failed), NOW, REFUSED)
    assert status["appliedGeneration"] == 1
    paused = with_spec(serving_service(), {"paused": True, "engine": {"chunkSize": 64}})
    assert status_of(paused)["appliedGeneration"] == 1


def test_becoming_ready_is_told() -> None:
    (event,) = status_events(status_of(service_observed()), status_of(serving_service()))
    assert (event.type, event.reason) == ("Normal", "AllReady")


def test_starting_is_not_worth_an_event() -> None:
    assert status_events(None, status_of(service_observed())) == ()


def test_a_transition_has_its_own_time() -> None:
    before = [{"type": "Ready", "status": "False", "lastTransitionTime": "then"}]
    check = Check("False", "Other", "still not")
    (kept,) = conditions(before, {"Ready": check}, 3, NOW)
    assert (kept["lastTransitionTime"], kept["reason"]) == ("then", "Other")
    (moved,) = conditions(before, {"Ready": replace(check, status="True")}, 3, NOW)
    assert moved["lastTransitionTime"] == "2026-01-02T03:04:05Z"


@pytest.mark.parametrize("spec", [{}, {"replicas": 5}, {"router": {"replicas": 1}}])
def test_sizes_stay_while_what_is_said_of_the_engines_is_the_same(spec: Manifest) -> None:
    observed = sized_before(spec)
    plan, fresh = plan_service(observed), service_plan(spec)
    assert plan.pools[0].settings["max_running_requests"].value == 77
    assert plan.pools[0].config_map != fresh.pools[0].config_map
    assert status_of(observed)["resolved"]["mixed"]["maxRunningRequests"] == PINNED
    waits = condition(status_of(observed), "UpgradeAvailable")
    assert "maxRunningRequests 77 to 256" in waits["message"]


def test_a_size_that_engines_choose_since_this_release_stays_until_the_upgrade() -> None:
    gpus = {"accelerator": {"product": "H100"}, "engine": {"image": "gpu:1"}}
    pinned = Resolved(value=256, source=Source.PRODUCT, origin="H100 TP1")

    def of_another_release(*inputs: Any) -> dict[str, Resolved]:
        return resolve_settings(*inputs) | {"max_running_requests": pinned}

    with patch("sluice_operator.service.resolve.settings.resolve_settings", of_another_release):
        made = [live(item) for item in written(service_plan(gpus))]
    observed = service_observed(service(gpus, generation=2), made)
    assert plan_service(observed).pools[0].settings["max_running_requests"] == pinned
    assert "max_running_requests" not in service_plan(gpus).pools[0].settings
    waits = condition(status_of(observed), "UpgradeAvailable")
    assert "maxRunningRequests 256 to the engine's choice" in waits["message"]


@pytest.mark.parametrize("spec", [{"engine": {"drainSeconds": 7}}, {"rollout": {"upgrade": "now"}}])
def test_another_spec_of_the_engines_is_sized_anew(spec: Manifest) -> None:
    observed = sized_before(spec)
    assert plan_service(observed).pools[0].settings == service_plan(spec).pools[0].settings
    assert find(status_of(observed), "UpgradeAvailable") is None


def test_sources_that_this_release_does_not_know_are_resolved_anew() -> None:
    observed = sized_before()
    (revision,) = (item for item in observed.children if item["kind"] == "ControllerRevision")
    for pool in revision["data"]["pools"].values():
        pool["settings"] = {"chunkSize": {"value": 8, "source": "Nobody", "from": "nowhere"}}
    assert plan_service(observed).pools[0].settings == service_plan().pools[0].settings


def test_a_pool_observed_without_status_does_not_count() -> None:
    ready = serving_service()
    children = tuple({k: v for k, v in child.items() if k != "status"} for child in ready.children)
    found = find(status_of(replace(ready, children=children)), "Ready")
    assert found is not None
    assert found["status"] == "False"


@pytest.mark.parametrize(("since", "kept"), [(1, True), (2, False)])
def test_what_was_said_of_scaling_holds_after_a_restart_until_the_spec_changes(
    since: int, *, kept: bool
) -> None:
    scaled: Manifest = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
    first = service_observed(service(scaled))
    said = Scaling(Check("True", "Enough", "mixed: no change"))
    status = service_status(first, plan_service(first), NOW, scaling=said)
    again = service_observed(service(scaled, generation=since) | {"status": status})
    found = condition(service_status(again, plan_service(again), NOW), "ScalingActive")
    assert found["reason"] == ("Enough" if kept else "NotDecidedYet")
    assert found["status"] == ("True" if kept else "Unknown")


@pytest.mark.parametrize(
    ("policy", "tenant", "status"),
    [
        ("priority", {"defaultPriority": 5}, "True"),
        ("adaptive", {"maxPriority": 0}, "True"),
        ("lpm", {"defaultPriority": 5}, "False"),
        (None, {"maxPriority": -1}, "False"),
        (None, {}, None),
    ],
)
def test_priorities_that_the_policy_does_not_read_are_told(
    policy: str | None, tenant: dict[str, int], status: str | None
) -> None:
    auth = {"secretRef": {"name": "keys"}, "tenants": [{"name": "search"} | tenant]}
    engine = {"schedulingPolicy": policy} if policy else {}
    observed = service_observed(service({"router": {"auth": auth}, "engine": engine}))
    found = find(service_status(observed, plan_service(observed), NOW), "PrioritiesCount")
    assert (found and found["status"]) == status
    if found and status == "False":
        assert "search" in found["message"]
        assert f"schedulingPolicy {policy or 'fcfs'}" in found["message"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"replicas": 2, "prefill": {}}, None),
        ({"replicas": 0}, None),
        (
            {
                "replicas": 0,
                "prefill": {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
            },
            "spec.replicas is 0, which stops every pool: none is scaled.",
        ),
    ],
)
def test_where_nothing_is_scaled_the_reason_is_that_of_the_spec(
    parts: Manifest, message: str | None
) -> None:
    observed = service_observed(service(parts))
    found = find(service_status(observed, plan_service(observed), NOW), "ScalingActive")
    told = found and (found["status"], found["reason"], found["message"])
    assert told == (message and ("False", "FixedReplicas", message))


def test_priorities_are_read_where_prompts_wait_and_the_field_is_the_prefill_pools() -> None:
    auth = {"secretRef": {"name": "keys"}, "tenants": [{"name": "a", "defaultPriority": 5}]}
    own = {"schedulingPolicy": "lpm"}
    spec = {"router": {"auth": auth}, "engine": {"schedulingPolicy": "priority"}}
    for prefill, place in (({"engine": own}, "spec.prefill.engine"), ({}, "spec.engine")):
        top = spec if prefill else spec | {"engine": own}
        observed = service_observed(service(top | {"prefill": prefill}))
        found = find(service_status(observed, plan_service(observed), NOW), "PrioritiesCount")
        assert found is not None
        assert f"set {place}.schedulingPolicy to priority or" in found["message"]


def test_the_ledger_leaves_out_what_is_open_and_stays_while_routers_are_silent() -> None:
    observed = replace(with_pool(True, True), ledger=Ledger(answered=3, lost=1, open=2))
    first = service_status(observed, plan_service(observed), NOW)
    assert first["ledger"] == {"answered": 3, "resumed": 0, "refused": 0, "abandoned": 0, "lost": 1}
    silent = replace(observed, service=observed.service | {"status": first}, ledger=None)
    assert service_status(silent, plan_service(silent), NOW)["ledger"] == first["ledger"]
    gone = replace(silent, pods=())
    assert "ledger" not in service_status(gone, plan_service(gone), NOW)


BUDGET: Manifest = {
    "replicas": 2, "accelerator": {"count": 1}, "autoscaling": {"gpuBudget": 2},
}  # fmt: skip


def test_engines_that_wait_for_gpus_of_a_lost_node_need_a_person() -> None:
    """Both engines' successors wait: pods of the node n0 are Terminating, and never leave."""
    observed = with_pool(engines_ready=True, routers_ready=True, spec=BUDGET)
    deployment = plan_pool(pool_observed(live(service_plan(BUDGET).pools[0].manifest))).deployment
    assert deployment is not None
    lost = pods(deployment, 2)
    for pod in lost:
        pod["metadata"]["deletionTimestamp"] = NOW.isoformat()
        pod["spec"] = pod["spec"] | {"nodeName": "n0"}
    (pool,) = of_kind(observed.children, ENGINE_POOL)
    running = complete(deployment)
    running["metadata"]["ownerReferences"] = [{"controller": True, "uid": pool["metadata"]["uid"]}]
    edited = service(BUDGET | {"engine": {"image": "engine:2"}}, generation=2)
    there = (*observed.children, running)
    observed = replace(observed, service=edited, children=there, engines=(*pods(deployment), *lost))
    plan = plan_service(observed)
    soon, late = (service_status(observed, plan, NOW + timedelta(seconds=s)) for s in (0, 60))
    assert condition(soon, "Stalled")["status"] == "False", "they may leave"
    assert condition(soon, "Progressing")["reason"] == "WaitsForBudget"
    for kind, status in (("Stalled", "True"), ("Updated", "False"), ("Progressing", "False")):
        told = condition(late, kind)
        assert (told["status"], told["reason"]) == (status, "PodsNotLeaving"), kind
        assert f"{lost[0]['metadata']['name']} of node n0" in told["message"]
        assert "starting" not in told["message"]
    assert condition(late, "Ready")["status"] == "True", "the former ones serve"
