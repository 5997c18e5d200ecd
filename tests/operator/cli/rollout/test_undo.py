"""What a roll-out is undone to, and what of the present spec stays."""

from __future__ import annotations

import json

import pytest
from sluice_operator.cli.rollout.undo import (
    NothingToUndoError,
    changes,
    engines_ready,
    number_from_now,
    puts_back,
    restarted,
    target,
    undone,
)
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import owner
from sluice_operator.service.revisions.revision import STATE, Revision, State, revisions_of

from tests.operator.examples import complete_revision, service


def recorded(*chunks: int) -> tuple[Manifest, ...]:
    """Revisions that were complete, with these chunks."""
    top = owner(INFERENCE_SERVICE, service(), "chat")
    specs = [service({"engine": {"chunkSize": size}})["spec"] for size in chunks]
    return tuple(
        complete_revision(f"chat-{number}", number, spec).to_manifest(top)
        for number, spec in enumerate(specs, start=1)
    )


@pytest.mark.parametrize(
    ("now", "number", "revision"),
    [(2, None, 1), (3, None, 2), (3, 1, 1)],
    ids=["the one before", "the last that was complete", "by its number"],
)
def test_which_revision_is_gone_back_to(now: int, number: int | None, revision: int) -> None:
    item = service({"engine": {"chunkSize": now}})
    assert target(item, recorded(1, 2), number).number == revision


@pytest.mark.parametrize("verdict", ["aborted", "worse", "late"])
def test_a_canary_that_ended_is_gone_back_to_by_its_number_alone(verdict: str) -> None:
    """Its engines were complete before, and are not tried again until they are promoted."""
    first, second = recorded(1, 2)
    annotations = second["metadata"]["annotations"]
    annotations[STATE] = json.dumps(
        json.loads(annotations[STATE]) | {"canary": {"verdict": verdict}}
    )
    item = service({"engine": {"chunkSize": 3}})
    assert target(item, (first, second), None).number == 1
    assert target(item, (first, second), 2).number == 2


@pytest.mark.parametrize(("back_to", "number"), [(1, 4), (3, 3)])
def test_a_revision_that_is_gone_back_to_becomes_the_newest(back_to: int, number: int) -> None:
    revisions = recorded(1, 2, 3)
    chosen = next(item for item in revisions_of(revisions).all if item.number == back_to)
    assert number_from_now(chosen, revisions) == number


def test_what_is_not_there_is_named_with_what_is() -> None:
    with pytest.raises(NothingToUndoError, match="7 is not there; allowed: 1, 2"):
        target(service(), recorded(1, 2), 7)
    with pytest.raises(NothingToUndoError, match=r"no former spec.*kubectl apply -f FILE"):
        target(service({"engine": {"chunkSize": 1}}), recorded(1), None)


def made(number: int, chunk: int, **parts: Manifest) -> Manifest:
    """A revision that was never complete, with engines named after its chunk."""
    spec = service({"engine": {"chunkSize": chunk}, **parts})["spec"]
    pool = {
        "fields": {"image": "e"},
        "file": "{}",
        "settings": {},
        "queue": {},
        "engines": f"engines-{chunk}",
    }
    router = {"image": "r", "file": "{}"}
    data = {"spec": spec, "pinned": spec, "pools": {"mixed": pool}, "router": router}
    revision = Revision(f"chat-{number}", number, data, State(carried_out=True))
    return revision.to_manifest(owner(INFERENCE_SERVICE, service(), "chat"))


def test_a_spec_that_serves_is_gone_back_to_though_it_was_never_complete() -> None:
    now, there = service({"engine": {"chunkSize": 9}}), (made(1, 1), made(2, 5), made(3, 9))
    revisions = [{"name": "engines-1", "ready": 1}, {"name": "engines-5", "ready": 0}]
    ready = engines_ready([{"status": {"revisions": revisions}}, {}])
    assert ready == {"engines-1"}
    assert target(now, there, None, ready).number == 1
    assert target(now, there, 1, ready).number == 1
    with pytest.raises(NothingToUndoError, match="2 is not there; allowed: 1"):
        target(now, there, 2, ready)
    with pytest.raises(NothingToUndoError, match="no engine of one serves"):
        target(now, there, None)
    mixed = (*recorded(3), made(2, 1), made(3, 9))
    assert target(now, mixed, None, ready).number == 1, "what was complete comes first"


