"""What a service reports while it goes from one mode to the other."""

from __future__ import annotations

import pytest
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import complete
from tests.operator.service.rollout.mode_world import (
    APART,
    MIXED,
    SWITCHES,
    World,
    followed_pools,
    pools_in,
    roles_in,
    serving_in,
)


@pytest.mark.parametrize(
    ("before", "after", "engines"),
    [({"replicas": 3}, {"replicas": 3, "prefill": {}}, ("3/3", "P 1/1 D 3/3")),
     ({"replicas": 2, "prefill": {}}, {"replicas": 4}, ("P 1/1 D 2/2", "4/4"))],
    ids=["apart", "together"],
)  # fmt: skip
def test_mode_replicas_and_engines_of_a_status_are_those_of_the_pools_that_serve(
    before: Manifest, after: Manifest, engines: tuple[str, str]
) -> None:
    modes = ("Mixed", "Disaggregated") if "prefill" in after else ("Disaggregated", "Mixed")
    world, _ = serving_in(before)
    for _ in range(2):
        world = world.carried_out(world.plan(after))
        found = world.status(after)
        assert (found["mode"], found["summary"], found["replicas"]) == (
            modes[0], engines[0], before["replicas"],
        )  # fmt: skip
        assert found["pools"].keys() == set(roles_in(after)), "how far these are"
    world, switched = world.switched(after)
    world = world.with_routers(switched)
    found = world.status(after)
    assert (found["mode"], found["summary"], found["replicas"]) == (
        modes[1], engines[1], after["replicas"],
    )  # fmt: skip


def test_it_is_ready_while_the_former_pools_serve() -> None:
    world, _ = serving_in(MIXED)
    world = world.carried_out(world.plan(APART))
    routers = complete(world.children["Deployment", "chat-router"])
    world.children["Deployment", "chat-router"] = routers
    status = world.status(APART)
    told = {kind: find(status, kind) for kind in ("Ready", "MixedReady", "DecodeReady", "Updated")}
    assert {kind: found and found["status"] for kind, found in told.items()} == {
        "Ready": "True",
        "MixedReady": "True",
        "DecodeReady": "False",
        "Updated": "False",
    }
    assert status["mode"] == "Mixed"
    assert status["pools"].keys() == {"prefill", "decode"}


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
def test_it_stays_ready_while_the_pools_report_later_than_their_deployments(
    before: Manifest, after: Manifest
) -> None:
    world, _ = serving_in(before)
    world = world.carried_out(world.plan(after))
    silent = {key: child for key, child in world.children.items() if key[0] == "EnginePool"}
    reported = world.carried_out(world.plan(after), roles_in(after))

    late = reported._replace(children=reported.children | silent)
    assert _ready(late, after) == "True"
    assert followed_pools(late, late.plan(after)) == pools_in(before)

    assert followed_pools(reported, reported.plan(after)) == pools_in(after)
    assert _ready(reported, after) == "True"


def _ready(world: World, spec: Manifest) -> str:
    routers = complete(world.children["Deployment", "chat-router"])
    children = world.children | {("Deployment", "chat-router"): routers}
    ready = find(world._replace(children=children).status(spec), "Ready")
    assert ready is not None
    return str(ready["status"])


def test_new_pools_that_fail_halt_the_switch() -> None:
    world, _ = serving_in(MIXED)
    world = world.carried_out(world.plan(APART))
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "ModelLoadFailed",
        "message": "pod a.",
    }
    for role in roles_in(APART):
        pool = world.children["EnginePool", f"chat-{role}"]
        told = {"observedGeneration": pool["metadata"]["generation"], "conditions": [stalled]}
        world.children["EnginePool", f"chat-{role}"] = pool | {"status": told}
    progressing = find(world.status(APART), "Progressing")
    assert progressing is not None
    assert (progressing["status"], progressing["reason"]) == ("False", "RolloutHalted")
    assert progressing["message"] == (
        "ModelLoadFailed: Pool prefill: pod a. The pools of the former mode serve on."
    )


def test_a_former_pool_that_does_not_serve_is_told() -> None:
    world, _ = serving_in(MIXED)
    key = ("EnginePool", "chat-mixed")
    pool = world.children[key]
    gone = [each | {"ready": 0} for each in pool["status"]["revisions"]]
    world.children[key] = pool | {
        "status": pool["status"] | {"revisions": gone, "readyReplicas": 0}
    }
    status = world.status(APART)
    ready = find(status, "Ready")
    assert ready is not None
    assert ready["status"] == "False"
    assert "mixed" in ready["message"]
