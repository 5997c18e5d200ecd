"""A pool's Deployments: one per revision, and when the old one may go."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sluice_contract.cluster import labels
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.template import PodTemplate
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.deployments import UNTRIED, with_replicas
from sluice_operator.manifests.engine import revision, revision_of
from sluice_operator.manifests.metadata import (
    APPLIED_FIELDS,
    fields_hash,
    is_current,
    note_of,
    with_applied_fields,
)
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import PoolChildren, plan_pool

from tests.operator.examples import (
    FULL_SPEC,
    POOL_UID,
    complete,
    edited_pool,
    live,
    of,
    owned_pool,
    pods,
    pool,
    pool_observed,
    pool_plan,
    pool_with,
    service,
)

ROOT = Path(__file__).parents[3]
TOLERANT: Manifest = {"template": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}}
OLD, NEW = {"engine": {"image": "old:1"}}, {"engine": {"image": "new:2"}}


def _deployment(spec: Manifest) -> Manifest:
    found = pool_plan(spec).deployment
    assert found is not None
    return found


def _spec(**change: Any) -> EnginePoolSpec:
    return EnginePoolSpec.model_validate(pool()["spec"] | change)


SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
PROCESS_CHANGES: dict[str, dict[str, Any]] = {
    "rdma": {"rdmaResource": "rdma/a"},
    "image": {"image": "other:1"},
    "configuration": {"configRef": {"name": "chat-mixed-0123456789"}},
    "claim": {"modelClaim": "models"},
    "download": {
        "fetch": {"image": "fetch:1", "endpoint": "https://a", "uri": "hf://a/b", "commit": "c"}
    },
    "image of the model": {"modelImage": {"reference": "m:1", "copier": "fetch:1"}},
    "adapters": {"adaptersRef": {"name": "chat-adapters"}},
    "claims of adapters": {"adapterClaims": ["loras"]},
    "key": {"handoverSecret": "other-handover"},
    "port": {"bootstrapPort": 9000},
    "port of metrics": {"metricsPort": 9090},
    "draining": {"drainSeconds": 7},
    "host cache": {"hostCache": {"memory": "2Gi"}},
    "accelerator": {"accelerator": {"count": 1}},
    "resources": {"resources": {"limits": {"cpu": 2}}},
    "environment": {"template": {"env": [{"name": "A", "value": "b"}]}},
    "volumes": {"template": {"volumes": [{"name": "a", "emptyDir": {}}]}},
    "sidecars": {"template": {"sidecars": [{"name": "a", "image": "b"}]}},
    "init containers": {"template": {"initContainers": [{"name": "a", "image": "b"}]}},
    "group": {"template": {"fsGroup": 5}},
    "runtime class": {"template": {"runtimeClassName": "nvidia"}},
}
OTHER_CHANGES: dict[str, dict[str, Any]] = {
    "replicas": {"replicas": 9},
    "which adapters": {"adaptersDigest": "0123456789"},
    "roll-out": {"revisions": [{"name": "a", "replicas": 1}]},
    "patience": {"startupSeconds": 60},
    "labels": {"template": {"labels": {"a": "b"}}},
    "scheduler": {"template": {"schedulerName": "batch"}},
    "spreading": {"template": {"topologySpreadConstraints": [SPREAD]}},
    "annotations": {"template": {"annotations": {"a": "b"}}},
    "tolerations": {"template": {"tolerations": [{"operator": "Exists"}]}},
    "node selector": {"template": {"nodeSelector": {"a": "b"}}},
    "pull secrets": {"template": {"imagePullSecrets": [{"name": "a"}]}},
    "affinity": {"template": {"affinity": {"nodeAffinity": {}}}},
    "priority": {"template": {"priorityClassName": "high"}},
    "empty template": {"template": {}},
    "in place": {"inPlace": True},
    "pod surge": {"podSurge": 1},
    "restart": {"restartedAt": "2026-01-02T03:04:05Z"},
}


@pytest.mark.parametrize("change", PROCESS_CHANGES.values(), ids=PROCESS_CHANGES.keys())
def test_what_changes_the_process_is_another_revision(change: dict[str, Any]) -> None:
    assert revision(_spec(**change)) != revision(_spec())


@pytest.mark.parametrize("change", OTHER_CHANGES.values(), ids=OTHER_CHANGES.keys())
def test_what_does_not_is_the_same_revision(change: dict[str, Any]) -> None:
    assert revision(_spec(**change)) == revision(_spec())


OWN_DISK_BYTES = 128 << 20


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        ({}, {"requests": {"memory": 2 << 30, "ephemeral-storage": (10 << 30) + OWN_DISK_BYTES}}),
        (
            {"requests": {"cpu": 1, "memory": "1.5Gi"}, "limits": {"memory": "4G"}},
            {
                "requests": {
                    "cpu": "1",
                    "memory": 7 << 29,
                    "ephemeral-storage": (10 << 30) + OWN_DISK_BYTES,
                },
                "limits": {"memory": 4_000_000_000 + (2 << 30)},
            },
        ),
        (
            {"limits": {"memory": "4Gi", "ephemeral-storage": "1Gi"}},
            {"limits": {"memory": 6 << 30, "ephemeral-storage": 11 << 30}},
        ),
    ],
)
def test_memory_and_disk_of_a_host_cache_come_beside_the_container_s(
    given: Manifest, rendered: Manifest
) -> None:
    cache = {"memory": "2Gi", "disk": {"size": "10Gi"}}
    pool = {"resources": given} if given else {}
    pod = _deployment({"engine": {"hostCache": cache}, **pool})
    spec = pod["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"] == rendered
    assert {"name": "sluice-host-cache", "emptyDir": {"sizeLimit": "10Gi"}} in spec["volumes"]
    mount = {"name": "sluice-host-cache", "mountPath": "/var/lib/sluice/host-cache"}
    assert mount in spec["containers"][0]["volumeMounts"]


def test_a_host_cache_without_a_disk_has_no_volume() -> None:
    pod = _deployment({"engine": {"hostCache": {"memory": "2Gi"}}})["spec"]["template"]["spec"]
    assert "host-cache" not in str(pod["volumes"])
    requests = {"memory": 2 << 30, "ephemeral-storage": "128Mi"}
    assert pod["containers"][0]["resources"] == {"requests": requests}


@pytest.mark.parametrize("kind", ["requests", "limits"])
def test_what_a_user_says_of_an_engine_s_disk_stands(kind: str) -> None:
    given = {kind: {"ephemeral-storage": "0"}}
    pod = _deployment({"resources": given})["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == given


@pytest.mark.parametrize(("strategy", "beside"), [("Surge", 1), ("InPlace", 0)])
def test_without_room_no_pod_is_made_beside_those_it_replaces(strategy: str, beside: int) -> None:
    found = _deployment({"rollout": {"strategy": strategy}})["spec"]["strategy"]
    assert found["rollingUpdate"] == {"maxSurge": beside, "maxUnavailable": 1 - beside}


@pytest.mark.parametrize(("in_place", "engines"), [(True, 1), (None, 3)])
def test_where_others_have_to_go_first_the_wanted_revision_gets_its_share_alone(
    in_place: bool | None, engines: int
) -> None:
    found = pool({"replicas": 3})
    spec = found["spec"] | ({"inPlace": in_place} if in_place else {})
    (share,) = spec["revisions"]
    applied = found | {"spec": spec | {"revisions": [share | {"replicas": 1}]}}
    plan = plan_pool(pool_observed(with_applied_fields(applied)))
    assert plan.deployment is not None
    assert plan.deployment["spec"]["replicas"] == engines


def test_every_field_of_a_pool_is_one_or_the_other() -> None:
    changed = {
        key for change in (*PROCESS_CHANGES.values(), *OTHER_CHANGES.values()) for key in change
    }
    identity = {"serviceName", "role"}
    fields = {field.alias for field in EnginePoolSpec.model_fields.values()}
    assert changed | identity == fields


def test_every_field_of_a_template_is_one_or_the_other() -> None:
    changes = (*PROCESS_CHANGES.values(), *OTHER_CHANGES.values())
    changed = {key for change in changes for key in change.get("template", {})}
    fields = {field.alias for field in PodTemplate.model_fields.values()}
    assert fields - changed == {"volumeMounts"}, "which go with volumes"


def test_equal_observations_give_equal_plans() -> None:
    assert pool_plan(NEW) == pool_plan(NEW)


def test_at_rest_nothing_is_pruned_and_nothing_said() -> None:
    plan = pool_plan()
    found = plan_pool(pool_observed(children=[live(m) for m in plan.apply]))
    assert (found.apply, found.prune, found.events) == (plan.apply, (), ())


def test_the_deployment_is_owned_by_the_pool() -> None:
    (reference,) = _deployment({})["metadata"]["ownerReferences"]
    assert (reference["kind"], reference["uid"]) == ("EnginePool", POOL_UID)


@pytest.mark.parametrize("ready", [0, 1])
def test_a_revision_that_the_roll_out_keeps_stays_whether_it_serves_or_not(ready: int) -> None:
    old, new = _deployment(OLD), _deployment(NEW)
    rolling = pool_with(NEW, **{revision_of(old): 1})
    plan = plan_pool(pool_observed(rolling, [live(old), complete(new)], pods(old, ready)))
    assert plan.prune == ()
    kept = of(plan.apply, "Deployment", old["metadata"]["name"])
    assert kept == old, "exactly as it was applied"


def test_a_revision_that_the_roll_out_keeps_gets_the_number_of_engines_planned_for_it() -> None:
    old = _deployment(OLD)
    plan = plan_pool(pool_observed(pool_with(NEW, **{revision_of(old): 4}), [live(old)], pods(old)))
    kept = of(plan.apply, "Deployment", old["metadata"]["name"])
    assert kept["spec"] == old["spec"] | {"replicas": 4}
    assert not is_current(kept, old), "else it would look like an edit that is taken back"
    back = plan_pool(
        pool_observed(pool_with(NEW, **{revision_of(old): 1}), [live(kept)], pods(old))
    )
    assert of(back.apply, "Deployment", old["metadata"]["name"]) == old


def test_a_deployment_made_without_engines_says_so_until_it_is_asked_for_an_engine() -> None:
    asleep = pool({"replicas": 0})
    new = plan_pool(pool_observed(asleep)).deployment
    assert new is not None
    assert note_of(new, UNTRIED)
    still = plan_pool(pool_observed(asleep, (live(new),))).deployment
    assert still is not None
    assert note_of(still, UNTRIED)
    awake = plan_pool(pool_observed(pool(), (live(new),))).deployment
    assert awake is not None
    assert not note_of(awake, UNTRIED)
    again = plan_pool(pool_observed(asleep, (live(awake),))).deployment
    assert again is not None
    assert not note_of(again, UNTRIED)


@pytest.mark.parametrize("managers", [["velero"], []])
def test_a_kept_revision_of_which_nobody_knows_what_was_applied_is_kept_as_it_is(
    managers: list[str],
) -> None:
    """A restored backup, say: it gets its owner back, and the pods are the same."""
    old, new = _deployment(OLD), _deployment(NEW)
    fields: Manifest = {"f:spec": {"f:replicas": {}}}
    entries = [{"manager": m, "operation": "Apply", "fieldsV1": fields} for m in managers]
    restored = live(old)
    notes = old["metadata"]["annotations"] | {"deployment.kubernetes.io/revision": "3"}
    restored["metadata"] |= {"managedFields": entries, "annotations": notes}
    del restored["metadata"]["ownerReferences"]
    rolling = pool_with(NEW, **{revision_of(old): 1})
    plan = plan_pool(pool_observed(rolling, [restored, complete(new)], pods(old)))
    assert plan.prune == ()
    assert plan.apply[:2] == (new, with_replicas(old, 1))
    assert plan_pool(pool_observed(pool(NEW), [restored, live(new)])).prune != ()


def test_a_revision_that_the_roll_out_does_not_name_goes_whatever_serves() -> None:
    old, new = _deployment(OLD), _deployment(NEW)
    plan = plan_pool(pool_observed(pool(NEW), [complete(old), live(new)], pods(old)))
    assert [ref.name for ref in plan.prune] == [old["metadata"]["name"]]
    assert [event.reason for event in plan.events] == ["Draining"]


def test_without_a_roll_out_for_the_revision_that_is_asked_for_nothing_goes() -> None:
    old = _deployment(OLD)
    unplanned = pool(NEW)
    unplanned["spec"] = unplanned["spec"] | {"revisions": [{"name": "other", "replicas": 1}]}
    assert plan_pool(pool_observed(unplanned, [complete(old)], pods(old))).prune == ()


def test_deployments_of_others_are_left_alone() -> None:
    other = live(_deployment(OLD))
    del other["metadata"]["ownerReferences"], other["metadata"]["labels"][labels.MANAGED_BY]
    assert plan_pool(pool_observed(pool(NEW), [other])).prune == ()


def test_scaling_keeps_the_revision_and_is_an_event_of_who_sets_the_number() -> None:
    children = [live(m) for m in pool_plan().apply]
    scaled = edited_pool(replicas=5)  # by who owns the number
    others = {key: value for key, value in scaled["spec"].items() if key != "replicas"}
    scaled["metadata"]["annotations"][APPLIED_FIELDS] = fields_hash(others)
    own = "Replicas from 1 to 5 (spec.replicas of the EnginePool)."
    for bigger, messages in ((pool({"replicas": 5}), []), (scaled, [own])):
        plan = plan_pool(pool_observed(bigger, children))
        assert of(plan.apply, "Deployment")["spec"]["replicas"] == 5
        assert plan.prune == ()
        assert [event.message for event in plan.events] == messages


def test_a_deployment_that_somebody_scaled_was_not_scaled_by_the_plan() -> None:
    deployment = _deployment({})
    scaled = live(deployment | {"spec": deployment["spec"] | {"replicas": 5}})
    plan = plan_pool(pool_observed(children=[scaled]))
    assert (plan.deployment, plan.events) == (deployment, ())


def test_a_pool_that_somebody_edited_waits_for_its_service() -> None:
    deployment = _deployment({})
    edited = edited_pool(replicas=0, image="other:1")
    plan = plan_pool(pool_observed(edited, [complete(deployment)], pods(deployment)))
    assert (plan.apply, plan.prune, plan.events) == ((), (), ())
    assert "spec.replicas by kubectl, spec.image by kubectl" in plan.edited
    assert "until InferenceService chat has set it back" in plan.edited


def test_a_pool_that_somebody_took_a_field_from_waits_too() -> None:
    whole = owned_pool(TOLERANT)
    whole["spec"] = {k: v for k, v in whole["spec"].items() if k != "template"}
    entry = whole["metadata"]["managedFields"][0]
    del entry["fieldsV1"]["f:spec"]["f:template"]
    plan = plan_pool(pool_observed(whole))
    assert plan.apply == ()
    assert "a field was removed" in plan.edited


def test_what_others_add_to_a_pool_is_not_carried_out() -> None:
    added = owned_pool()
    added["spec"] = added["spec"] | {"resources": {"limits": {"cpu": 1}}}
    assert plan_pool(pool_observed(added)) == plan_pool(pool_observed(owned_pool()))


def test_a_value_that_a_webhook_altered_is_carried_out() -> None:
    altered = owned_pool()
    altered["spec"] = altered["spec"] | {"image": "mirror/engine:1"}
    found = plan_pool(pool_observed(altered)).deployment
    assert found is not None
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "mirror/engine:1"


@pytest.mark.parametrize("spec", [{}, TOLERANT, FULL_SPEC, {"template": {}}])
def test_a_pool_as_its_service_applied_it_is_carried_out(spec: Manifest) -> None:
    assert plan_pool(pool_observed(owned_pool(spec))) == pool_plan(spec)


def test_no_map_of_a_pool_is_atomic() -> None:
    """Else what is owned would not say which of its fields were applied."""
    assert "map-type" not in (ROOT / "crds/enginepools.serving.sluice.dev.yaml").read_text()


def test_a_paused_service_stops_its_pools() -> None:
    plan = plan_pool(PoolObserved(pool(), service({"paused": True})))
    assert plan.paused
    assert (plan.apply, plan.prune, plan.events) == ((), (), ())


def test_a_pool_whose_service_is_gone_is_left_to_the_garbage_collector() -> None:
    assert plan_pool(PoolObserved(pool(), None)) == PoolChildren()


def test_a_pool_that_nobody_owns_is_refused() -> None:
    orphan = pool()
    orphan["metadata"].pop("ownerReferences")
    plan = plan_pool(PoolObserved(orphan, None))
    assert plan.refusal is not None
    assert plan.refusal.reason == "Orphaned"
    assert plan.apply == ()


def test_every_mistake_of_a_pool_is_told_at_once() -> None:
    wrong = pool()
    wrong["spec"] = wrong["spec"] | {"role": "judge", "replicas": "2"}
    refusal = plan_pool(pool_observed(wrong)).refusal
    assert refusal is not None
    assert (refusal.reason, refusal.field) == ("InvalidSpec", "spec.role")
    assert "spec.role: " in refusal.message
    assert "; spec.replicas: " in refusal.message
