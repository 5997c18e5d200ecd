"""A service in a cluster that goes from one mode to the other, for tests of that."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sluice_contract.config.router import parse_router_config
from sluice_operator.api.service import mode_of, roles_of
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest
from sluice_operator.manifests.deployments import with_replicas
from sluice_operator.manifests.metadata import with_applied_fields
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import NOW, complete, live, pods, service, service_observed, written

MIXED: Manifest = {}
APART: Manifest = {"prefill": {}}
SWITCHES = [(MIXED, APART), (APART, MIXED)]


class World(NamedTuple):
    """A service in a cluster: its children by identity, and its router's pods."""

    children: dict[tuple[str, str], Manifest]
    routers: tuple[Manifest, ...] = ()

    def observed(self, spec: Manifest) -> ServiceObserved:
        return service_observed(service(spec), self.children.values(), pods=self.routers)

    def plan(self, spec: Manifest) -> ServicePlan:
        return plan_service(self.observed(spec))

    def status(self, spec: Manifest) -> Manifest:
        observed = self.observed(spec)
        return service_status(observed, plan_service(observed), NOW)

    def switched(self, spec: Manifest) -> tuple[World, ServicePlan]:
        """World in which the wanted pools run, and the plan whose routers follow them. These do not
        run yet."""
        world = self.carried_out(self.plan(spec), roles_in(spec))
        plan = world.plan(spec)
        return world.carried_out(plan, roles_in(spec)), plan

    def carried_out(self, plan: ServicePlan, ready: Iterable[str] = ()) -> World:
        """After the plan and those of its pools; the engines of roles in `ready` all run."""
        there = dict(self.children)
        for manifest in written(plan):
            uid = manifest["metadata"]["name"]
            before = there.get(identity_of(manifest), {})
            if manifest["kind"] == "EnginePool" and before:
                replicas = {"replicas": before["spec"]["replicas"]}
                spec = {"spec": replicas | manifest["spec"]}
                manifest = with_applied_fields(manifest | spec)
            there[identity_of(manifest)] = live(manifest, uid, **(before.get("status") or {}))
        for reference in plan.prune:
            del there[reference.kind.kind, reference.name]
            for key in [key for key in there if key[0] == "Deployment"]:
                if reference.kind == ENGINE_POOL and key[1].startswith(f"{reference.name}-"):
                    del there[key]
        for pool in plan.pools:
            self._run(there, pool.manifest, pool.role in set(ready))
        return World(there, self.routers)

    def _run(self, there: dict[tuple[str, str], Manifest], pool: Manifest, runs: bool) -> None:
        owned = there[identity_of(pool)]
        built = plan_pool(PoolObserved(owned, service({}))).deployment
        assert built is not None
        found = complete(built) if runs else there.get(identity_of(built)) or live(built)
        there[identity_of(built)] = found
        observed = PoolObserved(owned, service({}), (found,), tuple(pods(found) if runs else ()))
        there[identity_of(pool)] = owned | {
            "status": pool_status(observed, plan_pool(observed), NOW)
        }

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


def scaled_spec(mode: str, least: int, most: int = 16, **autoscaling: int) -> Manifest:
    """A service in this mode, all pools of which are scaled."""
    limits = {"minReplicas": least, "maxReplicas": most}
    spec: Manifest = {"autoscaling": limits | autoscaling, "accelerator": {"count": 1}}
    return spec if mode == "Mixed" else spec | {"prefill": {}}


def replicas_of(plan: ServicePlan) -> dict[str, int]:
    return {pool.role.value: pool.replicas for pool in plan.pools}


def removes_pools(plan: ServicePlan) -> bool:
    return any(reference.kind == ENGINE_POOL for reference in plan.prune)


def identity_of(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def roles_in(spec: Manifest) -> list[str]:
    return [role.value for role in roles_of(mode_of(spec))]


def pools_in(spec: Manifest) -> set[str]:
    return {f"chat-{role}" for role in roles_in(spec)}


def followed_pools(world: World, plan: ServicePlan) -> set[str]:
    """The pools that the planned routers follow."""
    mounted = mounted_file(plan)
    known = {**world.children, **{identity_of(m): m for m in plan.apply}}
    config = parse_router_config(known["ConfigMap", mounted]["data"]["router.json"])
    return {f"chat-{role}" for role in config.roles}


def mounted_file(plan: ServicePlan) -> str:
    """The routers' configuration."""
    assert plan.router is not None
    name: str = plan.router["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    return name


def serving_in(spec: Manifest) -> tuple[World, ServicePlan]:
    """A service that serves in the mode of `spec`."""
    plan = World({}).plan(spec)
    return World({}).carried_out(plan, roles_in(spec)).with_routers(plan), plan