def test_of_specs_with_the_same_engines_the_oldest_is_gone_back_to() -> None:
    """The router of a later one may be what broke the service."""
    typo = made(3, 5, router={"image": "typo:1"})
    there, now = (made(1, 1), made(2, 5), typo, made(4, 9)), service({"engine": {"chunkSize": 9}})
    assert target(now, there, None, {"engines-1", "engines-5"}).number == 2
    assert target(now, there, 3, {"engines-5"}).number == 3, "it can be named"


def test_numbers_and_the_manner_of_roll_outs_stay_as_they_are_now() -> None:
    former: Manifest = {
        "model": {"uri": "dummy://a"},
        "router": {"replicas": 2, "image": "r:1"},
        "rollout": {"upgrade": "a", "restartedAt": "early"},
        "autoscaling": {"gpuBudget": 2},
        "replicas": 1,
        "engine": {"chunkSize": 64},
    }
    now: Manifest = {
        "model": {"uri": "dummy://b"},
        "router": {"replicas": 5},
        "rollout": {"strategy": "InPlace", "canary": {}, "restartedAt": "late"},
        "paused": False,
        "autoscaling": {"maxReplicas": 9},
    }
    assert undone(now, former) == {
        "model": {"uri": "dummy://a"},
        "router": {"replicas": 5, "image": "r:1"},
        "rollout": {
            "strategy": "InPlace",
            "canary": {},
            "restartedAt": "late",
            "upgrade": "a",
        },
        "paused": False,
        "autoscaling": {"maxReplicas": 9},
        "engine": {"chunkSize": 64},
    }


def test_numbers_of_parts_that_were_left_out_stay_too() -> None:
    former: Manifest = {"model": {"uri": "dummy://a"}}
    numbers: Manifest = {"router": {"replicas": 5}, "replicas": 8}
    now = {"model": {"uri": "dummy://b"}, **numbers}
    assert undone(now, former) == former | numbers
    now["engine"] = {"chunkSize": 64}
    assert undone(now, former) == former | numbers


def test_the_accelerator_of_a_divided_budget_comes_back_and_the_budget_stays() -> None:
    def split(product: str, budget: int) -> Manifest:
        scaling = {"gpuBudget": budget}
        return {"autoscaling": scaling, "accelerator": {"product": product}, "prefill": {}}

    assert undone(split("B", 8), split("A", 4)) == split("A", 8)
    numbered = {"replicas": 3, "accelerator": {}, "prefill": {"replicas": 2}}
    assert undone(numbered, split("A", 4)) == numbered | {"accelerator": {"product": "A"}}
    assert undone(split("B", 8), numbered) == split("B", 8) | {"accelerator": {}}


def test_pools_that_are_not_there_now_come_back_with_their_numbers() -> None:
    former = {"replicas": 3, "prefill": {"replicas": 2}}
    assert undone({"replicas": 7}, former) == former
    assert undone(former, {"replicas": 7}) == {"replicas": 7}


def test_a_restart_changes_nothing_but_its_mark() -> None:
    spec: Manifest = {"rollout": {"strategy": "InPlace"}}
    assert changes(spec, restarted(spec, "now")).splitlines()[-3:] == [
        " rollout:",
        "+  restartedAt: now",
        "   strategy: InPlace",
    ]


def test_a_key_that_only_moved_is_no_change() -> None:
    resources = {"limits": {"memory": "2Gi"}, "requests": {"cpu": 1}}
    pods = {"resources": resources, "replicas": 2}
    moved = {"replicas": 2, "resources": dict(reversed(resources.items()))}
    assert changes({**pods}, {**moved}) == ""


def test_whoever_would_put_the_spec_back_is_named() -> None:
    mark = {"argocd.argoproj.io/tracking-id": "x"}
    assert puts_back(service(annotations=mark)) == "Argo CD"
    assert puts_back(service()) is None
