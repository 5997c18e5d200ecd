"""From one mode to the other: what serves stays until wanted pools serve and routers use them."""

from __future__ import annotations

import pytest
from sluice_contract.cluster.labels import Role
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import owner, with_applied_fields
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.scaling import scaled_service
from sluice_operator.service.rollout.mode_switch import Former, former_manifests

from tests.operator.examples import pool_with, service, service_observed
from tests.operator.service.rollout.mode_world import (
    APART,
    MIXED,
    SWITCHES,
    World,
    followed_pools,
    identity_of,
    mounted_file,
    pools_in,
    removes_pools,
    replicas_of,
    roles_in,
    scaled_spec,
    serving_in,
)


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
def test_the_former_pools_go_last(before: Manifest, after: Manifest) -> None:
    world, former = serving_in(before)
    assert world.plan(before).prune == ()

    started = world.plan(after)
    assert followed_pools(world, started) == pools_in(before), "routers wait for the wanted pools"
    assert started.prune == ()
    world = world.carried_out(started)
    assert world.pools() == pools_in(before) | pools_in(after)

    half = world.carried_out(world.plan(after), roles_in(after)[:-1])
    assert followed_pools(half, half.plan(after)) == pools_in(before)

    world = world.carried_out(world.plan(after), roles_in(after))
    switched = world.plan(after)
    assert followed_pools(world, switched) == pools_in(after)
    assert switched.prune == (), "routers of the former mode still run"

    world = world.carried_out(switched, roles_in(after)).with_routers(former, switched)
    stays = world.carried_out(world.plan(after), roles_in(after)).pools()
    assert stays == pools_in(before) | pools_in(after), "one of them still does"

    done = world.with_routers(switched).plan(after)
    world = world.carried_out(done, roles_in(after)).with_routers(switched)
    assert world.pools() == pools_in(after)
    assert world.plan(after).prune == (), "their files have gone with them"
    left = {name for _, name in world.children}
    assert not [name for role in roles_in(before) for name in left if f"-{role}" in name]


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
def test_a_switch_that_is_taken_back_leaves_nothing(before: Manifest, after: Manifest) -> None:
    world, former = serving_in(before)
    started = world.plan(after)
    world = world.carried_out(started)
    back = world.plan(before)
    assert followed_pools(world, back) == pools_in(before)
    assert back.router == former.router
    assert world.carried_out(back, roles_in(before)).pools() == pools_in(before)


def test_wanted_engines_that_die_after_the_switch_bring_nothing_back() -> None:
    world, _ = serving_in(MIXED)
    world, switched = world.switched(APART)
    world.stop("decode")
    again = world.plan(APART)
    assert followed_pools(world, again) == pools_in(APART)
    assert again.router == switched.router


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("most", [16, 3])
def test_scaled_pools_start_with_as_many_engines_as_those_of_the_former_mode_run(
    least: int, most: int
) -> None:
    world, _ = serving_in(scaled_spec("Mixed", 1))
    split = replicas_of(world.scaled("mixed", 10).plan(scaled_spec("Disaggregated", least, most)))
    wanted = {"prefill": 3, "decode": 7} if most == 16 else {"prefill": 3, "decode": 3}
    assert split == wanted
    world, _ = serving_in(scaled_spec("Disaggregated", 1))
    world = world.scaled("prefill", 4).scaled("decode", 5)
    assert replicas_of(world.plan(scaled_spec("Mixed", least, most))) == {"mixed": min(9, most)}


def test_they_start_with_no_more_gpus_than_those_of_the_former_mode_hold() -> None:
    world, _ = serving_in(scaled_spec("Mixed", 1))
    large = scaled_spec("Disaggregated", 1)
    large["accelerator"] = {"count": 2}
    assert replicas_of(world.scaled("mixed", 10).plan(large)) == {"prefill": 2, "decode": 3}
    tight = scaled_spec("Disaggregated", 1, gpuBudget=6)
    assert sum(replicas_of(world.scaled("mixed", 10).plan(tight)).values()) == 6
    assert replicas_of(world.scaled("mixed", 1).plan(large)) == {"prefill": 1, "decode": 1}


