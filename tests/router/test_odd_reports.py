"""Load reports that no engine should make: refused, or good for all who read them."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import LoadReport
from sluice_router.engine_load import reported_load
from sluice_router.engines import Endpoint, Phase
from sluice_router.fleet import Fleet

from tests.router.fakes import load_report

ENGINE = Endpoint("a", "http://a", Role.MIXED, Phase.READY)
IDLE: dict[str, Any] = load_report().to_json_dict()
ODD: tuple[Any, ...] = (
    None, True, "", [], {}, -1, 2**53, 2**53 + 1, 10**400, 1e308, -0.5, math.nan, math.inf,
)  # fmt: skip


@pytest.mark.parametrize("key", sorted(IDLE))
def test_what_is_accepted_can_be_compared_and_passed_on(key: str) -> None:
    for value in ODD:
        _check(IDLE | {key: value})


def _check(told: dict[str, Any]) -> None:
    text = json.dumps(told)
    try:
        report = LoadReport.model_validate_json(text, extra="ignore")
    except ValidationError:
        return
    fleet = Fleet(lambda: 0.0)
    fleet.replace_endpoints((ENGINE,))
    (state,) = fleet.engines()
    fleet.report(state.key, report, own_inflight=0)
    (state,) = fleet.engines()
    load = reported_load(state, 0.0, stale_seconds=1.0)
    assert load is not None
    assert not math.isnan(load)
    passed_on = report.model_dump_json(by_alias=True)
    assert LoadReport.model_validate_json(passed_on) == report, "the autoscaler reads it"
