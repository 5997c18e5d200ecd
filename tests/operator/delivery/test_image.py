"""A model in an image: mounted where cluster and nodes can, else copied; what was chosen stays."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.cli.preview import as_text, preview
from sluice_operator.cli.yaml_text import to_yaml_stream
from sluice_operator.delivery.image import nodes_mount_images
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest
from sluice_operator.manifests.engine import engine_deployment
from sluice_operator.manifests.metadata import owner
from sluice_operator.service.plan import ServicePlan, plan_service

from tests.operator.examples import IMAGES, live, of, service, service_observed, written
from tests.operator.golden import assert_golden

REFERENCE = "registry.example.com:5000/models/qwen3:1"
SPEC: Manifest = {
    "model": {"uri": f"oci://{REFERENCE}"},
    "template": {"imagePullSecrets": [{"name": "registry"}]},
}


def node(runtime: str) -> Manifest:
    return {
        "metadata": {"name": runtime},
        "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
    }


ABLE = (node("containerd://2.1.4"), node("cri-o://1.34.0"))


def planned(plan: ServicePlan) -> Manifest:
    (pool,) = plan.pools
    found: Manifest = pool.manifest["spec"]
    return found


def pod_of(pool: Manifest) -> Manifest:
    spec = EnginePoolSpec.model_validate(pool["spec"])
    top = owner(ENGINE_POOL, live(pool), "chat-mixed")
    found: Manifest = engine_deployment(top, spec)["spec"]["template"]["spec"]
    return found


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (None, False),
        ((), False),
        (ABLE, True),
        ((*ABLE, node("containerd://1.7.27")), False),
        ((*ABLE, node("cri-o://1.30.2")), False),
        ((node("containerd://v2.2.0-rc.1"),), True),
        ((node("docker://28.0.0"),), False),
        ((node(""),), False),
    ],
)
def test_images_are_mounted_where_each_node_can(
    nodes: tuple[Manifest, ...] | None, expected: bool
) -> None:
    assert nodes_mount_images(nodes) is expected


@pytest.mark.parametrize(("accepted", "mounted"), [(False, None), (True, True)])
def test_the_manifests_of_both_ways_are_golden(accepted: bool, mounted: bool | None) -> None:
    observed = service_observed(service(SPEC), nodes=ABLE, accepts_image_volumes=accepted)
    plan = plan_service(observed)
    (pool,) = plan.pools
    image = {"reference": REFERENCE, "copier": IMAGES.fetch}
    assert pool.manifest["spec"]["modelImage"] == image | ({"mounted": True} if mounted else {})
    file = of(plan.apply, "ConfigMap", pool.manifest["spec"]["configRef"]["name"])
    config = json.loads(file["data"]["engine.json"])
    assert (config["model"]["uri"], config["model"]["name"]) == ("file:///mnt/model", "qwen3")
    name = "mounted" if mounted else "copied"
    text = to_yaml_stream([pod_of(pool.manifest)])
    assert_golden(f"manifests/model-image-{name}.yaml", text)


def test_what_was_chosen_stays_when_the_cluster_learns_to_mount_images() -> None:
    item = service(SPEC)
    first = plan_service(service_observed(item, nodes=ABLE))
    children = tuple(map(live, written(first)))
    later = service_observed(item, children, nodes=ABLE, accepts_image_volumes=True)
    second = plan_service(later)
    assert planned(second)["modelImage"] == planned(first)["modelImage"]
    other = service(SPEC | {"model": {"uri": "oci://registry.example.com/other:1"}}, generation=2)
    assert planned(plan_service(replace(later, service=other)))["modelImage"]["mounted"] is True


def test_another_image_is_another_revision() -> None:
    def revision(uri: str) -> str:
        found = planned(
            plan_service(service_observed(service({"model": {"uri": uri, "name": "m"}})))
        )
        name: str = found["revisions"][0]["name"]
        return name

    assert revision("oci://r.example/m:1") != revision("oci://r.example/m:2")


def test_a_preview_says_that_a_tag_may_move() -> None:
    def text(uri: str) -> str:
        return as_text(preview(service({"model": {"uri": uri, "name": "m"}}), IMAGES))

    assert "Its tag may move" in text("oci://r.example/m:1")
    assert "Its tag may move" not in text(f"oci://r.example/m:1@sha256:{'0' * 64}")
    assert "copies it out of the image" not in text("file:///models/m")


def test_without_the_fetchers_image_it_is_refused_by_name() -> None:
    observed = replace(service_observed(service(SPEC)), images=replace(IMAGES, fetch=""))
    refusal = plan_service(observed).refusal
    assert refusal is not None
    assert refusal.field == "spec.model.uri"
    assert REFERENCE in refusal.message
    assert "SLUICE_FETCH_IMAGE of the operator is not set" in refusal.message