def test_engines_that_serve_stay_where_pools_that_sleep_cannot_start() -> None:
    """Scaled to zero at least, and an image that cannot be pulled in the same edit."""
    world, _ = serving_in(scaled_spec("Mixed", 0))
    world = world.scaled("mixed", 6)
    after = scaled_spec("Disaggregated", 0) | {"engine": {"image": "wrong:1"}}
    for _ in range(4):
        plan = world.plan(after)
        assert followed_pools(world, plan) == {"chat-mixed"}
        assert plan.prune == ()
        world = world.carried_out(plan)
    assert min(replicas_of(world.plan(after)).values()) > 0
    for role in ("prefill", "decode"):
        world = world.scaled(role, 0)
    plan = world.plan(after)
    assert followed_pools(world, plan) == {"chat-mixed"}, "0 of 0 engines have not come up"
    assert plan.prune == ()


@pytest.mark.parametrize("fixed", [False, True], ids=["both sleep", "asked for none"])
def test_pools_without_engines_take_over_where_nothing_serves_or_none_is_asked_for(
    *, fixed: bool
) -> None:
    world, _ = serving_in(scaled_spec("Mixed", 0))
    after = scaled_spec("Disaggregated", 0)
    if fixed:
        world = world.scaled("mixed", 2)
        after = APART | {"replicas": 0, "prefill": {"replicas": 0}}
    world = world.carried_out(world.plan(after), roles_in(after))
    switched = world.plan(after)
    assert followed_pools(world, switched) == {"chat-prefill", "chat-decode"}
    world = world.carried_out(switched, roles_in(after)).with_routers(switched)
    assert world.carried_out(world.plan(after)).pools() == {"chat-prefill", "chat-decode"}


def test_former_engines_stay_while_no_router_runs_or_the_new_ones_are_not_ready() -> None:
    world, _ = serving_in(MIXED)
    world = world.carried_out(world.plan(APART))
    lost = world.without("Deployment", "chat-router").with_routers()
    assert not removes_pools(lost.plan(APART))
    world, switched = world.switched(APART)
    world = world.with_routers(switched)
    assert removes_pools(world.plan(APART))
    world.stop("decode")
    assert not removes_pools(world.plan(APART))


def test_config_maps_that_others_mount_into_routers_keep_no_former_pool() -> None:
    world, former = serving_in(MIXED)
    world, switched = world.switched(APART)
    world = world.with_routers(former, switched)
    for pod in world.routers:
        root = {"name": "istiod-ca-cert", "configMap": {"name": "istio-ca-root-cert"}}
        pod["spec"] = pod["spec"] | {"volumes": [root, *pod["spec"]["volumes"]]}
    assert not removes_pools(world.plan(APART)), "a former router runs"
    world = world._replace(routers=world.routers[1:])
    assert removes_pools(world.plan(APART))


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
@pytest.mark.parametrize("lost", [("Deployment", "chat-router"), ("ConfigMap", "")])
def test_routers_that_are_lost_while_new_pools_cannot_start_are_made_for_those_that_serve(
    before: Manifest, after: Manifest, lost: tuple[str, str]
) -> None:
    world, former = serving_in(before)
    world = world.carried_out(world.plan(after))
    world = world.without(lost[0], lost[1] or mounted_file(former)).with_routers()
    for _ in range(3):
        plan = world.plan(after)
        assert followed_pools(world, plan) == pools_in(before)
        assert not removes_pools(plan)
        world = world.carried_out(plan).with_routers(plan)
    world = world.carried_out(world.plan(after), roles_in(after))
    assert followed_pools(world, world.plan(after)) == pools_in(after)


def test_routers_that_are_lost_after_the_switch_follow_the_new_pools() -> None:
    world, _ = serving_in(MIXED)
    world, switched = world.switched(APART)
    world = world.with_routers(switched)
    world.stop("decode")
    lost = world.without("Deployment", "chat-router").with_routers()
    there = service(APART) | {"status": {"mode": "Disaggregated"}}
    plan = plan_service(service_observed(there, lost.children.values()))
    assert followed_pools(lost, plan) == pools_in(APART)


