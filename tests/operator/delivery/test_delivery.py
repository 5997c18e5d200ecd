"""A service whose model is on a hub, reconcile by reconcile: each plan is carried out by hand, and
its status is what the next one starts from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_contract.config.supported import ARCHITECTURES, QUANTISATIONS
from sluice_contract.wire.fetch_progress import FetchProgress
from sluice_operator.cli.rollout.undo import NothingToUndoError, target, undone
from sluice_operator.conditions.conditions import find
from sluice_operator.delivery.resolved_model import spec_with_commit
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import owner
from sluice_operator.service.plan import plan_service

from tests.operator.delivery.world import World
from tests.operator.examples import IMAGES, complete_revision, of, service, service_observed
from tests.operator.model_pods import COMMIT, resolved, said

HUB: Manifest = {"uri": "hf://Qwen/Qwen3-8B"}
CACHED: Manifest = HUB | {"cache": {"size": "20Gi"}}
OTHER_COMMIT = "decade" * 6 + "4567"


def _resolved(**model: Any) -> World:
    """A world whose model is resolved, and whose status says so."""
    world = World({"model": HUB | model})
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    return world


def _served() -> World:
    world = _resolved()
    world.reconcile()
    assert world.revisions()
    return world


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
        "dtype": "bfloat16", "contextTokens": 40960,
    }  # fmt: skip
    world.reconcile()
    assert {"EnginePool", "Deployment", "Service"} <= world.kinds()
    assert "Job" not in world.kinds(), "what is recorded needs no witness"


def test_without_a_cache_each_engine_downloads_that_commit_itself() -> None:
    world = _served()
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


FAILURES = ["RepositoryNotFound", "RevisionNotFound", "AccessDenied", "NotAModel"]


@pytest.mark.parametrize("reason", FAILURES)
def test_a_failure_is_named_and_stays_until_the_spec_changes(reason: str) -> None:
    world = World({"model": HUB})
    world.reconcile()
    failed = world.job()["metadata"]["name"]
    world.ends(2, said(reason, "why it failed"))
    plan = world.reconcile()
    assert (plan.apply, plan.prune) == ((), ()), "the Job stays as it is: nothing is tried again"
    for kind in ("Ready", "Updated", "ModelAvailable"):
        assert world.condition(kind) == ("False", reason)
    assert world.condition("Stalled") == ("True", reason)
    assert "why it failed" in (find(world.status, "Ready") or {})["message"]
    before = world.status
    world.reconcile()
    assert world.status == before
    world.edit(refresh="2")
    world.reconcile()
    assert world.job()["metadata"]["name"] != failed
    assert world.condition("Updated") == ("False", "ResolvingModel")


def test_what_may_pass_is_named_and_tried_again() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(1, said("HubUnreachable", "no connection"))
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "HubUnreachable")
    assert world.condition("Stalled")[0] == "False"
    world.ends(0, resolved())
    world.reconcile()
    assert world.status["model"]["commit"] == COMMIT


@pytest.mark.parametrize(
    ("code", "reason", "told", "shown"),
    [
        (1, "TokenMissing", "there is no /etc/x", "there is no Secret hub with the key token"),
        (2, "InvalidConfig", "/etc/x holds no token", "Secret hub, key token: /etc/x holds no"),
    ],
)
def test_what_is_wrong_with_a_token_names_its_secret_and_key(
    code: int, reason: str, told: str, shown: str
) -> None:
    world = World({"model": HUB | {"tokenSecretRef": {"name": "hub", "key": "token"}}})
    world.reconcile()
    world.ends(code, said(reason, f"--token-file: {told}"))
    world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert f"spec.model.tokenSecretRef: {shown}" in message
    assert world.condition("ModelAvailable") == ("False", reason)


def test_a_job_that_has_given_up_is_a_failure() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(1, said("HubUnreachable", "no connection"))
    job = world.job()
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimit"}]}
    world.reconcile()
    assert world.condition("Stalled") == ("True", "HubUnreachable")


def test_a_job_whose_pods_are_gone_is_made_again() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.job()["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.reconcile()
    assert "Job" not in world.kinds()
    world.reconcile()
    assert "Job" in world.kinds()


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
    world = _served()
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
    world = _served()
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
    world = _served()
    before = world.children["EnginePool", "chat-mixed"]
    world.edit(refresh="now")
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    assert world.status["model"]["refresh"] == "now"
    assert world.children["EnginePool", "chat-mixed"]["spec"] == before["spec"]


def test_what_serves_stays_while_another_model_is_on_its_way_or_fails() -> None:
    world = _served()
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
    world = _served()
    item = service(world.spec) | {"status": world.status}
    observed = service_observed(item, world.children.values())
    plan = plan_service(replace(observed, images=replace(IMAGES, fetch="fetch:2")))
    assert of(plan.apply, "EnginePool")["spec"]["fetch"]["image"] == IMAGES.fetch
    (waits,) = plan.upgrade
    assert "fetch:2" in waits


def test_what_keeps_a_job_from_starting_is_named() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(0, "")
    world.pods[0]["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
        ],
    }
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "Unschedulable")
    assert world.condition("Stalled")[0] == "False"


def test_a_job_without_a_pod_is_named() -> None:
    world = World({"model": HUB})
    for _ in range(2):
        world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert message.endswith(f"Job {world.job()['metadata']['name']} has no pod yet.")
    world.ends(0, "")
    world.pods[0]["status"] = {"phase": "Running"}
    world.reconcile()
    assert "no pod" not in (find(world.status, "ModelAvailable") or {})["message"]


REFUSED = 'pods "a" is forbidden: failed quota: team: must specify limits.cpu for: fetch-model'


@pytest.mark.parametrize("served", [False, True], ids=["nothing serves", "another model serves"])
def test_a_job_whose_pod_is_refused_needs_a_person_until_it_is_not(served: bool) -> None:
    world = World({"model": {"uri": "dummy://a"} if served else HUB})
    world.reconcile()
    world.edit(**HUB)
    world.reconcile()
    world.refused = REFUSED
    world.reconcile()
    says = f"Job {world.job()['metadata']['name']} gets no pod: {REFUSED}"
    stalled, *others = (
        find(world.status, kind) or {} for kind in ("Stalled", "ModelAvailable", "Updated")
    )
    assert (stalled["status"], stalled["reason"]) == ("True", "PodRefused")
    assert world.condition("Progressing") == world.condition("Reconciling")
    assert world.condition("Reconciling") == ("False", "PodRefused")
    for condition in others:
        assert (condition["status"], condition["reason"]) == ("False", "PodRefused")
    assert all(says in condition["message"] for condition in (stalled, *others))
    world.refused = ""
    world.reconcile()
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("ModelAvailable") == ("False", "ResolvingModel")


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_refusal_is_told_before_what_attempts_have_said(attempts: int) -> None:
    world = World({"model": HUB}, refused=REFUSED)
    world.reconcile()
    for _ in range(attempts):
        world.ends(1, said("HubUnreachable", "no route"))
    world.reconcile()
    assert world.condition("Stalled") == ("True", "PodRefused")
    world.ends(2, said("AccessDenied", "gated"))
    world.reconcile()
    assert world.condition("Stalled") == ("True", "AccessDenied"), "no pod comes after that"


def test_a_job_that_somebody_suspends_is_told_and_not_given_up() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.job()["spec"]["suspend"] = True
    plan = world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert world.condition("ModelAvailable") == ("False", "JobSuspended")
    assert message == f"Job {world.job()['metadata']['name']} is suspended, and has no pod."
    stalled = find(world.status, "Stalled") or {}
    assert stalled["status"] == "False"
    assert "JobSuspended may need a person" in stalled["message"]
    assert all("suspend" not in manifest.get("spec", {}) for manifest in plan.apply)


def test_a_pod_that_dies_without_a_word_is_told_by_its_code() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(137, "Traceback\n  killed")
    world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert message == "exited with code 137: Traceback killed; tried again (failed 1 times)"


def test_an_answer_that_is_not_understood_is_a_failure() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(0, said("ModelResolved", "of another release"))
    world.reconcile()
    assert world.condition("Stalled") == ("True", "FetcherMismatch")


def test_the_pod_of_another_job_says_nothing() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(2, said("AccessDenied", "of before"))
    world.pods[0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "ResolvingModel")


def test_a_status_that_was_edited_is_resolved_anew() -> None:
    world = _served()
    world.status["model"] = {"uri": HUB["uri"], "commit": 7}
    world.reconcile()
    assert "Job" in world.kinds()
    assert "EnginePool" in world.kinds(), "what serves stays meanwhile"


def test_a_cache_that_is_added_is_filled_before_engines_move_to_it() -> None:
    world = _served()
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


def test_a_volume_that_is_full_is_named_and_a_refresh_tries_the_download_again() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    full = world.job()["metadata"]["name"]
    world.ends(2, said("NoSpace", "16.4 GB are missing, 2.0 GB are free"))
    world.reconcile()
    assert world.condition("Ready") == ("False", "NoSpace")
    assert world.condition("Stalled") == ("True", "NoSpace")
    world.edit(cache={"size": "40Gi"}, refresh="larger")
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    assert world.job()["metadata"]["name"] != full
