"""Every expression about engines and routers has a value that is not 0 in a scene with a name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from dashboards.pages import engine, fleet, handover, service
from dashboards.promql import SERVICE
from dashboards.rules import groups
from tests.dashboards.expressions import OF_SERVICE
from tests.dashboards.pictures import draw_pages
from tests.dashboards.scene import SCENES, Stage, staged

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.xdist_group("dashboards")]
PAGES: Final = {fleet.UID, service.UID, engine.UID, handover.UID}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), groups()) as stage:
        for scene in SCENES:
            stage.play(scene)
        yield stage


@pytest.mark.timeout(400)
def test_alerts_tell_where_and_lead_to_a_panel(stage: Stage) -> None:
    """Of the last scene, which is still there."""
    found = stage.prometheus.alerts()
    assert {"SluiceRequestsFail", "SluiceStreamsCut", "SluiceTargetDown"} <= found.keys()
    for alert in (each for each in found.values() if SERVICE in each["labels"]):
        told = alert["annotations"]
        assert told["summary"].startswith("default/chat")
        assert told["dashboard"].startswith("/d/sluice-")
        assert "var-namespace=default&var-service=chat&" in told["dashboard"]
        assert not any("{{" in text or "<no value>" in text for text in told.values())


def test_every_expression_is_seen_in_a_scene(stage: Stage) -> None:
    seen = {expr: stage.scenes_of(expr) for expr in OF_SERVICE}
    for expr, scenes in seen.items():
        print(f"{', '.join(scenes) or 'NOWHERE'}: {expr}")
    assert [expr for expr, scenes in seen.items() if not scenes] == []
    starts, ends = zip(*stage.times.values(), strict=True)
    draw_pages(stage.prometheus, PAGES, min(starts), max(ends))
