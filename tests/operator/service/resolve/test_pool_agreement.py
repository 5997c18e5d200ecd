"""What two pools must have alike stays alike, whatever another release would choose."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.config import sizing
from sluice_contract.config.engine import parse_engine_config
from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import plan_pool
from sluice_operator.service.plan import ServicePlan, plan_service

from tests.operator.examples import live, service, service_observed, service_plan, written

PREFILL, DECODE = Role.PREFILL, Role.DECODE
MORE: Manifest = {"engine": {"maxRunningRequests": 64}}
DRAFTS: Manifest = {"engine": {"speculation": {"method": "NGram"}}}
"""Read by decode engines alone."""


def _spec(prefill: Manifest | None = None, decode: Manifest | None = None) -> Manifest:
    return {**(decode or {}), "prefill": prefill or {}}


def _children(plan: ServicePlan) -> list[Manifest]:
    return [live(each, uid=each["metadata"]["name"]) for each in written(plan)]


def _plan(spec: Manifest, children: list[Manifest]) -> ServicePlan:
    return plan_service(service_observed(service(spec), children))


def _page_sizes(plan: ServicePlan) -> list[int | None]:
    assert plan.refusal is None, plan.refusal
    files = (pool.config_map["data"]["engine.json"] for pool in plan.pools)
    return [parse_engine_config(text).page_size for text in files]


@pytest.fixture
def before() -> list[Manifest]:
    """What a release with another default has made."""
    return _children(service_plan(_spec()))


@pytest.fixture
def _upgraded(before: list[Manifest], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizing.GENERAL, "page_size", 32)


@pytest.mark.usefixtures("_upgraded")
@pytest.mark.parametrize("spec", [_spec(decode=DRAFTS), _spec(prefill=MORE)])
def test_a_pool_that_is_edited_takes_what_its_sibling_has(
    spec: Manifest, before: list[Manifest]
) -> None:
    plan = _plan(spec, before)
    assert _page_sizes(plan) == [16, 16]
    for pool in plan.pools:
        entry = pool.settings["page_size"]
        assert (entry.source, entry.origin) == (sizing.Source.GENERAL, "default")
        assert pool.settings["min_prefill_tokens"].value == 16
    again = _plan(spec, _children(plan))
    assert _page_sizes(again) == [16, 16]
    assert again.upgrade.count("pool prefill: pageSize 16 to 32") == 1
    assert again.upgrade.count("pool decode: pageSize 16 to 32") == 1


@pytest.mark.usefixtures("_upgraded")
def test_two_pools_that_are_edited_take_the_new_default(before: list[Manifest]) -> None:
    assert _page_sizes(_plan(_spec() | MORE, before)) == [32, 32]


@pytest.mark.usefixtures("_upgraded")
def test_what_a_user_sets_against_what_the_sibling_has_is_refused_by_name(
    before: list[Manifest],
) -> None:
    refusal = _plan(_spec(prefill={"engine": {"pageSize": 32}}), before).refusal
    assert refusal is not None
    assert refusal.field == "spec.prefill.engine.pageSize"
    assert "32 in pool prefill is not allowed beside 16 in pool decode" in refusal.message
    assert len(refusal.parts) == 1


@pytest.mark.parametrize(("key", "value"), [("weightDtype", "int8"), ("kvCacheDtype", "fp8_e4m3")])
def test_a_type_of_one_pool_s_numbers_alone_is_refused_by_name(
    key: str, value: str, before: list[Manifest]
) -> None:
    alone = _spec(prefill={"engine": {key: value}})
    for refusal in (service_plan(alone).refusal, _plan(alone, before).refusal):
        assert refusal is not None
        assert refusal.field == f"spec.prefill.engine.{key}"
        text = f'"{value}" in pool prefill is not allowed beside "auto" in pool decode'
        assert text in refusal.message
    assert service_plan(_spec() | {"engine": {key: value}}).refusal is None


def test_auto_by_name_in_one_pool_is_what_the_other_has_anyway(before: list[Manifest]) -> None:
    assert _plan(_spec(prefill={"engine": {"weightDtype": "auto"}}), before).refusal is None


@pytest.mark.usefixtures("_upgraded")
@pytest.mark.parametrize("back", [PREFILL, DECODE])
def test_one_pool_that_returns_to_another_release_s_revision_goes_on_with_its_sibling(
    back: Role, before: list[Manifest]
) -> None:
    """Its Deployment is still there, with a page size that the sibling's engines have no more."""
    former = [
        built
        for each in before
        if each["kind"] == "EnginePool"
        and (built := plan_pool(PoolObserved(each, service(_spec()))).deployment)
    ]
    both = _plan(_spec(MORE, MORE), before)
    assert _page_sizes(both) == [32, 32]
    config_maps = [each for each in before if each["kind"] == "ConfigMap"]
    there = [*_children(both), *config_maps, *map(live, former)]
    halves = {PREFILL: MORE, DECODE: MORE, back: None}
    assert _page_sizes(_plan(_spec(halves[PREFILL], halves[DECODE]), there)) == [32, 32]


def test_of_a_service_without_pools_all_is_resolved_anew() -> None:
    assert _page_sizes(service_plan(_spec())) == [16, 16]


COUNTED: Manifest = {"accelerator": {"count": 1, "product": "NVIDIA-H100-80GB-HBM3"}}
EDITS: list[Manifest] = [
    MORE,
    COUNTED | {"accelerator": COUNTED["accelerator"] | {"count": 2}},
]


