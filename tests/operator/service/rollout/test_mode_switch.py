"""From one mode to the other: what serves stays until wanted pools serve and routers use them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from sluice_contract.labels import Role
from sluice_contract.router_config import parse_router_config
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest
from sluice_operator.manifests.applied_fields import with_applied_fields
from sluice_operator.manifests.deployments import with_replicas
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.scaling import scaled_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import NOW, complete, live, pods, service, service_observed, written

MIXED: Manifest = {"mode": "Mixed"}
APART: Manifest = {"mode": "Disaggregated"}
SWITCHES = [(MIXED, APART), (APART, MIXED)]


class World(NamedTuple):
    """A service in a cluster: its children by identity, and its router's pods."""

    children: dict[tuple[str, str], Manifest]
    routers: tuple[Manifest, ...] = ()

    def plan(self, spec: Manifest) -> ServicePlan:
        found = service_observed(service(spec), self.children.values(), pods=self.routers)
        return plan_service(found)

    def carried_out(self, plan: ServicePlan, ready: Iterable[str] = ()) -> World:
        """After the plan and those of its pools; the engines of roles in `ready` all run."""
        there = dict(self.children)
        for manifest in written(plan):
            uid = manifest["metadata"]["name"]
            before = there.get(_identity(manifest), {})
            if manifest["kind"] == "EnginePool" and before:
                replicas = {"replicas": before["spec"]["replicas"]}
                spec = {"spec": replicas | manifest["spec"]}
                manifest = with_applied_fields(manifest | spec)
            there[_identity(manifest)] = live(manifest, uid, **(before.get("status") or {}))
        for reference in plan.prune:
            del there[reference.kind.kind, reference.name]
            for key in [key for key in there if key[0] == "Deployment"]:
                if reference.kind == ENGINE_POOL and key[1].startswith(f"{reference.name}-"):
                    del there[key]
        for pool in plan.pools:
            self._run(there, pool.manifest, pool.role in set(ready))
        return World(there, self.routers)

    def _run(self, there: dict[tuple[str, str], Manifest], pool: Manifest, runs: bool) -> None:
        owned = there[_identity(pool)]
        built = plan_pool(PoolObserved(owned, service({}))).deployment
        assert built is not None
        found = complete(built) if runs else there.get(_identity(built)) or live(built)
        there[_identity(built)] = found
        observed = PoolObserved(owned, service({}), (found,), tuple(pods(found) if runs else ()))
        there[_identity(pool)] = owned | {"status": pool_status(observed, plan_pool(observed), NOW)}

    def scaled(self, role: str, replicas: int) -> World:
        """With another number of engines in a pool, all ready, whoever has scaled it."""
        there, name = dict(self.children), f"chat-{role}"
        pool = there["EnginePool", name]
        there["EnginePool", name] = pool | {"spec": pool["spec"] | {"replicas": replicas}}
        for key, child in self.children.items():
            if key[0] == "Deployment" and key[1].startswith(f"{name}-"):
                there[key] = complete(with_replicas(child, replicas))
        return self._replace(children=there)

    def ask(self, role: str, replicas: int) -> None:
        """Somebody asks for another number of engines of a pool, and none has started."""
        pool = self.children["EnginePool", f"chat-{role}"]
        asked = pool | {"spec": pool["spec"] | {"replicas": replicas}}
        self.children["EnginePool", f"chat-{role}"] = asked

    def stop(self, role: str) -> None:
        """No engine of a pool is ready any more."""
        for key, child in self.children.items():
            if key[0] == "Deployment" and role in key[1]:
                dead = child["status"] | {"readyReplicas": 0, "availableReplicas": 0}
                self.children[key] = child | {"status": dead}

    def without(self, kind: str, name: str) -> World:
        there = {key: child for key, child in self.children.items() if key != (kind, name)}
        return self._replace(children=there)

    def with_routers(self, *plans: ServicePlan) -> World:
        """With the router's pods of these plans."""
        found = [pod for plan in plans if plan.router for pod in pods(plan.router, 1)]
        return self._replace(routers=tuple(found))

    def pools(self) -> set[str]:
        return {name for kind, name in self.children if kind == "EnginePool"}


