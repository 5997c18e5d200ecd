"""What two made-up releases of the operator take for the same revision, and what none of them can
read."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from sluice_operator.kube.kinds import CONTROLLER_REVISION, Manifest
from sluice_operator.service.plan import ServicePlan, plan_service
from sluice_operator.service.revisions import parts

from tests.operator.examples import live, service, service_observed, service_plan, written


def _next_release(spec: Manifest, before: ServicePlan | list[Manifest]) -> ServicePlan:
    """The plan of a release with another image, beside what the first one has made."""
    there = [*map(live, written(before))] if isinstance(before, ServicePlan) else before
    observed = service_observed(service(spec), there)
    return plan_service(replace(observed, images=replace(observed.images, engine="next")))


def _image(plan: ServicePlan) -> str:
    return str(plan.pools[0].manifest["spec"]["image"])


@pytest.fixture
def _other_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(parts.TIMES, "drain_seconds", 300)


@pytest.mark.usefixtures("_other_default")
@pytest.mark.parametrize(
    ("before", "after", "stays"),
    [
        ({}, {}, True),
        ({}, {"drainSeconds": 120}, True),
        ({}, {"drainSeconds": 300}, False),
        ({"drainSeconds": 120}, {"drainSeconds": 120}, True),
        ({"drainSeconds": 120}, {}, False),
    ],
)
def test_a_time_that_is_left_out_is_the_one_that_was_decided(
    before: Manifest, after: Manifest, stays: bool
) -> None:
    first = service_plan({"engine": before})
    plan = _next_release({"engine": after}, first)
    assert (_image(plan) == _image(first)) is stays
    assert (plan.decided is None) is stays


def test_an_upgrade_that_was_asked_for_stays_when_the_text_is_removed() -> None:
    first = service_plan()
    asked = _next_release({"rollout": {"upgrade": "now"}}, first)
    assert _image(asked) == "next"
    there = [*map(live, written(first)), *map(live, written(asked))]
    assert _image(_next_release({}, there)) == "next"


def _with_data(plan: ServicePlan, change: Any) -> list[Manifest]:
    """What is there, with a revision as another release would have written it."""
    there = [live(item) for item in written(plan)]
    for item in there:
        if item["kind"] == CONTROLLER_REVISION.kind:
            item["data"] = copy.deepcopy(item["data"])
            change(item["data"])
    return there


def _unknown_source(data: Manifest) -> None:
    data["pools"]["mixed"]["settings"]["chunkSize"]["source"] = "Nobody"


def _unknown_field(data: Manifest) -> None:
    data["pools"]["mixed"]["fields"]["sidecar"] = {}


def _unknown_fetch(data: Manifest) -> None:
    data["pools"]["mixed"]["fields"]["fetch"] = {"by": "pigeon"}


def _refused_spec(data: Manifest) -> None:
    data["pinned"]["engine"] = {"dtype": 5}


@pytest.mark.parametrize("change", [_unknown_source, _unknown_field, _unknown_fetch, _refused_spec])
def test_a_revision_that_this_release_cannot_read_is_decided_anew_under_another_name(
    change: Any,
) -> None:
    there = _with_data(service_plan(), change)
    (former,) = (item for item in there if item["kind"] == CONTROLLER_REVISION.kind)
    plan = _next_release({}, there)
    assert plan.decided is not None
    assert plan.decided["metadata"]["name"] != former["metadata"]["name"]
    assert plan.record is not None
    assert plan.record["data"] == plan.decided["data"]


def test_what_another_release_has_added_to_a_revision_stays() -> None:
    there = _with_data(service_plan(), lambda data: data.update(more=1))
    plan = _next_release({}, there)
    assert plan.decided is None
    assert plan.record is not None
    assert plan.record["data"]["more"] == 1


def test_a_revision_that_comes_back_is_not_carried_out_before_it_is() -> None:
    first, other = service_plan(), {"engine": {"chunkSize": 64}}
    second = plan_service(service_observed(service(other), map(live, written(first))))
    there = [*map(live, written(first)), *map(live, written(second))]
    back = plan_service(service_observed(service({"replicas": 3}), there))
    assert back.decided is not None
    assert "carriedOut" not in back.decided["metadata"]["annotations"]["serving.sluice.dev/state"]
    assert '"replicas":3' in back.decided["metadata"]["annotations"]["serving.sluice.dev/state"]


def test_a_number_that_somebody_has_edited_is_set_back() -> None:
    there = [live(item) for item in written(service_plan())]
    (revision,) = (item for item in there if item["kind"] == CONTROLLER_REVISION.kind)
    before, revision["revision"] = revision["revision"], 7
    record = plan_service(service_observed(service(), there)).record
    assert record is not None
    assert record["revision"] == before
