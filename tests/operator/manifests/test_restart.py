"""A restart replaces the pods by the same ones, whatever release of the operator runs by now."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.deployments import RESTARTED_AT, deployment_with, to_apply
from sluice_operator.pool.plan import plan_pool

from tests.operator.examples import live, of, pool, pool_observed, pool_plan, service_plan

RESTART: Manifest = {"rollout": {"restartedAt": "2026-01-02T03:04:05Z"}}


def deployments(spec: Manifest | None = None) -> tuple[Manifest, Manifest]:
    """That of the routers and that of the engines."""
    engines = pool_plan(spec).deployment
    assert engines is not None
    return of(service_plan(spec).apply, "Deployment"), engines


def marks(deployment: Manifest) -> Manifest:
    found: Manifest = deployment["spec"]["template"]["metadata"].get("annotations", {})
    return found


def test_engines_and_routers_get_a_mark_and_nothing_else() -> None:
    for before, after in zip(deployments(), deployments(RESTART), strict=True):
        assert marks(before) == {}
        assert marks(after) == {RESTARTED_AT: "2026-01-02T03:04:05Z"}
        assert after["metadata"]["name"] == before["metadata"]["name"]
        after["spec"]["template"]["metadata"].pop("annotations")
        assert after["spec"] == before["spec"]


def test_pods_of_a_former_release_stay_as_they_were_written() -> None:
    for applied, built in zip(deployments(), deployments(RESTART), strict=True):
        newer = of_next_release(built)
        restarted = to_apply(newer, applied)
        assert marks(restarted) == marks(newer)
        assert "fsGroup" not in restarted["spec"]["template"]["spec"]["securityContext"]
        assert to_apply(newer, restarted) == restarted, "once is enough"
        taken_back = to_apply(of_next_release(applied), restarted)
        assert taken_back == applied


def test_a_restart_by_the_same_release_keeps_nothing_back() -> None:
    for applied, built in zip(deployments(), deployments(RESTART), strict=True):
        assert to_apply(built, applied) is built, "else an upgrade would be told of"
        assert to_apply(built, built) is built
        assert to_apply(applied, built) is applied, "and taken back"


def test_requests_of_disk_wait_for_another_spec_of_the_same_service() -> None:
    """They came with a release: an upgrade to it restarts nothing."""
    for built in deployments():
        former = rewritten(built, without_disk_requests)
        assert former["spec"]["template"] != built["spec"]["template"]
        assert to_apply(built, former)["spec"]["template"] == former["spec"]["template"]
        former["metadata"]["annotations"]["serving.sluice.dev/inputs"] = "an edit ago"
        assert to_apply(built, former) is built


SCALED: Manifest = {
    "accelerator": {"count": 1},
    "autoscaling": {"minReplicas": 1, "maxReplicas": 3},
}
MANNERS: list[Manifest] = [
    {"rollout": {"strategy": "InPlace"}},
    SCALED | {"autoscaling": SCALED["autoscaling"] | {"gpuBudget": 4}},
]


@pytest.mark.parametrize("spec", MANNERS)
@pytest.mark.parametrize("taken_back", [False, True])
def test_another_manner_to_replace_pods_replaces_none_of_a_former_release(
    spec: Manifest, taken_back: bool
) -> None:
    """A budget, which is a manner too, can be added while a service serves."""
    plain = SCALED if "accelerator" in spec else {}
    before, after = (spec, plain) if taken_back else (plain, spec)
    former = rewritten(deployments(before)[1], without_disk_requests)
    desired = _planned(after, former)
    assert desired["spec"]["template"] == former["spec"]["template"]
    strategy = deployments(after)[1]["spec"]["strategy"]
    assert desired["spec"]["strategy"] == strategy != former["spec"]["strategy"]
    assert _planned(after, desired) == desired, "once is enough"


def _planned(spec: Manifest, applied: Manifest) -> Manifest:
    deployment = plan_pool(pool_observed(pool(spec), (live(applied),))).deployment
    assert deployment is not None
    return deployment


def without_disk_requests(pod: Manifest) -> None:
    del pod["containers"][0]["resources"]["requests"]["ephemeral-storage"]


def with_group(pod: Manifest) -> None:
    pod["securityContext"]["fsGroup"] = 1000


def of_next_release(deployment: Manifest) -> Manifest:
    """The same, with pods that are written otherwise."""
    return rewritten(deployment, with_group)


def rewritten(deployment: Manifest, change: Callable[[Manifest], None]) -> Manifest:
    found = copy.deepcopy(deployment)
    replicas, notes = found["spec"].pop("replicas"), found["metadata"]["annotations"]
    change(found["spec"]["template"]["spec"])
    inputs = notes.pop("serving.sluice.dev/inputs")
    for name in ("template", "template-fields", "desired-hash"):
        del notes[f"serving.sluice.dev/{name}"]
    return deployment_with(found, replicas, inputs)