def test_former_pools_that_never_served_make_room() -> None:
    """As of a mode that was asked for by mistake, and taken back."""
    plan = World({}).plan(APART)
    world = World({}).carried_out(plan).with_routers(plan)
    back = world.plan(MIXED)
    assert followed_pools(world, back) == pools_in(APART), "nothing has come up yet"
    world = world.carried_out(back, ["mixed"]).with_routers(back)
    world = world.carried_out(moved := world.plan(MIXED), ["mixed"]).with_routers(moved)
    world.stop("mixed")
    assert removes_pools(world.plan(MIXED))


@pytest.mark.parametrize("mode", ["Mixed", "Disaggregated"])
def test_former_pools_are_scaled_while_they_serve(mode: str) -> None:
    other = "Disaggregated" if mode == "Mixed" else "Mixed"
    before, after = scaled_spec(mode, 1, 5), scaled_spec(other, 0, gpuBudget=12)
    world, _ = serving_in(scaled_spec(mode, 1, 2))
    world = world.carried_out(world.plan(before), roles_in(before))
    world = world.scaled(roles_in(before)[0], 3)
    world = world.carried_out(world.plan(after))
    observed = world.observed(after)
    plan = plan_service(observed)
    assert plan.former.is_served
    scaled = scaled_service(observed, plan)
    assert scaled is not None
    assert {role: pool.name for role, pool in scaled.pools.items()} == {
        role: f"chat-{role}" for role in roles_in(before)
    }
    assert scaled.pools[Role(roles_in(before)[0])].replicas == 3
    assert {limits.maximum for limits in scaled.settings.pools.values()} == {5}, "the last ones"
    assert scaled.settings.gpu_budget == 12
    assert scaled.former_gpus == sum(replicas_of(plan).values()), "those of the new pools"


def outside(spec: Manifest) -> Manifest:
    scaling = {"provider": "External", "minReplicas": 1, "maxReplicas": 4}
    return spec | {"autoscaling": scaling}


@pytest.mark.parametrize(
    ("before", "after", "goes", "gone"),
    [
        (
            outside(MIXED),
            outside(APART),
            "EnginePool chat-mixed will go, replaced by chat-prefill and chat-decode: what scales "
            "from outside needs the new name.",
            " What scales chat-mixed has nothing to scale any more.",
        ),
        (
            outside(APART),
            MIXED,
            "EnginePool chat-prefill and chat-decode will go, replaced by chat-mixed: what scales "
            "from outside needs the new name.",
            " What scales chat-prefill and chat-decode has nothing to scale any more.",
        ),
        (MIXED, outside(APART), None, ""),
        (scaled_spec("Mixed", 1), outside(APART), None, ""),
    ],
    ids=["apart", "together", "fixed", "scaled by the operator"],
)
def test_those_who_scale_pools_that_will_go_hear_of_it_at_once(
    before: Manifest, after: Manifest, goes: str | None, gone: str
) -> None:
    def told(world: World, reason: str) -> list[str]:
        return [event.message for event in world.plan(after).events if event.reason == reason]

    world, former = serving_in(before)
    assert told(world, "ScaleTargetGoes") == ([goes] if goes else [])
    world = world.carried_out(world.plan(after), roles_in(after))
    assert told(world, "ScaleTargetGoes") == [], "once"
    for _ in range(2):
        switched = world.plan(after)
        world = world.carried_out(switched, roles_in(after)).with_routers(switched)
        (removal,) = told(world, "Removed") or [""]
        if removal:
            break
    assert former.pools[0].manifest["metadata"]["name"] in removal
    assert removal.endswith(f".{gone}")


