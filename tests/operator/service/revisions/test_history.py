"""Which specs are recorded for a roll-out to be undone to, and which are forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_operator.kube.kinds import CONTROLLER_REVISION, INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import owner
from sluice_operator.service.plan import plan_service
from sluice_operator.service.revisions.history import MAX_COMPLETE
from sluice_operator.service.revisions.parts import spec_hash
from sluice_operator.service.revisions.revision import Revision, Revisions, State, revisions_of

from tests.operator.examples import MINIMAL_SPEC, complete_service, live, service, service_observed
from tests.operator.model_pods import COMMIT, RESOLVED

CHUNK = 64
BOTH_THERE = {"prefill": "there", "decode": "other"}


def with_chunk(size: int) -> Manifest:
    return {"engine": {"chunkSize": size * CHUNK}}


class Recorded:
    """The history of a service that is complete with one spec after the other."""

    def __init__(self) -> None:
        self.there: dict[str, Manifest] = {}

    def complete(self, spec: Manifest) -> None:
        self._take(complete_service(spec))

    def fail(self, spec: Manifest) -> None:
        self._take(service(spec, generation=2) | {"status": complete_service()["status"]})

    @property
    def chunks(self) -> list[int]:
        complete = revisions_of(tuple(self.there.values())).complete
        return [revision.spec["engine"]["chunkSize"] // CHUNK for revision in complete]

    def _take(self, item: Manifest) -> None:
        owned = [live(each) for each in self.there.values()]
        plan = plan_service(service_observed(item, owned))
        for reference in plan.prune:
            assert reference.kind == CONTROLLER_REVISION
            del self.there[reference.name]
        for revision in filter(None, (plan.decided, plan.record)):
            name = revision["metadata"]["name"]
            data = self.there.get(name, revision)["data"]
            assert revision["data"] == data, "the API server lets nobody change it"
            self.there[name] = revision


def test_only_what_was_complete_is_recorded() -> None:
    history = Recorded()
    history.complete(with_chunk(1))
    history.fail(with_chunk(2))
    assert history.chunks == [1]


def test_which_engines_were_complete_last_is_known_beside_the_next_spec() -> None:
    """Before that has any engine, and whatever becomes of the status."""
    history = Recorded()
    history.complete(with_chunk(1))
    before = State(stable={"mixed": "of-the-first"})
    ((name, item),) = history.there.items()
    (first,) = revisions_of((item,)).all
    top = owner(INFERENCE_SERVICE, service(), "chat")
    there = [live(replace(first, state=before).to_manifest(top))]
    decided = plan_service(service_observed(service(with_chunk(2)), there)).decided
    assert decided is not None
    assert decided["metadata"]["name"] != name
    assert revisions_of((*there, decided)).stable == {"mixed": "of-the-first"}


@pytest.mark.parametrize(
    ("noted", "reported", "stable"),
    [
        ({"mixed": "gone"}, {"mixed": "there"}, {"mixed": "there"}),
        ({}, {"mixed": "there"}, {"mixed": "there"}),
        ({"prefill": "gone", "decode": "there"}, BOTH_THERE, BOTH_THERE),
        ({"mixed": "there"}, {"mixed": "other"}, {"mixed": "there"}),
        ({"mixed": "gone"}, {"mixed": "gone too"}, {"mixed": "gone"}),
        ({"mixed": "gone"}, {}, {"mixed": "gone"}),
    ],
)
def test_of_engines_that_have_gone_the_status_says_which_were_complete_later(
    noted: dict[str, str], reported: dict[str, str], stable: dict[str, str]
) -> None:
    """Somebody has deleted the newest revision, so that an earlier one is the newest."""
    earlier = Revision("earlier", 1, {}, State(stable=noted))
    there = Revisions((earlier,), frozenset({"there", "other"}), reported)
    assert there.stable == stable


def test_what_is_taken_up_again_is_the_newest() -> None:
    history = Recorded()
    for size in (1, 2, 1):
        history.complete(with_chunk(size))
        history.complete(with_chunk(size))
    assert history.chunks == [2, 1]
    assert {item["revision"] for item in history.there.values()} == {2, 3}


def test_the_last_ones_are_kept_also_while_nothing_is_complete() -> None:
    history = Recorded()
    for size in range(1, MAX_COMPLETE + 3):
        history.complete(with_chunk(size))
    history.fail(with_chunk(100))
    assert history.chunks == list(range(3, MAX_COMPLETE + 3))


def test_numbers_make_no_revision() -> None:
    history = Recorded()
    history.complete({"replicas": 1})
    history.complete({"router": {"replicas": 4}, "replicas": 3})
    assert len(history.there) == 1


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"paused": True}, False),
        ({"autoscaling": {"gpuBudget": 4}}, False),
        ({"rollout": {"strategy": "InPlace", "restartedAt": "now"}}, False),
        ({"rollout": {"canary": {"steps": [5]}}}, False),
        ({"autoscaling": {"maxReplicas": 2}}, False),
        ({"rollout": {"upgrade": "a"}}, True),
        ({"model": {**MINIMAL_SPEC["model"], "adapters": []}}, True),
        ({"resources": {"limits": {"cpu": 1}}}, True),
        ({"router": {"image": "b"}}, True),
        ({"prefill": {}}, True),
    ],
)
def test_what_pods_are_made_of_is_compared(change: Manifest, differs: bool) -> None:
    assert (spec_hash(MINIMAL_SPEC | change) != spec_hash(MINIMAL_SPEC)) is differs


def test_numbers_of_two_pools_are_no_other_engines_and_an_accelerator_is() -> None:
    numbers: tuple[Manifest, ...] = (
        {"prefill": {}},
        {"prefill": {"replicas": 1}, "replicas": 2},
        {"prefill": {"autoscaling": {"minReplicas": 1, "maxReplicas": 2}}},
    )
    assert len({spec_hash(MINIMAL_SPEC | spec) for spec in numbers}) == 1
    own = {"prefill": {"accelerator": {"count": 2}}}
    assert spec_hash(MINIMAL_SPEC | own) != spec_hash(MINIMAL_SPEC | numbers[0])


def test_a_hubs_model_is_recorded_with_its_commit() -> None:
    asked = {"uri": "hf://org/name", "refresh": "x"}
    item = complete_service({"model": asked})
    item["status"]["model"] = {**asked, "revision": "main", **RESOLVED}
    revision = plan_service(service_observed(item)).decided
    assert revision is not None
    assert revision["data"]["spec"]["model"] == {"uri": "hf://org/name", "revision": COMMIT}
