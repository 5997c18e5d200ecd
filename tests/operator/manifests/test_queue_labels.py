"""Labels for Kueue, from the service or from a pool's template: on engine pods, not on routers."""

from __future__ import annotations

from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.plan import plan_pool
from sluice_operator.service.plan import ServicePlan, plan_service

from tests.operator.examples import pool_observed, service, service_observed

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY = "kueue.x-k8s.io/priority-class"


def planned(labels: dict[str, str], pool: Manifest | None = None) -> ServicePlan:
    spec = {"pools": {"mixed": {"template": pool}}} if pool else {}
    return plan_service(service_observed(service(spec, labels=labels)))


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