def _release(name: str, spec: Manifest, children: list[Manifest]) -> ServicePlan:
    """The plan of an operator with the images of a release."""
    observed = service_observed(service(spec), children)
    images = {"engine": f"cpu:{name}", "gpu_engine": f"gpu:{name}", "router": f"router:{name}"}
    plan = plan_service(replace(observed, images=replace(observed.images, **images)))
    assert plan.refusal is None, plan.refusal
    return plan


def _tags(plan: ServicePlan) -> list[str]:
    """The releases that prefill engines, decode engines and routers are of."""
    assert plan.router is not None
    routers = plan.router["spec"]["template"]["spec"]["containers"][0]["image"]
    images = (*(pool.manifest["spec"]["image"] for pool in plan.pools), routers)
    return [image.partition(":")[2] for image in images]


def _deployed(plan: ServicePlan) -> list[Manifest]:
    """What is there once a plan is carried out, with the Deployments of its engines."""
    children = _children(plan)
    pools = [
        plan_pool(PoolObserved(child, service(_spec())))
        for child in children
        if child["kind"] == "EnginePool"
    ]
    return [*children, *(live(pool.deployment) for pool in pools if pool.deployment)]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("edited", [PREFILL, DECODE])
def test_an_edit_of_one_pool_takes_the_other_and_the_routers_to_the_new_release(
    edited: Role, edit: Manifest
) -> None:
    """Engines of two releases may refuse to hand over to each other."""
    sizes = {role: COUNTED if "accelerator" in edit else {} for role in (PREFILL, DECODE)}
    first = _spec(sizes[PREFILL], sizes[DECODE])
    old = _deployed(_release("old", first, []))
    assert _tags(_release("new", first, old)) == ["old", "old", "old"]
    own = sizes | {edited: sizes[edited] | edit}
    spec = _spec(own[PREFILL], own[DECODE])
    plan = _release("new", spec, old)
    assert _tags(plan) == ["new", "new", "new"]
    assert not plan.upgrade
    assert _tags(_release("new", spec, _deployed(plan))) == ["new", "new", "new"]


def test_an_edit_at_the_same_release_leaves_the_other_pool_as_it_is() -> None:
    old = _release("old", _spec(), [])
    plan = _release("old", _spec(decode=DRAFTS), _deployed(old))
    assert plan.pools[0].manifest["spec"] == old.pools[0].manifest["spec"]
    assert plan.router == old.router


@pytest.mark.parametrize("edited", [PREFILL, DECODE])
def test_what_was_decided_is_known_before_it_is_carried_out(edited: Role) -> None:
    old = _deployed(_release("old", _spec(), []))
    spec = _spec(**{edited.value: MORE})
    plan = _release("new", spec, old)
    assert plan.decided is not None
    assert _tags(_release("newer", spec, [*old, live(plan.decided)])) == ["new", "new", "new"]


def test_an_edit_that_is_taken_back_takes_both_pools_back_to_their_former_engines() -> None:
    old = _deployed(_release("old", _spec(), []))
    plan = _release("new", _spec(decode=MORE), old)
    former = [m for m in old if m["kind"] in ("Deployment", "ConfigMap", "ControllerRevision")]
    there = [*_children(plan), *former]
    assert _tags(_release("new", _spec(), there))[:2] == ["old", "old"]


def test_an_edit_that_is_taken_back_goes_back_where_former_engines_are_gone() -> None:
    old = _deployed(_release("old", _spec(), []))
    plan = _release("new", _spec(decode=MORE), old)
    revisions = [m for m in old if m["kind"] == "ControllerRevision"]
    back = _release("new", _spec(), [*_deployed(plan), *revisions])
    assert _tags(back) == ["old", "old", "old"]


def _backends(plan: ServicePlan) -> list[tuple[str | None, str]]:
    """As the engines' files say them, and where they are from."""
    assert plan.refusal is None, plan.refusal
    found = list[tuple[str | None, str]]()
    for pool in plan.pools:
        transfer = parse_engine_config(pool.config_map["data"]["engine.json"]).kv_transfer
        assert transfer is not None
        found.append((transfer.backend, pool.settings["kv_transfer_backend"].origin))
    return found


@pytest.mark.parametrize("more", [MORE["engine"], {"kvTransfer": {"bootstrapPort": 9000}}])
def test_engines_that_hand_over_by_mooncake_go_on_so_when_their_service_is_edited(
    more: Manifest,
) -> None:
    """Those of another release, whose default it was, look like these."""
    by_mooncake = _spec() | {"engine": {"kvTransfer": {"backend": "Mooncake"}}}
    before = _deployed(service_plan(by_mooncake))
    plan = _plan(_spec() | {"engine": more}, before)
    assert _backends(plan) == [("Mooncake", "engines in use")] * 2
    again = _plan(_spec() | {"engine": more}, _deployed(plan))
    assert _backends(again) == [("Mooncake", "engines in use")] * 2
    assert not again.upgrade


def test_what_carries_the_cache_is_authenticated_unless_somebody_chose_otherwise() -> None:
    assert _backends(service_plan(_spec())) == [("TCP", "default")] * 2
    rdma = {"engine": {"kvTransfer": {"protocol": "rdma"}}}
    assert (
        _backends(_plan(_spec() | rdma, _children(service_plan(_spec()))))
        == [("Mooncake", "default")] * 2
    )
    chosen = {"engine": {"kvTransfer": {"backend": "Mooncake"}}}
    assert _backends(service_plan(_spec() | chosen)) == [("Mooncake", "spec.engine")] * 2
