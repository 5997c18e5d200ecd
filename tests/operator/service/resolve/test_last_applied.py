"""What serves while a newer spec is refused, or its model is on its way: scaled, woken, repaired,
with the numbers of the new spec and all else of the one that was carried out last."""

from __future__ import annotations

from typing import Any, Final

import pytest
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import UnavailableError
from sluice_operator.kube.kinds import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    JOB,
    PERSISTENT_VOLUME_CLAIM,
    SERVICE,
    Kind,
    Manifest,
)
from sluice_operator.service.revisions.revision import STATE

from tests.operator.harness.memory_cluster import KEY, MemoryCluster, running
from tests.operator.model_pods import COMMIT, resolved, said
from tests.operator.statuses import condition
from tests.pairwise import matrix

TYPO: Final[Manifest] = {"engine": {"dtype": "int3"}}
ON_A_HUB: Final[Manifest] = {"model": {"uri": "hf://org/name", "cache": {"size": "1Gi"}}}
CHANGES: Final = [TYPO, ON_A_HUB]
"""One is refused, the other is awaited."""
REFUSED_OR_AWAITED = pytest.mark.parametrize("change", CHANGES)
GPUS: Final[Manifest] = {"accelerator": {"count": 1}}
ASLEEP: Final[Manifest] = {"minReplicas": 0, "maxReplicas": 4}


BUDGET: Final[Manifest] = {
    **GPUS,
    "autoscaling": {"minReplicas": 2, "maxReplicas": 8, "gpuBudget": 8},
}
IN_PLACE: Final[Manifest] = {
    "autoscaling": {"minReplicas": 2, "maxReplicas": 8},
    "rollout": {"strategy": "InPlace"},
}
SURGE: Final[Manifest] = {"autoscaling": {"minReplicas": 2, "maxReplicas": 8}}
SCALED = pytest.mark.parametrize(
    ("spec", "change"),
    matrix([BUDGET, IN_PLACE, SURGE], CHANGES, others=pytest.mark.full, together=1),
)


@SCALED
async def test_what_the_autoscaler_writes_is_carried_out(spec: Manifest, change: Manifest) -> None:
    cluster = await running(**spec)
    await cluster.edited(**change)
    cluster.autoscaler_writes(6)
    await cluster.reconciled()
    assert cluster.engines() == 6


@pytest.mark.parametrize(
    ("manner", "change"),
    matrix(
        [{}, {"rollout": {"strategy": "InPlace"}}], CHANGES, others=pytest.mark.full, together=1
    ),
)
async def test_a_service_that_sleeps_wakes(manner: Manifest, change: Manifest) -> None:
    cluster = await running(autoscaling=ASLEEP, **manner)
    await cluster.edited(**change)
    assert cluster.engines() == 0
    cluster.operator_starts()
    await cluster.reconciled()
    assert cluster.autoscaler.scaled is not None
    cluster.autoscaler_writes(1)
    await cluster.reconciled()
    assert cluster.engines() == 1


@SCALED
async def test_an_operator_that_has_just_started_scales(spec: Manifest, change: Manifest) -> None:
    cluster = await running(**spec)
    await cluster.edited(**change)
    cluster.operator_starts()
    await cluster.reconciled()
    assert cluster.autoscaler.scaled is not None
    assert condition(cluster.status, "ScalingActive")["status"] == "True"
    assert condition(cluster.status, "Updated")["status"] == "False"


async def test_a_write_that_is_interrupted_does_not_keep_from_scaling() -> None:
    cluster = await running(**SURGE)
    cluster.operator_starts()
    cluster.api.edit(INFERENCE_SERVICE, "chat", {"router": {"replicas": 4}})
    cluster.api.fails_at = "deployments/chat-router"
    with pytest.raises(UnavailableError):
        await cluster.service(KEY)
    assert cluster.autoscaler.scaled is not None