@pytest.mark.parametrize("rollout", ["InPlace", "Surge"])
def test_former_pools_have_as_many_engines_as_they_are_asked_for(rollout: str) -> None:
    """Also where their service has planned each engine, as it does without room for others."""
    more: Manifest = {"rollout": {"strategy": rollout}}
    before = scaled_spec("Mixed", 1, gpuBudget=8) | more
    world, _ = serving_in(before)
    world = world.carried_out(world.plan(APART | more))
    world.ask("mixed", 4)
    plan = world.plan(APART | more)
    world = world.carried_out(plan)
    pool = world.children["EnginePool", "chat-mixed"]
    built = plan_pool(PoolObserved(pool, service({}))).deployment
    assert built is not None
    assert built["spec"]["replicas"] == 4
    again = world.plan(APART | more)
    assert identity_of(pool) not in {identity_of(manifest) for manifest in again.apply}, "at rest"


def test_the_last_engine_of_a_former_pool_stays_beside_its_successor() -> None:
    """It serves: in a roll-out under a budget a pool of one engine may have two."""
    spec: Manifest = {"replicas": 1, "rollout": {"strategy": "InPlace"}}
    pool = pool_with(spec, a=1)
    assert [share["replicas"] for share in pool["spec"]["revisions"]] == [1, 1]
    noted, top = {Role.MIXED: "a"}, owner(INFERENCE_SERVICE, service(), "chat")
    assert not list(former_manifests(Former((with_applied_fields(pool),)), noted, top))


def test_former_pools_of_fixed_size_are_scaled_by_nobody() -> None:
    world, _ = serving_in(scaled_spec("Mixed", 1, 5))
    fixed: Manifest = {"replicas": 4}
    world = world.carried_out(world.plan(fixed), ["mixed"])
    after = scaled_spec("Disaggregated", 1)
    world = world.carried_out(world.plan(after))
    observed = world.observed(after)
    plan = plan_service(observed)
    assert plan.former.is_served
    assert scaled_service(observed, plan) is None


@pytest.mark.parametrize("rollout", ["InPlace", "Surge"])
def test_of_former_pools_in_a_roll_out_what_was_complete_follows_the_number(rollout: str) -> None:
    before = scaled_spec("Mixed", 1) | {"rollout": {"strategy": rollout}}
    world, _ = serving_in(before)
    world = world.scaled("mixed", 3)
    world = world.carried_out(world.plan(before), ["mixed"])
    world = world.carried_out(world.plan(before | {"engine": {"image": "wrong:1"}}))
    after = APART | {"rollout": {"strategy": rollout}}
    world = world.carried_out(world.plan(after))
    shares = world.children["EnginePool", "chat-mixed"]["spec"]["revisions"]
    assert len(shares) == 2
    (stable,) = [each for each in shares if each["name"] != shares[0]["name"]]
    world.ask("mixed", 6)
    world = world.carried_out(world.plan(after))
    planned = world.children["EnginePool", "chat-mixed"]["spec"]["revisions"]
    counts = {each["name"]: each["replicas"] for each in planned}
    room = 6 if rollout == "Surge" else 6 - shares[0]["replicas"]
    assert counts[stable["name"]] == room


def test_routers_that_have_ended_keep_no_former_pool() -> None:
    world, former = serving_in(MIXED)
    world, switched = world.switched(APART)
    world = world.with_routers(former, switched)
    world.routers[0]["status"] = {"phase": "Failed", "reason": "Evicted"}
    assert removes_pools(world.plan(APART))


def test_routers_that_wait_follow_their_number() -> None:
    world, _ = serving_in(MIXED)
    plan = world.plan(APART | {"router": {"replicas": 4}})
    assert plan.router is not None
    assert plan.router["spec"]["replicas"] == 4
    assert followed_pools(world, plan) == pools_in(MIXED)


def test_routers_of_which_nobody_knows_what_was_applied_stay_as_they_are() -> None:
    world, former = serving_in(MIXED)
    assert former.router is not None
    router = world.children[identity_of(former.router)]
    fields: Manifest = {"f:spec": {"f:replicas": {}}}
    theirs = {"manager": "velero", "operation": "Apply", "fieldsV1": fields}
    metadata = router["metadata"] | {"managedFields": [theirs]}
    there = world.children | {identity_of(router): router | {"metadata": metadata}}
    plan = world._replace(children=there).plan(APART)
    assert plan.router is not None
    assert plan.router["spec"] == former.router["spec"]