def _scaled(mode: str, least: int, most: int = 16, **autoscaling: int) -> Manifest:
    """A service in this mode, all pools of which are scaled."""
    limits = {"minReplicas": least, "maxReplicas": most}
    pool: Manifest = {"autoscaling": limits, "accelerator": {"count": 1}}
    pools = dict.fromkeys(_roles({"mode": mode}), pool)
    return {"mode": mode, "pools": pools, "autoscaling": dict(autoscaling)}


def _replicas(plan: ServicePlan) -> dict[str, int]:
    return {pool.role.value: pool.replicas for pool in plan.pools}


def _removes_pools(plan: ServicePlan) -> bool:
    return any(reference.kind == ENGINE_POOL for reference in plan.prune)


def _identity(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _roles(spec: Manifest) -> list[str]:
    return ["mixed"] if spec["mode"] == "Mixed" else ["prefill", "decode"]


def _pools(spec: Manifest) -> set[str]:
    return {f"chat-{role}" for role in _roles(spec)}


def _followed(world: World, plan: ServicePlan) -> set[str]:
    """The pools that the planned routers follow."""
    mounted = _mounted(plan)
    known = {**world.children, **{_identity(m): m for m in plan.apply}}
    config = parse_router_config(known["ConfigMap", mounted]["data"]["router.json"])
    return {f"chat-{role}" for role in config.roles}


def _mounted(plan: ServicePlan) -> str:
    """The routers' configuration."""
    assert plan.router is not None
    name: str = plan.router["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    return name


def _serving(spec: Manifest) -> tuple[World, ServicePlan]:
    """A service that serves in the mode of `spec`."""
    plan = World({}).plan(spec)
    return World({}).carried_out(plan, _roles(spec)).with_routers(plan), plan


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
def test_the_former_pools_go_last(before: Manifest, after: Manifest) -> None:
    world, former = _serving(before)
    assert world.plan(before).prune == ()

    started = world.plan(after)
    assert _followed(world, started) == _pools(before), "routers wait for the wanted pools"
    assert started.prune == ()
    world = world.carried_out(started)
    assert world.pools() == _pools(before) | _pools(after)

    half = world.carried_out(world.plan(after), _roles(after)[:-1])
    assert _followed(half, half.plan(after)) == _pools(before)

    world = world.carried_out(world.plan(after), _roles(after))
    switched = world.plan(after)
    assert _followed(world, switched) == _pools(after)
    assert switched.prune == (), "routers of the former mode still run"

    world = world.carried_out(switched, _roles(after)).with_routers(former, switched)
    stays = world.carried_out(world.plan(after), _roles(after)).pools()
    assert stays == _pools(before) | _pools(after), "one of them still does"

    done = world.with_routers(switched).plan(after)
    world = world.carried_out(done, _roles(after)).with_routers(switched)
    assert world.pools() == _pools(after)
    assert world.plan(after).prune == (), "their files have gone with them"
    left = {name for _, name in world.children}
    assert not [name for role in _roles(before) for name in left if f"-{role}" in name]


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
def test_a_switch_that_is_taken_back_leaves_nothing(before: Manifest, after: Manifest) -> None:
    world, former = _serving(before)
    started = world.plan(after)
    world = world.carried_out(started)
    back = world.plan(before)
    assert _followed(world, back) == _pools(before)
    assert back.router == former.router
    assert world.carried_out(back, _roles(before)).pools() == _pools(before)


def test_wanted_engines_that_die_after_the_switch_bring_nothing_back() -> None:
    world, _ = _serving(MIXED)
    world = world.carried_out(world.plan(APART), _roles(APART))
    world = world.carried_out(switched := world.plan(APART), _roles(APART))
    world.stop("decode")
    again = world.plan(APART)
    assert _followed(world, again) == _pools(APART)
    assert again.router == switched.router


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("most", [16, 3])
def test_scaled_pools_start_with_as_many_engines_as_those_of_the_former_mode_run(
    least: int, most: int
) -> None:
    world, _ = _serving(_scaled("Mixed", 1))
    split = _replicas(world.scaled("mixed", 10).plan(_scaled("Disaggregated", least, most)))
    wanted = {"prefill": 3, "decode": 7} if most == 16 else {"prefill": 3, "decode": 3}
    assert split == wanted
    world, _ = _serving(_scaled("Disaggregated", 1))
    world = world.scaled("prefill", 4).scaled("decode", 5)
    assert _replicas(world.plan(_scaled("Mixed", least, most))) == {"mixed": min(9, most)}


def test_they_start_with_no_more_gpus_than_those_of_the_former_mode_hold() -> None:
    world, _ = _serving(_scaled("Mixed", 1))
    large = _scaled("Disaggregated", 1)
    for pool in large["pools"].values():
        pool["accelerator"] = {"count": 2}
    assert _replicas(world.scaled("mixed", 10).plan(large)) == {"prefill": 2, "decode": 3}
    tight = _scaled("Disaggregated", 1, gpuBudget=6)
    assert sum(_replicas(world.scaled("mixed", 10).plan(tight)).values()) == 6
    assert _replicas(world.scaled("mixed", 1).plan(large)) == {"prefill": 1, "decode": 1}


def test_engines_that_serve_stay_where_pools_that_sleep_cannot_start() -> None:
    """Scaled to zero at least, and an image that cannot be pulled in the same edit."""
    world, _ = _serving(_scaled("Mixed", 0))
    world = world.scaled("mixed", 6)
    after = _scaled("Disaggregated", 0) | {"engine": {"image": "wrong:1"}}
    for _ in range(4):
        plan = world.plan(after)
        assert _followed(world, plan) == {"chat-mixed"}
        assert plan.prune == ()
        world = world.carried_out(plan)
    assert min(_replicas(world.plan(after)).values()) > 0
    for role in ("prefill", "decode"):
        world = world.scaled(role, 0)
    plan = world.plan(after)
    assert _followed(world, plan) == {"chat-mixed"}, "0 of 0 engines have not come up"
    assert plan.prune == ()


@pytest.mark.parametrize("fixed", [False, True], ids=["both sleep", "asked for none"])
def test_pools_without_engines_take_over_where_nothing_serves_or_none_is_asked_for(
    *, fixed: bool
) -> None:
    world, _ = _serving(_scaled("Mixed", 0))
    after = _scaled("Disaggregated", 0)
    if fixed:
        world = world.scaled("mixed", 2)
        after = APART | {"pools": {"prefill": {"replicas": 0}, "decode": {"replicas": 0}}}
    world = world.carried_out(world.plan(after), _roles(after))
    switched = world.plan(after)
    assert _followed(world, switched) == {"chat-prefill", "chat-decode"}
    world = world.carried_out(switched, _roles(after)).with_routers(switched)
    assert world.carried_out(world.plan(after)).pools() == {"chat-prefill", "chat-decode"}


def test_former_engines_stay_while_no_router_runs_or_the_new_ones_are_not_ready() -> None:
    world, _ = _serving(MIXED)
    world = world.carried_out(world.plan(APART))
    lost = world.without("Deployment", "chat-router").with_routers()
    assert not _removes_pools(lost.plan(APART))
    world = world.carried_out(world.plan(APART), _roles(APART))
    switched = world.plan(APART)
    world = world.carried_out(switched, _roles(APART)).with_routers(switched)
    assert _removes_pools(world.plan(APART))
    world.stop("decode")
    assert not _removes_pools(world.plan(APART))


def test_config_maps_that_others_mount_into_routers_keep_no_former_pool() -> None:
    world, former = _serving(MIXED)
    world = world.carried_out(world.plan(APART), _roles(APART))
    switched = world.plan(APART)
    world = world.carried_out(switched, _roles(APART)).with_routers(former, switched)
    for pod in world.routers:
        root = {"name": "istiod-ca-cert", "configMap": {"name": "istio-ca-root-cert"}}
        pod["spec"] = pod["spec"] | {"volumes": [root, *pod["spec"]["volumes"]]}
    assert not _removes_pools(world.plan(APART)), "a former router runs"
    world = world._replace(routers=world.routers[1:])
    assert _removes_pools(world.plan(APART))


@pytest.mark.parametrize(("before", "after"), SWITCHES, ids=["apart", "together"])
@pytest.mark.parametrize("lost", [("Deployment", "chat-router"), ("ConfigMap", "")])
def test_routers_that_are_lost_while_new_pools_cannot_start_are_made_for_those_that_serve(
    before: Manifest, after: Manifest, lost: tuple[str, str]
) -> None:
    world, former = _serving(before)
    world = world.carried_out(world.plan(after))
    world = world.without(lost[0], lost[1] or _mounted(former)).with_routers()
    for _ in range(3):
        plan = world.plan(after)
        assert _followed(world, plan) == _pools(before)
        assert not _removes_pools(plan)
        world = world.carried_out(plan).with_routers(plan)
    world = world.carried_out(world.plan(after), _roles(after))
    assert _followed(world, world.plan(after)) == _pools(after)


def test_routers_that_are_lost_after_the_switch_follow_the_new_pools() -> None:
    world, _ = _serving(MIXED)
    world = world.carried_out(world.plan(APART), _roles(APART))
    world = world.carried_out(switched := world.plan(APART), _roles(APART)).with_routers(switched)
    world.stop("decode")
    lost = world.without("Deployment", "chat-router").with_routers()
    there = service(APART) | {"status": {"mode": "Disaggregated"}}
    plan = plan_service(service_observed(there, lost.children.values()))
    assert _followed(lost, plan) == _pools(APART)


def test_former_pools_that_never_served_make_room() -> None:
    """As of a mode that was asked for by mistake, and taken back."""
    plan = World({}).plan(APART)
    world = World({}).carried_out(plan).with_routers(plan)
    back = world.plan(MIXED)
    assert _followed(world, back) == _pools(APART), "nothing has come up yet"
    world = world.carried_out(back, ["mixed"]).with_routers(back)
    world = world.carried_out(moved := world.plan(MIXED), ["mixed"]).with_routers(moved)
    world.stop("mixed")
    assert _removes_pools(world.plan(MIXED))


@pytest.mark.parametrize("mode", ["Mixed", "Disaggregated"])
def test_former_pools_are_scaled_while_they_serve(mode: str) -> None:
    other = "Disaggregated" if mode == "Mixed" else "Mixed"
    before, after = _scaled(mode, 1, 5), _scaled(other, 0, gpuBudget=12)
    world, _ = _serving(_scaled(mode, 1, 2))
    world = world.carried_out(world.plan(before), _roles(before))
    world = world.scaled(_roles(before)[0], 3)
    world = world.carried_out(world.plan(after))
    observed = service_observed(service(after), world.children.values(), pods=world.routers)
    plan = plan_service(observed)
    assert plan.former.is_served
    scaled = scaled_service(observed, plan)
    assert scaled is not None
    assert {role: pool.name for role, pool in scaled.pools.items()} == {
        role: f"chat-{role}" for role in _roles(before)
    }
    assert scaled.pools[Role(_roles(before)[0])].replicas == 3
    assert {limits.maximum for limits in scaled.settings.pools.values()} == {5}, "the last ones"
    assert scaled.settings.gpu_budget == 12
    assert scaled.former_gpus == sum(_replicas(plan).values()), "those of the new pools"


@pytest.mark.parametrize("rollout", ["InPlace", "Surge"])
def test_former_pools_have_as_many_engines_as_they_are_asked_for(rollout: str) -> None:
    """Also where their service has planned each engine, as it does without room for others."""
    more: Manifest = {"rollout": {"strategy": rollout}}
    before = _scaled("Mixed", 1, gpuBudget=8) | more
    world, _ = _serving(before)
    world = world.carried_out(world.plan(APART | more))
    world.ask("mixed", 4)
    plan = world.plan(APART | more)
    world = world.carried_out(plan)
    pool = world.children["EnginePool", "chat-mixed"]
    built = plan_pool(PoolObserved(pool, service({}))).deployment
    assert built is not None
    assert built["spec"]["replicas"] == 4
    again = world.plan(APART | more)
    assert _identity(pool) not in {_identity(manifest) for manifest in again.apply}, "at rest"


def test_former_pools_of_fixed_size_are_scaled_by_nobody() -> None:
    world, _ = _serving(_scaled("Mixed", 1, 5))
    fixed: Manifest = {"mode": "Mixed", "pools": {"mixed": {"replicas": 4}}}
    world = world.carried_out(world.plan(fixed), ["mixed"])
    after = _scaled("Disaggregated", 1)
    world = world.carried_out(world.plan(after))
    observed = service_observed(service(after), world.children.values(), pods=world.routers)
    plan = plan_service(observed)
    assert plan.former.is_served
    assert scaled_service(observed, plan) is None


@pytest.mark.parametrize("rollout", ["InPlace", "Surge"])
def test_of_former_pools_in_a_roll_out_what_was_complete_follows_the_number(rollout: str) -> None:
    before = _scaled("Mixed", 1) | {"rollout": {"strategy": rollout}}
    world, _ = _serving(before)
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
    world, former = _serving(MIXED)
    world = world.carried_out(world.plan(APART), _roles(APART))
    switched = world.plan(APART)
    world = world.carried_out(switched, _roles(APART)).with_routers(former, switched)
    world.routers[0]["status"] = {"phase": "Failed", "reason": "Evicted"}
    assert _removes_pools(world.plan(APART))


def test_routers_that_wait_follow_their_number() -> None:
    world, _ = _serving(MIXED)
    plan = world.plan(APART | {"router": {"replicas": 4}})
    assert plan.router is not None
    assert plan.router["spec"]["replicas"] == 4
    assert _followed(world, plan) == _pools(MIXED)


def test_routers_of_which_nobody_knows_what_was_applied_stay_as_they_are() -> None:
    world, former = _serving(MIXED)
    assert former.router is not None
    router = world.children[_identity(former.router)]
    fields: Manifest = {"f:spec": {"f:replicas": {}}}
    theirs = {"manager": "velero", "operation": "Apply", "fieldsV1": fields}
    metadata = router["metadata"] | {"managedFields": [theirs]}
    there = world.children | {_identity(router): router | {"metadata": metadata}}
    plan = world._replace(children=there).plan(APART)
    assert plan.router is not None
    assert plan.router["spec"] == former.router["spec"]


def test_it_is_ready_while_the_former_pools_serve() -> None:
    world, _ = _serving(MIXED)
    world = world.carried_out(world.plan(APART))
    observed = service_observed(service(APART), world.children.values(), pods=world.routers)
    routers = complete(world.children["Deployment", "chat-router"])
    world.children["Deployment", "chat-router"] = routers
    status = service_status(observed, world.plan(APART), NOW)
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
    world, _ = _serving(before)
    world = world.carried_out(world.plan(after))
    silent = {key: child for key, child in world.children.items() if key[0] == "EnginePool"}
    reported = world.carried_out(world.plan(after), _roles(after))

    late = reported._replace(children=reported.children | silent)
    assert _ready(late, after) == "True"
    assert _followed(late, late.plan(after)) == _pools(before)

    assert _followed(reported, reported.plan(after)) == _pools(after)
    assert _ready(reported, after) == "True"


def _ready(world: World, spec: Manifest) -> str:
    routers = complete(world.children["Deployment", "chat-router"])
    children = world.children | {("Deployment", "chat-router"): routers}
    observed = service_observed(service(spec), children.values(), pods=world.routers)
    ready = find(service_status(observed, plan_service(observed), NOW), "Ready")
    assert ready is not None
    return str(ready["status"])


def test_new_pools_that_fail_halt_the_switch() -> None:
    world, _ = _serving(MIXED)
    world = world.carried_out(world.plan(APART))
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "ModelLoadFailed",
        "message": "pod a.",
    }
    for role in _roles(APART):
        pool = world.children["EnginePool", f"chat-{role}"]
        told = {"observedGeneration": pool["metadata"]["generation"], "conditions": [stalled]}
        world.children["EnginePool", f"chat-{role}"] = pool | {"status": told}
    observed = service_observed(service(APART), world.children.values(), pods=world.routers)
    progressing = find(service_status(observed, world.plan(APART), NOW), "Progressing")
    assert progressing is not None
    assert (progressing["status"], progressing["reason"]) == ("False", "RolloutHalted")
    assert progressing["message"] == (
        "ModelLoadFailed: Pool prefill: pod a. The pools of the former mode serve on."
    )


def test_a_former_pool_that_does_not_serve_is_told() -> None:
    world, _ = _serving(MIXED)
    key = ("EnginePool", "chat-mixed")
    pool = world.children[key]
    gone = [each | {"ready": 0} for each in pool["status"]["revisions"]]
    world.children[key] = pool | {"status": pool["status"] | {"revisions": gone, "ready": 0}}
    observed = service_observed(service(APART), world.children.values(), pods=world.routers)
    status = service_status(observed, plan_service(observed), NOW)
    ready = find(status, "Ready")
    assert ready is not None
    assert ready["status"] == "False"
    assert "mixed" in ready["message"]
