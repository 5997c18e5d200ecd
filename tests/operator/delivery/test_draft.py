"""A draft model of a hub: downloaded once, and waited for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sluice_operator.kube.kinds import Manifest

from tests.operator.delivery.test_adapters import CACHED, LAW, ends, jobs
from tests.operator.delivery.world import World
from tests.operator.examples import service_plan
from tests.operator.model_pods import COMMIT, said

URI = "hf://org/small@v2"
OTHER = "decade" * 6 + "4567"


def drafting(uri: str = URI) -> Manifest:
    return {"speculation": {"method": "Draft", "draft": {"uri": uri}}}


def world_with(**spec: Any) -> World:
    world = World({"model": CACHED | {"adapters": []}, "engine": drafting(), **spec})
    world.reconcile()
    return world


def drafts_from(world: World) -> str:
    """The URI in the newest file of the engines."""
    texts = [
        child["data"]["engine.json"]
        for (kind, _), child in world.children.items()
        if kind == "ConfigMap" and "engine.json" in child["data"]
    ]
    return str(json.loads(texts[-1])["speculation"]["draft"]["uri"])


def argument(job: Manifest, name: str) -> str:
    args: list[str] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    return args[args.index(name) + 1]


def test_engines_are_made_once_it_is_there() -> None:
    world = world_with()
    (job,) = jobs(world).values()
    assert (argument(job, "--uri"), argument(job, "--revision")) == ("hf://org/small", "v2")
    assert "--adapter" not in job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert world.condition("ModelAvailable") == ("False", "FetchingModel")
    assert not world.revisions()

    ends(world, "hf://org/small", 0, said("ModelFetched", COMMIT))
    assert world.status["adapters"] == [
        {"name": URI, "uri": URI, "commit": COMMIT, "claim": "cache"}
    ]
    folder = f"/mnt/adapters/cache/models--org--small/snapshots/{COMMIT}"
    assert drafts_from(world) == f"file://{folder}"
    assert world.children["EnginePool", "chat-mixed"]["spec"]["adapterClaims"] == ["cache"]
    assert world.revisions()
    assert jobs(world) == {}


def test_it_is_on_the_claim_of_a_model_of_the_hub_and_after_it() -> None:
    world = world_with(model={"uri": "hf://org/model", "cache": {"size": "1Gi"}})
    assert list(jobs(world)) == ["hf://org/model"]
    world.deliver()
    assert list(jobs(world)) == ["hf://org/small"]
    ends(world, "hf://org/small", 0, said("ModelFetched", OTHER))
    assert drafts_from(world) == f"file:///mnt/model/models--org--small/snapshots/{OTHER}"


def test_former_engines_go_on_with_their_draft_until_another_one_is_there() -> None:
    world = world_with()
    ends(world, "hf://org/small", 0, said("ModelFetched", COMMIT))
    before = world.revisions()
    world.generation += 1
    world.spec = world.spec | {"engine": drafting("hf://org/new")}
    world.reconcile()
    assert world.revisions() == before
    assert [record["uri"] for record in world.status["adapters"]] == [URI]
    ends(world, "hf://org/new", 0, said("ModelFetched", OTHER))
    assert world.revisions() != before
    assert [record["uri"] for record in world.status["adapters"]] == ["hf://org/new"]


def test_why_it_is_not_there_is_said_and_adapters_do_not_wait_for_it() -> None:
    world = world_with(model=CACHED | {"adapters": [LAW]})
    ends(world, "hf://org/law", 0, said("ModelFetched", COMMIT))
    assert [record["name"] for record in world.status["adapters"]] == ["law"]
    ends(world, "hf://org/small", 2, said("NotAModel", "commit c0 has no config.json"))
    assert world.condition("ModelAvailable") == ("False", "NotAModel")
    assert not world.revisions()


@pytest.mark.parametrize(
    ("model", "uri", "field"),
    [
        ({"uri": "pvc://models/a"}, URI, "spec.model.cache"),
        (CACHED | {"adapters": []}, "oci://registry/small:v1", "pvc://claim/path"),
        (CACHED | {"adapters": []}, "hf://org", "hf://org/name@revision"),
    ],
)
def test_it_is_refused_where_engines_cannot_have_it(model: Manifest, uri: str, field: str) -> None:
    plan = service_plan({"model": model, "engine": drafting(uri)})
    assert plan.refusal is not None
    assert plan.refusal.field == "spec.engine.speculation.draft.uri"
    assert f'"{uri}" is not implemented yet; allowed: ' in plan.refusal.message
    assert field in plan.refusal.message


def test_a_draft_whose_job_gets_no_pod_needs_a_person() -> None:
    world = world_with()
    world.refused = "denied"
    world.reconcile()
    assert world.condition("Stalled") == ("True", "PodRefused")
    assert world.condition("ModelAvailable") == ("False", "PodRefused")
