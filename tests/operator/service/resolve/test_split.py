"""Two pools without numbers, and a budget: the operator chooses the split."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_autoscaler.settings import PoolLimits
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import PRODUCTS, Accelerator
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.scaling import scaling_check, scaling_settings
from sluice_operator.service.resolve.replicas import prefill_share

from tests.operator.examples import service, service_observed

A100 = "NVIDIA-A100-SXM4-40GB"


def left_out(budget: int | None = 8, **given: Any) -> Manifest:
    scaling = {} if budget is None else {"gpuBudget": budget}
    spec = {"autoscaling": scaling, "accelerator": given.pop("accelerator", None) or {}}
    return spec | {"prefill": {}} | given


def replicas_of(spec: Manifest) -> dict[str, int]:
    plan = plan_service(service_observed(service(spec)))
    assert plan.refusal is None, plan.refusal
    return {p["spec"]["role"]: p["spec"]["replicas"] for p in of_kind(plan.apply, ENGINE_POOL)}


@pytest.mark.parametrize(
    ("budget", "accelerator", "prefill"),
    [
        (2, None, 1),
        (3, None, 1),
        (8, None, 3),
        (8, {"product": "NVIDIA-L4"}, 2),
        (16, {"product": A100}, 6),
        (16, {"product": A100, "count": 2}, 3),
    ],
)
def test_the_budget_is_split_by_what_the_accelerator_can_do(
    budget: int, accelerator: Manifest | None, prefill: int
) -> None:
    engines = budget // (accelerator or {}).get("count", 1)
    found = replicas_of(left_out(budget, accelerator=accelerator))
    assert found == {"prefill": prefill, "decode": engines - prefill}


def test_no_pool_begins_with_more_engines_than_a_pool_may_have() -> None:
    assert replicas_of(left_out(3000)) == {"prefill": 1000, "decode": 1000}


def test_every_known_product_gets_engines_of_both_kinds() -> None:
    for row in PRODUCTS:
        assert 0.2 < prefill_share(Accelerator(product=row.name, count=1)) < 0.55, row.name


def test_both_pools_move_between_one_engine_and_all_but_one_under_the_budget() -> None:
    spec = InferenceServiceSpec.model_validate(
        {"model": {"uri": "dummy://tiny"}} | left_out(9, slo={"ttftMilliseconds": 900})
    )
    settings = scaling_settings(spec)
    assert settings.pools == dict.fromkeys((Role.PREFILL, Role.DECODE), PoolLimits(1, 8, 1))
    assert settings.gpu_budget == 9


def test_it_says_what_it_chose_and_why() -> None:
    observed = service_observed(service(left_out(accelerator={"product": A100})))
    told = scaling_check(observed.service, plan_service(observed), None)
    assert told is not None
    assert told.reason == "NotDecidedYet"
    assert "8 GPUs begin as 3 prefill and 5 decode engines" in told.message
    assert A100 in told.message


@pytest.mark.parametrize(
    ("spec", "field", "allowed"),
    [
        (left_out(1), "spec.autoscaling.gpuBudget", "at least 2"),
        (
            left_out(3, accelerator={"count": 2}),
            "spec.autoscaling.gpuBudget",
            "at least 4",
        ),
        (
            left_out(accelerator={"count": 2}, engine={"tensorParallelSize": 4}),
            "spec.engine.tensorParallelSize",
            "spec.accelerator.count (2)",
        ),
        (left_out(None), "spec.autoscaling", "with spec.autoscaling.minReplicas"),
        (left_out(replicas=2), "spec.replicas", "only with prefill.replicas"),
        (left_out(replicas=0), "spec.replicas", "only with prefill.replicas"),
        (left_out(prefill={"replicas": 2}), "spec.prefill", "only with spec.replicas"),
        (
            left_out(prefill={"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}),
            "spec.prefill",
            "only with spec.replicas or autoscaling.minReplicas",
        ),
    ],
)
def test_what_cannot_be_split_is_refused(spec: Manifest, field: str, allowed: str) -> None:
    refusal = plan_service(service_observed(service(spec))).refusal
    assert refusal is not None
    assert refusal.field == field
    assert allowed in refusal.message
