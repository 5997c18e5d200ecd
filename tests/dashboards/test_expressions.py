"""Every expression of every panel and alert has a value that is not 0 in a scene that is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from dashboards.alerts import ALERTS
from dashboards.all import DASHBOARDS
from dashboards.rules import groups
from tests.dashboards.scene import SCENES, Stage, staged

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("dashboards")]

OF_OTHERS: Final = ("sluice_operator_", "sluice_autoscaler_", "DCGM_")
"""How metrics begin that neither engines nor routers have."""
EXPRESSIONS: Final = sorted(
    {query.expr for page in DASHBOARDS for panel in page.panels() for query in panel.queries}
    | {alert.value for alert in ALERTS}
)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("stage"), groups()) as stage:
        for scene in SCENES:
            stage.play(scene)
        yield stage


@pytest.mark.timeout(400)
def test_every_expression_of_a_service_is_seen_in_a_scene(stage: Stage) -> None:
    mine = [expr for expr in EXPRESSIONS if not any(other in expr for other in OF_OTHERS)]
    seen = {expr: stage.scenes_of(expr) for expr in mine}
    for expr, scenes in seen.items():
        print(f"{', '.join(scenes) or 'NOWHERE'}: {expr}")
    assert [expr for expr, scenes in seen.items() if not scenes] == []
