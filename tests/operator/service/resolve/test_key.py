"""The key of a service of mode Mixed: who has it, when its Secret is made, and that a service of a
release without it goes on so until it is changed.
"""

from __future__ import annotations

import pytest
from sluice_contract.config.engine import parse_engine_config
from sluice_contract.config.router import parse_router_config
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine_pool import STABLE
from sluice_operator.manifests.handover import mounts_handover_secret
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.service.plan import ServicePlan, plan_service

from tests.operator.examples import complete, live, of, service, service_observed, service_plan
from tests.operator.harness.former_release import forget_key

FILE = "/etc/sluice/handover/key"
EDIT: Manifest = {"engine": {"pageSize": 32}}
ROUTERS: Manifest = {"router": {"resources": {"requests": {"cpu": "1"}}}}
TAKEN: Manifest = {"rollout": {"upgrade": "2026-01-02"}}


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


def _with_key(plan: ServicePlan) -> tuple[bool, bool]:
    """Whether routers and engines have it: both the file, and where it is said."""
    assert plan.router is not None
    (pool,) = plan.pools
    engine = parse_engine_config(pool.config_map["data"]["engine.json"])
    found = mounts_handover_secret(plan.router), mounts_handover_secret(_engines(plan))
    assert (engine.handover_key_file == FILE) is found[1]
    texts = [m["data"]["router.json"] for m in plan.apply if "router.json" in m.get("data", {})]
    for text in texts:  # none where an earlier release's stays
        assert (parse_router_config(text).handover_key_file == FILE) is found[0]
    return found


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch) -> ServicePlan:
    """What a release without the key has planned."""
    with monkeypatch.context() as patched:
        forget_key(patched.setattr)
        return service_plan()


def test_routers_and_engines_have_the_key() -> None:
    plan = service_plan()
    assert _with_key(plan) == (True, True)
    (secret,) = plan.secrets
    assert secret.manifest["metadata"]["name"] == "chat-handover"
    assert "immutable" not in secret.manifest, "its key can be rotated"
    assert secret.waiting
    (at_rest,) = _plan({}, _children(plan)).secrets
    assert at_rest.waiting == ""


def test_an_upgrade_of_the_operator_changes_nothing(former: ServicePlan) -> None:
    assert _with_key(former) == (False, False)
    assert former.secrets == ()
    plan = _plan({}, _children(former))
    router_file = next(m for m in former.apply if "router.json" in m.get("data", {}))
    noted = of(plan.apply, "EnginePool")["metadata"]["annotations"]
    assert noted.pop(STABLE), "what serves, of which the release before took no note"
    new = [m for m in former.apply if m is not router_file]
    assert plan.apply == tuple(m for m in new if m["metadata"]["name"] != "chat-applied")
    assert (plan.secrets, plan.prune, plan.events) == ((), (), ())
    assert plan.upgrade == (
        "pool mixed: handoverSecret None to chat-handover",
        "routers: their pods",
    )


def test_an_upgrade_that_is_scaled_or_has_lost_pods_makes_no_key(former: ServicePlan) -> None:
    pools: Manifest = {"replicas": 3}
    plan = _plan(pools, [live(each) for each in _children(former)])
    assert _with_key(plan) == (False, False)
    assert plan.secrets == ()


@pytest.mark.parametrize(
    ("spec", "with_key"),
    [(EDIT, (False, True)), (ROUTERS, (True, False)), (TAKEN, (True, True))],
    ids=["engines", "routers", "upgrade"],
)
def test_what_is_edited_has_the_key_and_the_rest_goes_on_without(
    former: ServicePlan, spec: Manifest, with_key: tuple[bool, bool]
) -> None:
    plan = _plan(spec, _children(former))
    assert _with_key(plan) == with_key
    assert len(plan.secrets) == 1


def test_routers_without_the_key_get_it_before_engines_serve_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    auth: Manifest = {"router": {"auth": {"secretRef": {"name": "team-keys"}}}}
    with monkeypatch.context() as patched:
        forget_key(patched.setattr)
        patched.setattr(InferenceServiceSpec, "asks_for_keys", False)
        former = service_plan(auth)
    assert _with_key(former) == (False, False)
    assert _with_key(_plan(auth, _children(former))) == (True, True)


def test_the_key_stays_for_a_revision_that_was_given_up(former: ServicePlan) -> None:
    children = _children(former)
    begun = live(_engines(_plan(EDIT, children)))
    plan = _plan({}, [*children, begun])
    assert _with_key(plan) == (False, False)
    (secret,) = plan.secrets
    assert secret.waiting
