"""AdaptersLoaded of a pool, and where each adapter is loaded."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status
from sluice_operator.probes.adapters import EngineAdapters

from tests.operator.examples import NOW, pool, pool_observed
from tests.operator.statuses import condition

SPEC: Manifest = {
    "model": {"uri": "dummy://tiny", "adapters": [{"name": "sql", "uri": "file:///sql"}]}
}
DIGEST: str = pool(SPEC)["spec"]["adaptersDigest"]
LOADED = EngineAdapters(DIGEST, frozenset({"sql"}))
BEHIND = EngineAdapters("before", frozenset({"law"}), {"old": "is not in the file any more"})
FAILED = EngineAdapters(DIGEST, frozenset(), {"sql": "no folder"})


def status_of(*engines: EngineAdapters, spec: Manifest = SPEC) -> Manifest:
    adapters = {f"pod-{number}": each for number, each in enumerate(engines)}
    observed = replace(pool_observed(pool(spec)), adapters=adapters)
    return pool_status(observed, plan_pool(observed), NOW)


@pytest.mark.parametrize(
    ("engines", "told"),
    [
        ([], ("Unknown", "NoEngine", "No engine is ready that would load adapters.")),
        (
            [LOADED, BEHIND],
            ("False", "Loading", "1 of 2 ready engines have the adapters that are asked for."),
        ),
        ([LOADED, EngineAdapters()], ("False", "Loading", "1 of 2 ready engines have")),
        (
            [LOADED, FAILED],
            ("False", "LoadFailed", "sql is not loaded in pod-1: no folder. The others are served"),
        ),
        ([LOADED, LOADED], ("True", "Loaded", "2 of 2 ready engines have the adapters")),
    ],
)
def test_the_condition(engines: list[EngineAdapters], told: tuple[str, str, str]) -> None:
    found = condition(status_of(*engines), "AdaptersLoaded")
    assert (found["status"], found["reason"]) == told[:2]
    assert told[2] in found["message"]


def test_where_each_adapter_is() -> None:
    assert status_of(LOADED, BEHIND, FAILED)["adapters"] == [
        {"name": "law", "loaded": 1, "failed": 0},
        {"name": "old", "loaded": 0, "failed": 1, "message": "is not in the file any more"},
        {"name": "sql", "loaded": 1, "failed": 1, "message": "no folder"},
    ]


def test_a_pool_without_adapters_says_nothing_of_them() -> None:
    found = status_of(spec={})
    assert "adapters" not in found
    assert "AdaptersLoaded" not in [each["type"] for each in found["conditions"]]
