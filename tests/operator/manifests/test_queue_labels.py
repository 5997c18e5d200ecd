"""Labels for Kueue, from the service or from a pool's template: on engine pods, not on routers."""

from __future__ import annotations

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.plan import plan_pool
from sluice_operator.service.plan import ServicePlan, plan_service

from tests.operator.examples import live, pool_observed, service, service_observed, written

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"


def planned(labels: dict[str, str], pool: Manifest | None = None) -> ServicePlan:
    spec = {"template": pool} if pool else {}
    return plan_service(service_observed(service(spec, labels=labels)))


def at_work(plan: ServicePlan) -> list[Manifest]:
    """What the plan has made, with its engines."""
    deployment = plan_pool(pool_observed(plan.pools[0].manifest)).deployment
    assert deployment is not None
    return [live(item, uid=item["metadata"]["name"]) for item in (*written(plan), deployment)]


def next_plan(
    children: list[Manifest], labels: dict[str, str], spec: Manifest | None = None
) -> ServicePlan:
    return plan_service(service_observed(service(spec, labels=labels), children))


def engine_labels(plan: ServicePlan) -> dict[str, str]:
    deployment = plan_pool(pool_observed(plan.pools[0].manifest)).deployment
    assert deployment is not None
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


def test_labels_of_the_service_are_on_its_engines() -> None:
    plan = planned({QUEUE: "gpus", PRIORITY: "high", "team": "search"})
    labels = engine_labels(plan)
    assert (labels[QUEUE], labels[PRIORITY]) == ("gpus", "high")
    assert "team" not in labels
    assert plan.router is not None
    assert QUEUE not in plan.router["spec"]["template"]["metadata"]["labels"]


def test_those_of_a_pool_go_before() -> None:
    template = {"labels": {QUEUE: "decode", "team": "search"}}
    labels = engine_labels(planned({QUEUE: "gpus", PRIORITY: "high"}, template))
    assert (labels[QUEUE], labels[PRIORITY], labels["team"]) == ("decode", "high", "search")


def test_a_queue_is_no_other_revision_and_without_one_nothing_is_added() -> None:
    with_queue, without = planned({QUEUE: "gpus"}), planned({})
    names = [plan.pools[0].manifest["spec"]["configRef"] for plan in (with_queue, without)]
    assert names[0] == names[1]
    revisions = [
        plan_pool(pool_observed(plan.pools[0].manifest)).revision for plan in (with_queue, without)
    ]
    assert revisions[0] == revisions[1]
    assert "template" not in without.pools[0].manifest["spec"]


TOLERATES: Manifest = {"template": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}


@pytest.mark.parametrize("before", [{}, {QUEUE: "other"}, {QUEUE: "gpus"}])
def test_a_queue_waits_for_the_next_edit_of_a_pool_that_is_there(before: dict[str, str]) -> None:
    """As where another release did not pass the label on, and as where somebody sets it now."""
    first = planned(before)
    plan = next_plan(at_work(first), {QUEUE: "gpus"})
    assert plan.pools[0].manifest == first.pools[0].manifest
    assert engine_labels(plan).get(QUEUE) == before.get(QUEUE)
    change = f"pool mixed: label {QUEUE} {before.get(QUEUE, 'none')} to gpus"
    assert (change in plan.upgrade) is (before.get(QUEUE) != "gpus")

    for edit in (TOLERATES, {"rollout": {"upgrade": "2"}}, {"engine": {"chunkSize": 128}}):
        edited = next_plan(at_work(first), {QUEUE: "gpus"}, edit)
        assert engine_labels(edited)[QUEUE] == "gpus"
        assert not any("label" in text for text in edited.upgrade)


def test_a_label_that_is_removed_stays_until_the_next_edit() -> None:
    plan = next_plan(at_work(planned({QUEUE: "gpus"})), {})
    assert engine_labels(plan)[QUEUE] == "gpus"
    assert f"pool mixed: label {QUEUE} gpus to none" in plan.upgrade
    assert QUEUE not in engine_labels(next_plan(at_work(plan), {}, TOLERATES))


def test_an_edit_that_is_taken_back_returns_to_the_queue_of_the_pods_that_are_there() -> None:
    first = planned({})
    edit: Manifest = {"engine": {"chunkSize": 128}}
    edited = next_plan(at_work(first), {QUEUE: "gpus"}, edit)
    former = [item for item in at_work(first) if item["kind"] == "ControllerRevision"]
    back = next_plan([*at_work(edited), *former], {QUEUE: "gpus"})
    assert back.refusal is None
    assert QUEUE not in engine_labels(back)


def test_labels_that_leave_no_room_for_the_queue_are_refused_by_name() -> None:
    own = {f"team-{number}": "search" for number in range(32)}
    plan = planned({QUEUE: "gpus", PRIORITY: "high"}, {"labels": own})
    assert plan.refusal is not None
    assert plan.refusal.field == "spec.template.labels"
    assert f"32 labels are not allowed beside {PRIORITY} and {QUEUE}" in plan.refusal.message
    assert "at most 32" in plan.refusal.message
    assert planned({}, {"labels": own}).refusal is None
    fewer = dict(list(own.items())[2:])
    assert planned({QUEUE: "gpus", PRIORITY: "high"}, {"labels": fewer}).refusal is None
    assert planned({QUEUE: "gpus"}, {"labels": fewer | {QUEUE: "x", "one": "more"}}).refusal is None
