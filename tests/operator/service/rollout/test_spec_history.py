"""Which specs are recorded for a roll-out to be undone to, and which are forgotten."""

from __future__ import annotations

import pytest
from sluice_operator.kube.kinds import CONTROLLER_REVISION, Manifest, of_kind
from sluice_operator.manifests.spec_history import recorded_spec, spec_hash
from sluice_operator.service.plan import plan_service
from sluice_operator.service.rollout.spec_history import MAX_SPECS

from tests.operator.examples import MINIMAL_SPEC, complete_service, live, service, service_observed
from tests.operator.model_pods import COMMIT, RESOLVED

CHUNK = 64


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
        found = sorted(self.there.values(), key=lambda item: item["revision"])
        return [recorded_spec(item)["engine"]["chunkSize"] // CHUNK for item in found]

    def _take(self, item: Manifest) -> None:
        owned = [live(each) for each in self.there.values()]
        plan = plan_service(service_observed(item, owned))
        for reference in plan.prune:
            assert reference.kind == CONTROLLER_REVISION
            del self.there[reference.name]
        for each in of_kind(plan.apply, CONTROLLER_REVISION):
            name = each["metadata"]["name"]
            data = self.there.get(name, each)["data"]
            assert each["data"] == data, "the API server lets nobody change it"
            self.there[name] = each


def test_only_what_was_complete_is_recorded() -> None:
    history = Recorded()
    history.complete(with_chunk(1))
    history.fail(with_chunk(2))
    assert history.chunks == [1]


def test_what_is_taken_up_again_is_the_newest() -> None:
    history = Recorded()
    for size in (1, 2, 1):
        history.complete(with_chunk(size))
        history.complete(with_chunk(size))
    assert history.chunks == [2, 1]
    assert {item["revision"] for item in history.there.values()} == {2, 3}


def test_the_last_ones_are_kept_also_while_nothing_is_complete() -> None:
    history = Recorded()
    for size in range(1, MAX_SPECS + 3):
        history.complete(with_chunk(size))
    history.fail(with_chunk(100))
    assert history.chunks == list(range(3, MAX_SPECS + 3))


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
    (found,) = of_kind(plan_service(service_observed(item)).apply, CONTROLLER_REVISION)
    assert recorded_spec(found)["model"] == {"uri": "hf://org/name", "revision": COMMIT}
