"""The key of a service: who has it, and when its Secret is made."""

from __future__ import annotations

from sluice_contract.config.engine import parse_engine_config
from sluice_contract.config.router import parse_router_config
from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.service.plan import ServicePlan, plan_service

from tests.operator.examples import complete, live, service, service_observed, service_plan

FILE = "/etc/sluice/handover/key"


def _engines(plan: ServicePlan) -> Manifest:
    (pool,) = plan.pools
    there = live(pool.manifest, uid="chat-mixed")
    built = plan_pool(PoolObserved(there, service())).deployment
    assert built is not None
    reference = {"kind": "EnginePool", "uid": "chat-mixed", "controller": True}
    return built | {"metadata": built["metadata"] | {"ownerReferences": [reference]}}


def _children(plan: ServicePlan, *more: Manifest) -> list[Manifest]:
    """All that is there of a plan once it is carried out."""
    applied = [
        complete(m) if m["kind"] == "Deployment" else live(m, uid=m["metadata"]["name"])
        for m in plan.apply
    ]
    return [*applied, complete(_engines(plan)), *more]


def _plan(spec: Manifest, children: list[Manifest]) -> ServicePlan:
    return plan_service(service_observed(service(spec), children))


def _mounted(manifest: Manifest) -> list[Manifest]:
    volumes = manifest["spec"]["template"]["spec"]["volumes"]
    return [volume for volume in volumes if volume["name"] == "handover"]


def test_routers_and_engines_have_the_key() -> None:
    plan = service_plan()
    assert plan.router is not None
    (pool,) = plan.pools
    (text,) = [m["data"]["router.json"] for m in plan.apply if "router.json" in m.get("data", {})]
    assert parse_router_config(text).handover_key_file == FILE
    assert parse_engine_config(pool.config_map["data"]["engine.json"]).handover_key_file == FILE
    mounted = [{"name": "handover", "secret": {"secretName": "chat-handover"}}]
    assert _mounted(plan.router) == _mounted(_engines(plan)) == mounted
    (secret,) = plan.secrets
    assert secret.manifest["metadata"]["name"] == "chat-handover"
    assert "immutable" not in secret.manifest, "its key can be rotated"
    assert secret.waiting
    (at_rest,) = _plan({}, _children(plan)).secrets
    assert at_rest.waiting == ""