@pytest.mark.parametrize(
    ("child", "change"),
    matrix(
        [(DEPLOYMENT, "chat-router"), (SERVICE, "chat"), (ENGINE_POOL, "chat-mixed")],
        CHANGES,
        others=pytest.mark.full,
        together=1,
    ),
)
async def test_what_is_deleted_is_made_again(child: tuple[Kind, str], change: Manifest) -> None:
    kind, name = child
    cluster = await running()
    await cluster.edited(**change)
    before = cluster.templates
    cluster.api.delete(kind, name)
    await cluster.reconciled()
    assert name in cluster.names(kind)
    assert cluster.templates == before
    assert condition(cluster.status, "Ready")["status"] == "True"
    assert condition(cluster.status, "Updated")["status"] == "False"


@REFUSED_OR_AWAITED
async def test_numbers_of_the_new_spec_are_carried_out(change: Manifest) -> None:
    cluster = await running(replicas=2)
    before = cluster.templates
    await cluster.edited(**change, replicas=6, router={"replicas": 3})
    assert cluster.engines() == 6
    assert cluster.api.objects[DEPLOYMENT, "chat-router"]["spec"]["replicas"] == 3
    assert cluster.templates == before
    assert cluster.status["pools"]["mixed"]["desiredReplicas"] == 6
    assert (cluster.status["observedGeneration"], cluster.status["appliedGeneration"]) == (2, 1)


@pytest.mark.parametrize(
    ("pool", "engines"),
    [
        ({"autoscaling": {"minReplicas": 5, "maxReplicas": 3}}, 2),
        ({"replicas": -1}, 2),
        ({"replicas": 4, "autoscaling": {"minReplicas": 5, "maxReplicas": 6}}, 2),
        ({"resources": {"requests": {"cpu": 9}}}, 2),
        ({"replicas": 4, "resources": {"requests": {"cpu": 9}}}, 4),
    ],
)
async def test_only_numbers_that_are_valid_are_taken(pool: Manifest, engines: int) -> None:
    cluster = await running(replicas=2)
    before = cluster.templates
    change = {**pool, "router": {"replicas": 4}}
    await cluster.edited(**TYPO, **change)
    assert cluster.engines() == engines
    assert cluster.api.objects[DEPLOYMENT, "chat-router"]["spec"]["replicas"] == 4
    assert cluster.templates == before


async def test_another_limit_of_the_autoscaler_is_taken() -> None:
    cluster = await running(**BUDGET)
    limits = {"minReplicas": 3, "maxReplicas": 5}
    change = {**GPUS, "autoscaling": limits | {"gpuBudget": 6}}
    await cluster.edited(**TYPO, **change)
    assert cluster.autoscaler.scaled is not None
    settings = cluster.autoscaler.scaled.settings
    assert settings.gpu_budget == 6
    assert [(each.minimum, each.maximum) for each in settings.pools.values()] == [(3, 5)]


async def test_a_refused_budget_is_left_out_and_the_limits_are_taken() -> None:
    cluster = await running(**BUDGET)
    limits = {"minReplicas": 3, "maxReplicas": 5}
    await cluster.edited(**GPUS, autoscaling=limits | {"gpuBudget": 1})
    assert cluster.autoscaler.scaled is not None
    settings = cluster.autoscaler.scaled.settings
    assert settings.gpu_budget == 8
    assert [each.minimum for each in settings.pools.values()] == [3]


async def test_a_budget_that_would_divide_gpus_among_the_pools_is_left_out() -> None:
    cluster = await running(prefill={})
    before = cluster.templates
    await cluster.edited(**TYPO, accelerator={"count": 2}, autoscaling={"gpuBudget": 8})
    assert cluster.templates == before
    assert (cluster.engines("chat-prefill"), cluster.engines("chat-decode")) == (1, 1)


