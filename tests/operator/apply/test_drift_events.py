"""What a person hears whose edit of a child was taken back."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.cluster.labels import FIELD_MANAGER
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.apply.drift_events import POOL_FIELDS, repair_events
from sluice_operator.apply.plan import Event, Overwritten
from sluice_operator.kube.kinds import Manifest

from tests.operator.examples import live, of, pool_plan, service_plan

IMMUTABLE = {"spec.serviceName", "spec.role"}
PLANNED = {"spec.revisions", "spec.handoverSecret", "spec.metricsPort"}
"""What no single field of the InferenceService says."""


def _owned(value: Any) -> Any:
    """The whole of a map as one manager's fields; lists are atomic here."""
    if not isinstance(value, dict):
        return {}
    return {f"f:{name}": _owned(below) for name, below in value.items()}


def _edited(desired: Manifest, section: str, **values: Any) -> Overwritten:
    """A child after somebody else's edit, which has taken the fields from the operator."""
    found = live(desired)
    found[section] = found[section] | values
    owned = {
        part: {
            k: v
            for k, v in desired[part].items()
            if (part, k) not in {(section, x) for x in values}
        }
        for part in ("metadata", "spec")
    }
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": _owned(owned)}
    found["metadata"] = found["metadata"] | {"managedFields": [entry]}
    return Overwritten(desired, found)


def _told(item: Overwritten) -> Event:
    (event,) = repair_events([item])
    assert event.about is item.live, "told about what was edited"
    assert event.type == "Warning"
    return event


def _pool() -> Manifest:
    return service_plan().pools[0].manifest


def test_a_scale_that_is_taken_back_tells_where_the_number_is_given() -> None:
    event = _told(_edited(_pool(), "spec", replicas=7))
    assert event.reason == "ScaleReverted"
    assert event.message == (
        "EnginePool chat-mixed: spec.replicas (from 7 to 1) set back: InferenceService chat owns "
        "this; change spec.replicas there."
    )


def test_other_fields_are_told_with_their_places() -> None:
    event = _told(_edited(_pool(), "spec", image="other:1", drainSeconds=3))
    assert event.reason == "Repaired"
    assert "spec.image, spec.drainSeconds set back" in event.message
    assert "change spec.engine.image, spec.engine.drainSeconds there" in event.message


def test_every_field_of_a_pool_has_a_place() -> None:
    fields = EnginePoolSpec.model_json_schema(by_alias=True)["properties"]
    assert {f"spec.{name}" for name in fields} == POOL_FIELDS.keys() | IMMUTABLE | PLANNED


@pytest.mark.parametrize(("router", "place"), [(True, "spec.router"), (False, "spec")])
def test_a_deployment_that_somebody_scaled_is_told_too(router: bool, place: str) -> None:
    deployment = service_plan().router if router else pool_plan().deployment
    assert deployment is not None
    event = _told(_edited(deployment, "spec", replicas=5))
    assert event.reason == "ScaleReverted"
    assert f"change {place}.replicas there" in event.message


def test_what_no_field_of_the_service_says_is_kept_as_it_asks() -> None:
    event = _told(_edited(_pool(), "metadata", labels={"a": "b"}))
    assert event.reason == "Repaired"
    assert "metadata.labels set back" in event.message
    assert "as InferenceService chat asks" in event.message


def test_a_change_of_plan_is_not_a_repair() -> None:
    before = _edited(_pool(), "spec", replicas=7).live
    desired = service_plan({"replicas": 3}).pools[0].manifest
    assert repair_events([Overwritten(desired, before)]) == ()


def test_a_child_without_a_stamp_is_put_right_without_a_word() -> None:
    front = of(service_plan().apply, "Service", "chat")
    assert repair_events([_edited(front, "spec", selector={"a": "b"})]) == ()


def test_a_value_that_is_the_same_again_is_not_worth_a_word() -> None:
    assert repair_events([_edited(_pool(), "spec", replicas=1)]) == ()
