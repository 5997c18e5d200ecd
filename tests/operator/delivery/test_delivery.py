"""A service whose model is on a hub, reconcile by reconcile: each plan is carried out by hand, and
its status is what the next one starts from."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.config.supported import ARCHITECTURES, QUANTISATIONS
from sluice_contract.wire.fetch_progress import FetchProgress
from sluice_operator.cli.rollout.undo import NothingToUndoError, target, undone
from sluice_operator.conditions.conditions import find
from sluice_operator.delivery.resolved_model import spec_with_commit
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import owner
from sluice_operator.service.plan import plan_service

from tests.operator.delivery.world import (
    CACHED,
    HUB,
    OTHER_COMMIT,
    World,
    served_world,
)
from tests.operator.examples import IMAGES, complete_revision, of, service, service_observed
from tests.operator.model_pods import COMMIT, resolved, said


def _arguments(container: Manifest) -> dict[str, str]:
    args = container["args"]
    pairs = zip(args, [*args[1:], ""], strict=True)
    return {name: value for name, value in pairs if name.startswith("--")}


def test_a_revision_is_resolved_before_anything_else_is_made() -> None:
    world = World({"model": HUB | {"tokenSecretRef": {"name": "hub", "key": "t"}}})
    plan = world.reconcile()
    assert world.kinds() == {"ServiceAccount", "NetworkPolicy", "Job"}
    pod = world.job()["spec"]["template"]["spec"]
    given = _arguments(pod["containers"][0])
    assert given["--revision"] == "main"
    assert {"--resolve-only", "--token-file"} <= given.keys()
    assert pod["containers"][0]["image"] == IMAGES.fetch
    assert pod["automountServiceAccountToken"] is False
    told = ("False", "ResolvingModel")
    kinds = ("Ready", "Updated", "ModelAvailable")
    assert [world.condition(kind) for kind in kinds] == [told] * 3
    assert world.condition("Reconciling") == ("True", "ResolvingModel")
    assert world.condition("Stalled")[0] == "False"
    assert [event.reason for event in plan.events] == ["Created"]
    assert world.reconcile().events == (), "nothing more to say while it runs"


def test_the_commit_is_recorded_before_anything_is_made_of_it() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(0, resolved())
    plan = world.reconcile()
    assert "EnginePool" not in world.kinds()
    assert [event.reason for event in plan.events] == ["ModelResolved"]
    assert world.status["model"] == {
        "uri": HUB["uri"], "revision": "main", "commit": COMMIT, "bytes": 16_400_000_000,
        "architecture": "Qwen3ForCausalLM", "layers": 36, "kvHeads": 8, "headDim": 128,
        "hiddenSize": 4096, "dtype": "bfloat16", "contextTokens": 40960,
        "tensorParallelSizes": [1, 2, 4, 8, 16, 32],
    }  # fmt: skip
    world.reconcile()
    assert {"EnginePool", "Deployment", "Service"} <= world.kinds()
    assert "Job" not in world.kinds(), "what is recorded needs no witness"


def test_without_a_cache_each_engine_downloads_that_commit_itself() -> None:
    world = served_world()
    pool = of(world.children.values(), "EnginePool")
    assert pool["spec"]["fetch"] == {
        "image": IMAGES.fetch, "endpoint": "https://huggingface.co", "uri": HUB["uri"],
        "commit": COMMIT,
    }  # fmt: skip
    assert "modelClaim" not in pool["spec"]


def test_two_pools_share_one_download_to_a_claim() -> None:
    world = World({"model": CACHED, "prefill": {}})
    world.reconcile()
    claim = of(world.children.values(), "PersistentVolumeClaim")
    assert claim["spec"]["resources"]["requests"] == {"storage": "20Gi"}
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    assert "EnginePool" not in world.kinds()
    assert world.condition("ModelAvailable") == ("False", "FetchingModel")
    pod = world.job()["spec"]["template"]["spec"]
    assert _arguments(pod["containers"][0])["--revision"] == COMMIT
    mounted = {v["name"]: v.get("persistentVolumeClaim") for v in pod["volumes"]}
    assert mounted["model"] == {"claimName": "chat-model"}
    progress = FetchProgress(
        bytes=3_000_000_000, total=16_400_000_000, bytes_per_second=55_000_000, eta_seconds=244
    )
    world.reconcile(progress)
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert message.startswith("3.0 of 16.4 GB at 55 MB/s, 4 min left: commit c0ffee")
    world.ends(0, said("ModelFetched", COMMIT))
    plan = world.reconcile()
    assert [event.reason for event in plan.events] == ["ModelFetched"]
    world.reconcile()
    pools = [c for (kind, _), c in world.children.items() if kind == "EnginePool"]
    assert [p["spec"]["modelClaim"] for p in pools] == ["chat-model"] * 2
    assert not any("fetch" in p["spec"] for p in pools)
    assert {"Job"} & world.kinds() == set()
    assert {"PersistentVolumeClaim"} <= world.kinds()


def test_adapters_wait_for_the_model_and_may_be_on_its_claim() -> None:
    adapters = [{"name": "a", "uri": "pvc://models/a"}, {"name": "b", "uri": "pvc://others/b"}]
    world = World({"model": HUB | {"cache": {"claim": "models"}, "adapters": adapters}})
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "ResolvingModel")
    world.deliver()
    pool = world.children["EnginePool", "chat-mixed"]["spec"]
    assert (pool["modelClaim"], pool["adapterClaims"]) == ("models", ["others"])


def test_another_mistake_of_a_model_that_is_not_resolved_is_refused_by_name() -> None:
    adapters = [{"name": "a", "uri": "oci://org/adapter"}]
    plan = World({"model": HUB | {"adapters": adapters}}).reconcile()
    assert plan.refusal is not None
    assert 'adapters[0].uri: "oci://org/adapter" is not allowed' in plan.refusal.message


def test_a_named_claim_is_the_users_own() -> None:
    world = World({"model": HUB | {"cache": {"claim": "models"}}})
    world.reconcile()
    assert "PersistentVolumeClaim" not in world.kinds()


def test_an_architecture_that_no_engine_has_is_refused_before_the_download() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.ends(0, resolved(architecture="MambaForCausalLM"))
    world.reconcile()
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "UnsupportedArchitecture")
    message = (find(world.status, "Ready") or {})["message"]
    assert all(name in message for name in ("MambaForCausalLM", *ARCHITECTURES))


def test_an_unknown_quantisation_is_refused_before_the_download() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.ends(0, resolved(quantization="quark"))
    world.reconcile()
    world.reconcile()
    assert world.condition("Stalled") == ("True", "UnsupportedQuantization")
    message = (find(world.status, "Ready") or {})["message"]
    assert all(name in message for name in ("quark", *QUANTISATIONS))
    assert "-resolve-" in world.job()["metadata"]["name"], "nothing is downloaded"


def test_a_quantisation_that_engines_know_is_downloaded() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.ends(0, resolved(quantization="awq"))
    world.reconcile()
    world.reconcile()
    assert world.status["model"]["quantization"] == "awq"
    assert "-fetch-" in world.job()["metadata"]["name"]


def test_a_moved_branch_changes_nothing_until_a_refresh_is_asked_for() -> None:
    world = served_world()
    world.edit(name="another")
    world.reconcile()
    assert world.status["model"]["commit"] == COMMIT
    assert "Job" not in world.kinds()
    world.edit(refresh="now")
    world.reconcile()
    world.ends(0, resolved(commit=OTHER_COMMIT))
    world.reconcile()
    world.reconcile()
    assert world.status["model"]["commit"] == OTHER_COMMIT
    assert OTHER_COMMIT in world.children["EnginePool", "chat-mixed"]["spec"]["fetch"]["commit"]


def test_a_refresh_is_undone_to_the_commit_of_before() -> None:
    world = served_world()
    first = service(world.spec, generation=1) | {"status": world.status}
    top, spec = owner(INFERENCE_SERVICE, first, "chat"), spec_with_commit(first)
    complete = complete_revision("chat-1", 1, spec)
    known = (complete.to_manifest(top),)
    world.edit(refresh="now")
    asked = service(world.spec, generation=2) | {"status": world.status}
    assert target(asked, known, None).number == 1, "what is not resolved may be another"
    world.reconcile()
    world.ends(0, resolved(commit=OTHER_COMMIT))
    world.reconcile()
    moved = service(world.spec, generation=2) | {"status": world.status}
    back = undone(moved["spec"], target(moved, known, None).spec)
    assert back["model"] == HUB | {"revision": COMMIT}
    same = first | {"status": moved["status"] | {"model": first["status"]["model"]}}
    with pytest.raises(NothingToUndoError):
        target(same, known, None)


def test_a_refresh_that_finds_the_same_commit_restarts_nothing() -> None:
    world = served_world()
    before = world.children["EnginePool", "chat-mixed"]
    world.edit(refresh="now")
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    assert world.status["model"]["refresh"] == "now"
    assert world.children["EnginePool", "chat-mixed"]["spec"] == before["spec"]


def test_what_serves_stays_while_another_model_is_on_its_way_or_fails() -> None:
    world = served_world()
    before = dict(world.children)
    world.edit(uri="hf://Qwen/Wrong")
    world.reconcile()
    assert before.items() <= world.children.items()
    assert world.condition("Updated") == ("False", "ResolvingModel")
    message = (find(world.status, "Updated") or {})["message"]
    assert "is being resolved to a commit; the settings of generation 1" in message
    world.ends(2, said("RepositoryNotFound", "does not exist"))
    world.reconcile()
    assert before.items() <= world.children.items()
    assert world.status["model"]["commit"] == COMMIT
    world.edit(uri=HUB["uri"])
    plan = world.reconcile()
    assert world.children.keys() == before.keys(), "the commit of before is still recorded"
    assert plan.pools


def test_a_larger_claim_restarts_nothing() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.deliver()
    before = world.children["EnginePool", "chat-mixed"]["spec"]
    world.edit(cache={"size": "40Gi"})
    world.reconcile()
    assert world.children["EnginePool", "chat-mixed"]["spec"] == before
    claim = world.children["PersistentVolumeClaim", "chat-model"]
    assert claim["spec"]["resources"]["requests"] == {"storage": "40Gi"}


def test_a_claim_that_was_made_anew_is_filled_again() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.deliver()
    assert "Job" not in world.kinds()
    del world.children["PersistentVolumeClaim", "chat-model"]
    world.reconcile()
    world.reconcile()
    assert "-fetch-" in world.job()["metadata"]["name"]
    assert world.condition("ModelAvailable") == ("False", "FetchingModel")
    world.ends(0, said("ModelFetched", COMMIT))
    world.reconcile()
    world.reconcile()
    assert "Job" not in world.kinds()


def test_a_paused_service_resolves_nothing() -> None:
    world = World({"model": HUB, "paused": True})
    plan = world.reconcile()
    assert plan.apply == ()
    assert world.condition("Updated") == ("False", "Paused")


def test_without_an_image_that_fetches_a_hub_is_refused() -> None:
    observed = service_observed(service({"model": HUB}))
    plan = plan_service(replace(observed, images=replace(IMAGES, fetch="")))
    assert plan.refusal is not None
    assert "SLUICE_FETCH_IMAGE" in plan.refusal.message


def test_another_fetchers_image_waits_for_the_upgrade() -> None:
    world = served_world()
    item = service(world.spec) | {"status": world.status}
    observed = service_observed(item, world.children.values())
    plan = plan_service(replace(observed, images=replace(IMAGES, fetch="fetch:2")))
    assert of(plan.apply, "EnginePool")["spec"]["fetch"]["image"] == IMAGES.fetch
    (waits,) = plan.upgrade
    assert "fetch:2" in waits


def test_a_status_that_was_edited_is_resolved_anew() -> None:
    world = served_world()
    world.status["model"] = {"uri": HUB["uri"], "commit": 7}
    world.reconcile()
    assert "Job" in world.kinds()
    assert "EnginePool" in world.kinds(), "what serves stays meanwhile"


def test_a_cache_that_is_added_is_filled_before_engines_move_to_it() -> None:
    world = served_world()
    cache = {"size": "20Gi", "storageClass": "fast", "accessMode": "ReadWriteOnce"}
    world.edit(cache=cache)
    world.reconcile()
    claim = world.children["PersistentVolumeClaim", "chat-model"]["spec"]
    assert (claim["storageClassName"], claim["accessModes"]) == ("fast", ["ReadWriteOnce"])
    assert "fetch" in world.children["EnginePool", "chat-mixed"]["spec"]
    world.ends(0, said("ModelFetched", COMMIT))
    world.reconcile()
    world.reconcile()
    assert world.children["EnginePool", "chat-mixed"]["spec"]["modelClaim"] == "chat-model"