async def test_another_mode_that_is_refused_changes_nothing() -> None:
    cluster = await running(replicas=2)
    before = cluster.templates
    await cluster.edited(**TYPO, replicas=4, prefill={"replicas": 4})
    assert (cluster.engines(), cluster.templates) == (2, before)
    assert cluster.status["mode"] == "Mixed"


async def test_a_restart_that_was_carried_out_is_not_forgotten_nor_one_refused_made() -> None:
    cluster = await running()
    await cluster.edited(rollout={"restartedAt": "one"})
    before = cluster.templates
    assert any("one" in str(template) for template in before.values())
    await cluster.edited(**TYPO, rollout={"restartedAt": "two"})
    assert cluster.templates == before


async def test_adapters_stay_as_they_were_carried_out_last() -> None:
    def model(*names: str) -> Manifest:
        adapters = [{"name": name, "uri": f"file:///loras/{name}"} for name in names]
        return {"uri": "dummy://tiny", "adapters": adapters}

    cluster = await running(model=model("sql"))
    await cluster.edited(model=model("sql", "law"))
    before = cluster.api.objects[CONFIG_MAP, "chat-adapters"]["data"]
    await cluster.edited(**TYPO, model=model())
    assert cluster.api.objects[CONFIG_MAP, "chat-adapters"]["data"] == before


async def test_a_roll_out_goes_on_that_was_not_complete() -> None:
    cluster = await running()
    cluster.api.edit(INFERENCE_SERVICE, "chat", {"engine": {"chunkSize": 64}})
    await cluster.service(KEY)
    await cluster.pool(Key(ENGINE_POOL.kind, "default", "chat-mixed"))
    names = set(cluster.templates)
    await cluster.edited(engine={"chunkSize": 64, "dtype": "int3"})
    assert len(names - set(cluster.templates)) == 1, "the former revision goes"
    assert set(cluster.templates) < names, "and nothing is new"
    assert cluster.status["appliedGeneration"] == 2


async def test_a_service_that_was_never_accepted_has_nothing() -> None:
    cluster = MemoryCluster(**TYPO)
    await cluster.reconciled()
    assert {kind for kind, _ in cluster.api.objects} == {INFERENCE_SERVICE}
    assert condition(cluster.status, "Ready")["reason"] == "InvalidSpec"
    assert cluster.autoscaler.scaled is None


@REFUSED_OR_AWAITED
async def test_pause_stops_everything(change: Manifest) -> None:
    cluster = await running(replicas=2)
    await cluster.edited(**change, paused=True, replicas=6)
    cluster.api.delete(DEPLOYMENT, "chat-router")
    await cluster.reconciled()
    assert cluster.engines() == 2
    assert "chat-router" not in cluster.names(DEPLOYMENT)


@pytest.mark.process
async def test_a_download_goes_on_beside_what_serves_and_after_a_typo() -> None:
    cluster = await running(replicas=1)
    await cluster.edited(**ON_A_HUB)
    await cluster.job_ends("resolve", resolved())
    (job,) = cluster.names(JOB)
    assert "-fetch-" in job
    assert condition(cluster.status, "Updated")["reason"] == "FetchingModel"
    assert condition(cluster.status, "ModelAvailable")["reason"] == "FetchingModel"
    assert condition(cluster.status, "Ready")["status"] == "True"
    await cluster.edited(**TYPO, replicas=3)
    assert cluster.engines() == 3
    assert cluster.names(JOB) == [job]
    assert cluster.names(PERSISTENT_VOLUME_CLAIM) == ["chat-model"]
    await cluster.edited(engine={})
    await cluster.job_ends("fetch", said("ModelFetched", COMMIT))
    assert condition(cluster.status, "Updated")["status"] == "True"
    assert cluster.engines() == 3
    assert cluster.names(JOB) == []


