"""Who decides how many engines a pool has, and what each hand-over needs."""

from __future__ import annotations

import pytest
from sluice_contract.cluster.labels import FIELD_MANAGER, Role
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.apply.plan import REPLICAS_MANAGER
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.resolve.replicas import Replicas, plan_replicas

SCALED: Manifest = {"autoscaling": {"minReplicas": 2, "maxReplicas": 9}}
HPA = "kube-controller-manager"


def spec(pool: Manifest, provider: str = "External") -> InferenceServiceSpec:
    given: Manifest = {"model": {"uri": "dummy://a"}, **pool}
    if "autoscaling" in pool:
        given["autoscaling"] = pool["autoscaling"] | {"provider": provider}
    return InferenceServiceSpec.model_validate(given)


def live(*managers: str, replicas: int = 5) -> Manifest:
    fields: Manifest = {"f:spec": {"f:replicas": {}}}
    entries = [{"manager": each, "fieldsV1": fields} for each in managers]
    return {"metadata": {"managedFields": entries}, "spec": {"replicas": replicas}}


ASLEEP: Manifest = {"autoscaling": {"minReplicas": 0, "maxReplicas": 9}}


@pytest.mark.parametrize(
    ("wanted", "pool", "planned"),
    [
        (spec({"replicas": 4}), None, Replicas(4)),
        (spec({"replicas": 4}), live(FIELD_MANAGER), Replicas(4)),
        (spec({"replicas": 4}), live(HPA), Replicas(4)),
        (spec({"replicas": 4}), live(HPA, REPLICAS_MANAGER), Replicas(4, let_go=True)),
        (spec(SCALED), None, Replicas(2)),
        (spec(SCALED), live(FIELD_MANAGER), Replicas(5, is_applied=False, take_over=True)),
        (spec(SCALED), live(FIELD_MANAGER, REPLICAS_MANAGER), Replicas(5, is_applied=False)),
        (spec(SCALED), live(HPA), Replicas(5, is_applied=False)),
        (spec(SCALED), live(), Replicas(5, is_applied=False, take_over=True)),
        (
            spec(SCALED, "Internal"),
            live(HPA),
            Replicas(5, is_applied=False, take_over=True),
        ),
        (spec(SCALED, "Internal"), live(HPA, REPLICAS_MANAGER), Replicas(5, is_applied=False)),
        (spec(SCALED), live(FIELD_MANAGER, replicas=0), Replicas(2)),
        (spec(SCALED, "Internal"), live(FIELD_MANAGER, replicas=0), Replicas(2)),
        (
            spec(SCALED),
            live(FIELD_MANAGER, REPLICAS_MANAGER, replicas=0),
            Replicas(2, let_go=True),
        ),
        (spec(SCALED), live(HPA, replicas=0), Replicas(0, is_applied=False)),
        (spec(SCALED), live(REPLICAS_MANAGER, replicas=0), Replicas(0, is_applied=False)),
        (
            spec(ASLEEP),
            live(FIELD_MANAGER, replicas=0),
            Replicas(0, is_applied=False, take_over=True),
        ),
    ],
)
def test_the_next_owner_holds_the_live_value_first(
    wanted: InferenceServiceSpec, pool: Manifest | None, planned: Replicas
) -> None:
    assert plan_replicas(wanted, Role.MIXED, pool, wanted.pool(Role.MIXED).engines) == planned
