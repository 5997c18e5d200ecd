"""Devices by a ResourceClaimTemplate: in the pod and its engine, no extended resource."""

from __future__ import annotations

from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import pool_plan, service_plan

DISK: Manifest = {"ephemeral-storage": "128Mi"}
"""Of every engine."""
CLAIMED: Manifest = {"claimTemplate": "two-gpus", "count": 2}


def spec_of(accelerator: Manifest, **pool: Manifest) -> Manifest:
    return {"accelerator": accelerator, **pool}


def pod_of(spec: Manifest) -> Manifest:
    deployment = pool_plan(spec).deployment
    assert deployment is not None
    pod: Manifest = deployment["spec"]["template"]["spec"]
    return pod


def test_the_pod_has_a_claim_of_the_template_and_its_engine_uses_it() -> None:
    resources = {"requests": {"cpu": "1", **DISK}, "limits": {"memory": "32Gi"}}
    pod = pod_of(spec_of(CLAIMED | {"product": "NVIDIA-A100-SXM4-40GB"}, resources=resources))
    (claim,), (engine,) = pod["resourceClaims"], pod["containers"]
    assert claim == {"name": "accelerator", "resourceClaimTemplateName": "two-gpus"}
    assert engine["resources"] == resources | {"claims": [{"name": "accelerator"}]}
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}


def test_count_is_what_the_engine_and_the_budget_reckon_with() -> None:
    plan = service_plan(spec_of(CLAIMED))
    assert plan.pools[0].accelerator.accelerator.count == 2
    assert plan.pools[0].settings["tensor_parallel_size"].value == 2


def test_another_template_is_another_revision_and_without_one_nothing_changes() -> None:
    plain, claimed = pool_plan(spec_of({"count": 2})), pool_plan(spec_of(CLAIMED))
    other = pool_plan(spec_of(CLAIMED | {"claimTemplate": "other"}))
    assert len({plain.revision, claimed.revision, other.revision}) == 3
    pod = pod_of(spec_of({"count": 2}))
    assert "resourceClaims" not in pod
    assert pod["containers"][0]["resources"] == {
        "requests": DISK,
        "limits": {"nvidia.com/gpu": 2},
    }