async def test_a_download_that_has_failed_is_told_and_not_tried_again() -> None:
    cluster = await running(replicas=1)
    await cluster.edited(**ON_A_HUB)
    await cluster.job_ends("resolve", said("AccessDenied", "gated"), 2)
    assert condition(cluster.status, "Updated")["reason"] == "AccessDenied"
    assert condition(cluster.status, "Stalled")["status"] == "True"
    before = cluster.names(JOB)
    await cluster.edited(replicas=3)
    assert cluster.engines() == 3
    assert cluster.names(JOB) == before


async def on_a_hub(**spec: Any) -> MemoryCluster:
    """A service that is complete with a model that was downloaded."""
    cluster = MemoryCluster(**ON_A_HUB, **spec)
    await cluster.reconciled()
    await cluster.job_ends("resolve", resolved())
    await cluster.job_ends("fetch", said("ModelFetched", COMMIT))
    assert condition(cluster.status, "Updated")["status"] == "True"
    return cluster


@pytest.mark.parametrize(
    "change",
    [
        TYPO,
        {"model": {"uri": "hf://org/other", "cache": {"size": "2Gi"}}},
        {"model": {"uri": "hf://org/name", "cache": {"size": "1Gi"}, "refresh": "again"}},
    ],
)
async def test_a_model_of_a_hub_serves_on_beside_another(change: Manifest) -> None:
    cluster = await on_a_hub()
    before = cluster.templates
    await cluster.edited(**change, replicas=3)
    cluster.api.delete(DEPLOYMENT, "chat-router")
    await cluster.reconciled()
    assert cluster.engines() == 3
    assert cluster.templates == before
    assert cluster.names(PERSISTENT_VOLUME_CLAIM) == ["chat-model"]


async def test_a_later_restart_is_part_of_what_was_carried_out() -> None:
    cluster = await running(replicas=2)
    cluster.api.edit(INFERENCE_SERVICE, "chat", {"rollout": {"restartedAt": "later"}})
    await cluster.reconciled()
    before = cluster.templates
    await cluster.edited(**TYPO, replicas=3)
    assert (cluster.engines(), cluster.templates) == (3, before)


async def test_without_any_record_all_stays_as_it_is() -> None:
    cluster = await running(replicas=2)
    for name in cluster.names(CONTROLLER_REVISION):
        cluster.api.delete(CONTROLLER_REVISION, name)
    before = cluster.templates
    await cluster.edited(**TYPO, replicas=3)
    assert (cluster.engines(), cluster.templates) == (2, before)
    assert condition(cluster.status, "Ready")["status"] == "True"
    assert condition(cluster.status, "Updated")["reason"] == "InvalidSpec"


async def test_a_name_that_another_object_has_is_left_to_it() -> None:
    cluster = await running(replicas=2)
    cluster.api.delete(SERVICE, "chat")
    theirs = {"metadata": {"name": "chat"}, "spec": {"ports": []}}
    cluster.api.apply(SERVICE, theirs)
    await cluster.edited(replicas=3)
    assert cluster.api.objects[SERVICE, "chat"]["spec"] == theirs["spec"]
    assert condition(cluster.status, "Ready")["reason"] == "NameTaken"


@pytest.mark.parametrize("text", ["", "[]", "5", '{"stable":5}', '{"carriedOut":"x","spec":[]}'])
async def test_what_was_learnt_and_somebody_has_edited_is_learnt_anew(text: str) -> None:
    cluster = await running(**SURGE)
    (name,) = cluster.names(CONTROLLER_REVISION)
    revision = cluster.api.objects[CONTROLLER_REVISION, name]
    metadata = revision["metadata"] | {"annotations": {STATE: text}}
    cluster.api.objects[CONTROLLER_REVISION, name] = revision | {"metadata": metadata}
    await cluster.edited(**TYPO)
    assert condition(cluster.status, "Updated")["reason"] == "InvalidSpec"
    await cluster.edited(engine={})
    annotations = cluster.api.objects[CONTROLLER_REVISION, name]["metadata"]["annotations"]
    assert annotations[STATE] != text
