"""Adapters of a hub, reconcile by reconcile: downloaded beside engines that serve, once each."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from sluice_operator.cli.rollout.undo import undone
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.parts import spec_hash

from tests.operator.delivery.world import World
from tests.operator.examples import service_plan
from tests.operator.model_pods import COMMIT, ended_pod, resolved, said

OTHER_COMMIT = "decade" * 6 + "4567"
SQL: Manifest = {"name": "sql", "uri": "hf://org/sql@v1"}
LAW: Manifest = {"name": "law", "uri": "hf://org/law"}
OWN: Manifest = {"name": "own", "uri": "file:///loras/own"}
CACHED: Manifest = {"uri": "pvc://models/qwen3", "cache": {"claim": "cache"}}
FILE = ("ConfigMap", "chat-adapters")


def world_with(*adapters: Manifest, **model: Any) -> World:
    """A world whose engines are made, and whose adapters are being fetched."""
    world = World({"model": CACHED | {"adapters": list(adapters)} | model})
    world.reconcile()
    return world


def jobs(world: World) -> dict[str, Manifest]:
    """The Jobs, by repository."""
    found = (child for (kind, _), child in world.children.items() if kind == "Job")
    return {str(_argument(job, "--uri")): job for job in found}


def _argument(job: Manifest, name: str) -> str:
    args: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return args[args.index(name) + 1]


def ends(world: World, uri: str, code: int, message: str) -> None:
    """The Job for a repository ends, and what came of it is taken in."""
    world.pods.append(ended_pod(jobs(world)[uri], code, message, len(world.pods)))
    world.reconcile()
    world.reconcile()


def loaded(world: World) -> dict[str, str]:
    """The adapters in the file that engines follow."""
    text = world.children[FILE]["data"]["adapters.json"]
    return {each["name"]: each["uri"] for each in json.loads(text)["adapters"]}


def claims(world: World) -> list[str] | None:
    """The claims with adapters that engines mount."""
    found: list[str] | None = world.children["EnginePool", "chat-mixed"]["spec"].get(
        "adapterClaims"
    )
    return found


def message(world: World) -> str:
    return str((find(world.status, "AdaptersLoaded") or {})["message"])


def test_engines_are_made_at_once_and_an_adapter_is_served_once_it_is_there() -> None:
    world = world_with(SQL, OWN)
    (job,) = jobs(world).values()
    pod = job["spec"]["template"]["spec"]
    assert _argument(job, "--uri") == "hf://org/sql"
    assert _argument(job, "--revision") == "v1"
    assert "--adapter" in pod["containers"][0]["args"]
    mounted = {v["name"]: v.get("persistentVolumeClaim") for v in pod["volumes"]}
    assert mounted["model"] == {"claimName": "cache"}
    assert world.condition("AdaptersLoaded") == ("False", "FetchingAdapters")
    assert loaded(world) == {"own": "file:///loras/own"}
    before = world.revisions()
    assert before, "engines wait for no adapter"

    ends(world, "hf://org/sql", 0, said("ModelFetched", COMMIT))
    assert world.status["adapters"] == [
        {"name": "sql", "uri": SQL["uri"], "commit": COMMIT, "claim": "cache"}
    ]
    folder = f"/mnt/adapters/cache/models--org--sql/snapshots/{COMMIT}"
    assert loaded(world) == {"sql": f"file://{folder}", "own": "file:///loras/own"}
    assert jobs(world) == {}
    assert world.condition("AdaptersLoaded")[1] != "FetchingAdapters"
    assert world.revisions() == before


def test_an_adapter_whose_job_gets_no_pod_needs_a_person_while_the_model_serves() -> None:
    world = world_with(SQL, OWN)
    before = world.revisions()
    world.refused = "failed quota: team: must specify limits.cpu for: fetch-model"
    world.reconcile()
    assert world.condition("AdaptersLoaded") == ("False", "PodRefused")
    assert world.condition("Stalled") == ("True", "PodRefused")
    message = (find(world.status, "Stalled") or {})["message"]
    assert message.startswith("sql: Job chat-adapter-")
    assert message.endswith(f"gets no pod: {world.refused}")
    assert world.revisions() == before
    world.refused = ""
    world.reconcile()
    assert world.condition("AdaptersLoaded") == ("False", "FetchingAdapters")
    assert world.condition("Stalled")[0] == "False"


def test_beside_a_model_of_the_hub_they_are_on_its_claim() -> None:
    world = World({"model": {"uri": "hf://org/model", "cache": {"size": "1Gi"}, "adapters": [LAW]}})
    world.reconcile()
    world.deliver()
    assert list(jobs(world)) == ["hf://org/law"]
    ends(world, "hf://org/law", 0, said("ModelFetched", OTHER_COMMIT))
    folder = f"/mnt/model/models--org--law/snapshots/{OTHER_COMMIT}"
    assert loaded(world) == {"law": f"file://{folder}"}
    pool = world.children["EnginePool", "chat-mixed"]["spec"]
    assert (pool["modelClaim"], pool.get("adapterClaims")) == ("chat-model", None)
    assert world.status["adapters"][0]["claimUid"]
    del world.children["PersistentVolumeClaim", "chat-model"]
    world.reconcile()
    ends(world, "hf://org/model", 0, said("ModelFetched", COMMIT))
    for _ in range(3):
        world.reconcile()
    assert list(jobs(world)) == ["hf://org/law"]
    assert loaded(world) == {}, "a claim that was made anew is empty"


def test_one_that_fails_is_named_and_stops_nothing_else() -> None:
    world = world_with(SQL, LAW)
    ends(world, "hf://org/law", 0, said("ModelFetched", COMMIT))
    ends(world, "hf://org/sql", 2, said("NotAnAdapter", "commit c0 has no adapter_config.json"))
    assert world.condition("AdaptersLoaded") == ("False", "NotAnAdapter")
    assert "sql is not downloaded: hf://org/sql@v1: commit c0 has no" in message(world)
    assert list(loaded(world)) == ["law"]
    assert list(jobs(world)) == ["hf://org/sql"], "it is not tried again by itself"
    assert world.condition("Stalled")[0] == "False"
    for kind in ("Ready", "Updated"):
        assert "adapter" not in (find(world.status, kind) or {})["message"]
    world.edit(adapters=[SQL | {"uri": "hf://org/sql@v2"}, LAW])
    world.reconcile()
    assert world.condition("AdaptersLoaded") == ("False", "FetchingAdapters")


def test_the_version_before_is_served_until_the_next_one_is_there() -> None:
    world = world_with(SQL)
    ends(world, "hf://org/sql", 0, said("ModelFetched", COMMIT))
    before, made = loaded(world), world.revisions()
    world.edit(adapters=[SQL | {"uri": "hf://org/sql@v2"}])
    world.reconcile()
    assert loaded(world) == before
    ends(world, "hf://org/sql", 2, said("RevisionNotFound", "no v2"))
    assert loaded(world) == before
    assert "no v2; the version before is served" in message(world)
    world.edit(refresh="again")
    world.reconcile()
    ends(world, "hf://org/sql", 0, said("ModelFetched", OTHER_COMMIT))
    assert OTHER_COMMIT in loaded(world)["sql"]
    assert world.revisions() == made
    world.edit(adapters=[])
    world.reconcile()
    assert (loaded(world), world.status.get("adapters")) == ({}, None)
    assert world.revisions() == made, "the cache stays mounted for the next one"


def test_another_cache_takes_none_from_engines_that_serve() -> None:
    world = world_with(SQL)
    ends(world, "hf://org/sql", 0, said("ModelFetched", COMMIT))
    before, known = loaded(world), world.status["adapters"]
    world.edit(cache={"claim": "other"})
    world.reconcile()
    made = world.revisions()
    world.reconcile()
    assert (loaded(world), world.status["adapters"]) == (before, known)
    assert claims(world) == ["cache", "other"]
    assert world.condition("AdaptersLoaded") == ("False", "FetchingAdapters")
    ends(world, "hf://org/sql", 2, said("AccessDenied", "gated"))
    assert "gated; the version before is served" in message(world)
    assert (loaded(world), world.revisions()) == (before, made)
    world.edit(refresh="again")
    world.reconcile()
    ends(world, "hf://org/sql", 0, said("ModelFetched", COMMIT))
    assert loaded(world) == {
        name: uri.replace("/cache/", "/other/") for name, uri in before.items()
    }
    assert claims(world) == ["other"], "the claim of the former cache is let go of last"


def test_nor_does_one_that_the_model_is_downloaded_to_first() -> None:
    world = World({"model": {"uri": "hf://org/model", "cache": {"claim": "a"}, "adapters": [LAW]}})
    for told in (resolved(), said("ModelFetched", COMMIT)):
        world.reconcile()
        world.ends(0, told)
        world.reconcile()
    world.reconcile()
    ends(world, "hf://org/law", 0, said("ModelFetched", OTHER_COMMIT))
    world.edit(cache={"claim": "b"})
    world.reconcile()
    world.ends(0, said("ModelFetched", COMMIT))
    for _ in range(3):
        world.reconcile()
    folder = f"models--org--law/snapshots/{OTHER_COMMIT}"
    assert loaded(world) == {"law": f"file:///mnt/adapters/a/{folder}"}
    ends(world, "hf://org/law", 0, said("ModelFetched", OTHER_COMMIT))
    assert loaded(world) == {"law": f"file:///mnt/model/{folder}"}


def test_few_are_fetched_at_once_and_an_outcome_that_is_lost_is_fetched_anew() -> None:
    world = world_with(*({"name": f"a{n}", "uri": f"hf://org/a{n}"} for n in range(5)))
    assert sorted(jobs(world)) == [f"hf://org/a{n}" for n in range(4)]
    ends(world, "hf://org/a1", 2, said("AccessDenied", "gated"))
    assert len(jobs(world)) == 5, "what has failed holds up nobody"
    job = jobs(world)["hf://org/a0"]
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.reconcile()
    assert "hf://org/a0" not in jobs(world)
    world.reconcile()
    assert "hf://org/a0" in jobs(world)


def test_those_that_run_go_on_whatever_comes_before_them_in_the_list() -> None:
    six = [{"name": f"a{n}", "uri": f"hf://org/a{n}"} for n in range(6)]
    world = world_with(*six)
    running = set(jobs(world))
    world.edit(adapters=six[::-1])
    world.reconcile()
    assert set(jobs(world)) == running
    ends(world, "hf://org/a0", 0, said("ModelFetched", COMMIT))
    assert set(jobs(world)) == running - {"hf://org/a0"} | {"hf://org/a5"}


def test_an_operator_without_an_image_that_fetches_lets_go_of_none() -> None:
    world = world_with(SQL)
    ends(world, "hf://org/sql", 0, said("ModelFetched", COMMIT))
    before, known = loaded(world), world.status["adapters"]
    world.images = replace(world.images, fetch="")
    world.reconcile()
    world.reconcile()
    assert (loaded(world), world.status["adapters"]) == (before, known)
    assert world.condition("AdaptersLoaded")[1] != "InvalidSpec"
    world.edit(adapters=[SQL, LAW])
    world.reconcile()
    assert (loaded(world), world.status["adapters"]) == (before, known)
    assert "adapters: hf://org/law is not allowed; allowed: adapters that are not" in message(world)


def test_what_is_no_commit_is_not_taken_for_one() -> None:
    world = world_with(SQL)
    ends(world, "hf://org/sql", 0, said("ModelFetched", "../.."))
    assert world.condition("AdaptersLoaded") == ("False", "FetcherMismatch")
    assert loaded(world) == {}


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            {"uri": "pvc://models/a", "adapters": [SQL]},
            "spec.model.cache: null is not allowed; allowed: a claim or a size, as there are hf://",
        ),
        (
            {"uri": "pvc://models/a", "cache": {"claim": "c"}},
            'spec.model.cache: {"claim":"c"} is not allowed; allowed: only with a model of a hub',
        ),
        (
            CACHED | {"adapters": [{"name": "a", "uri": "hf://org/../a"}]},
            'adapters[0].uri: "hf://org/../a" is not allowed; allowed: pvc://claim/path',
        ),
        (
            CACHED | {"adapters": [{"name": "a", "uri": "hf://org/a@--cache"}]},
            'adapters[0].uri: "hf://org/a@--cache" is not allowed; allowed: pvc://claim/path',
        ),
    ],
)
def test_what_is_refused(model: Manifest, words: str) -> None:
    refusal = service_plan({"model": model}).refusal
    assert refusal is not None
    assert words in refusal.message


def test_undoing_a_roll_out_keeps_the_cache_that_adapters_need() -> None:
    now = {"model": CACHED | {"adapters": [SQL], "refresh": "2"}}
    former = {"model": {"uri": "pvc://models/qwen2", "adapters": []}}
    assert undone(now, former)["model"] == now["model"] | {"uri": "pvc://models/qwen2"}
    again = {"model": now["model"] | {"refresh": "3", "adapters": [SQL, LAW]}}
    assert spec_hash(now) == spec_hash(again), "which there are asks for no other pods"
