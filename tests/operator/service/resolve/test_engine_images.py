"""Which engine image a pool gets, by its accelerator; a pool for which there is none is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.observe import Images
from sluice_operator.service.plan import plan_service

from tests.operator.examples import IMAGES, live, service, service_observed, written

NVIDIA: Manifest = {"count": 1}
MIG: Manifest = {"resourceName": "nvidia.com/mig-3g.40gb"}
AMD: Manifest = {"resourceName": "amd.com/gpu"}
NO_GPU_IMAGE = Images(engine="cpu:1", router="router:1")
ALL = Images(engine="cpu:1", router="router:1", gpu_engine="cuda:1")


def spec(accelerator: Manifest | None, image: str | None = None) -> Manifest:
    pool = {"accelerator": accelerator} if accelerator is not None else {}
    return {"engine": {"image": image} if image else {}, **pool}


@pytest.mark.parametrize(
    ("accelerator", "images", "named", "expected"),
    [
        (None, ALL, None, "cpu:1"),
        (None, NO_GPU_IMAGE, None, "cpu:1"),
        (NVIDIA, ALL, None, "cuda:1"),
        (MIG, ALL, None, "cuda:1"),
        (NVIDIA, NO_GPU_IMAGE, "mine:1", "mine:1"),
        (AMD, ALL, "rocm:1", "rocm:1"),
        (NVIDIA, NO_GPU_IMAGE, None, "SLUICE_GPU_ENGINE_IMAGE of the operator is not set"),
        (AMD, ALL, None, "SLUICE_GPU_ENGINE_IMAGE of the operator is for nvidia.com"),
    ],
)
def test_a_pool_gets_the_image_of_its_accelerator_or_is_refused(
    accelerator: Manifest | None, images: Images, named: str | None, expected: str
) -> None:
    plan = plan_service(replace(service_observed(service(spec(accelerator, named))), images=images))
    if plan.refusal is None:
        (pool,) = plan.pools
        assert pool.manifest["spec"]["image"] == expected
    else:
        assert (plan.refusal.reason, plan.refusal.field) == ("InvalidSpec", "spec.engine.image")
        assert plan.refusal.message.endswith(expected)


def test_a_pool_that_runs_keeps_its_image_when_the_operator_has_none_any_more() -> None:
    made = service(spec(NVIDIA))
    children = map(live, written(plan_service(service_observed(made))))
    observed = replace(service_observed(made, children), images=NO_GPU_IMAGE)
    plan = plan_service(observed)
    assert plan.refusal is None
    assert plan.pools[0].manifest["spec"]["image"] == IMAGES.gpu_engine
