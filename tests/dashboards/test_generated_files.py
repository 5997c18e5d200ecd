"""The files in dashboards/generated are current, and Grafana finds its way in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest
from sluice_contract.cluster import metrics
from sluice_operator.manifests.alerting import Alert

from dashboards.__main__ import generated_files
from dashboards.alerts import ALERTS
from dashboards.model import COLUMNS, Dashboard
from dashboards.pages import DASHBOARDS
from dashboards.promql import REVISION, ROLE, SERVICE
from dashboards.recording import RECORDED

FOLDER: Final = Path(__file__).parents[2] / "dashboards" / "generated"
FILES: Final = generated_files()
KNOWN: Final = {
    metric.name + suffix
    for metric in (
        *metrics.ENGINE,
        *metrics.ROUTER,
        *metrics.OPERATOR,
        *metrics.PROCESS,
        *metrics.ENGINE_PROCESS,
    )
    for suffix in (("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",))
}


def test_they_are_current_and_no_other_is_there() -> None:
    found = {path.name: path.read_text() for path in FOLDER.iterdir()}
    assert found.keys() == FILES.keys()
    stale = [name for name, text in FILES.items() if found[name] != text]
    assert stale == [], "run `make dashboards`"


def metrics_in(expr: str) -> set[str]:
    """Ours, and recorded ones."""
    found = re.findall(r"(?<![\w:])[\w:]*\b(?:sluice|process)_(?!dev_)[\w:]+", expr)
    return set(found) - {SERVICE, ROLE, REVISION}


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.uid)
def test_a_page_can_be_shown(page: Dashboard) -> None:
    content = json.loads(FILES[f"{page.uid}.json"])
    assert content["uid"] == page.uid
    numbers = [panel["id"] for panel in content["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert all(sum(panel.width for panel in row.panels) % COLUMNS == 0 for row in page.rows)
    for panel in page.panels():
        assert panel.meaning.endswith("."), panel.title
        assert panel.queries, panel.title


@pytest.mark.parametrize("page", DASHBOARDS, ids=lambda page: page.uid)
def test_its_metrics_are_those_of_the_contract(page: Dashboard) -> None:
    for panel in page.panels():
        for query in panel.queries:
            assert metrics_in(query.expr) <= KNOWN | RECORDED.keys(), panel.title


def test_recorded_series_are_made_of_metrics_of_the_contract() -> None:
    for name, expr in RECORDED.items():
        assert metrics_in(expr) <= KNOWN, name


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_points_to_a_panel_that_there_is(alert: Alert) -> None:
    uid, title = alert.panel
    assert title in {
        panel.title for page in DASHBOARDS if page.uid == uid for panel in page.panels()
    }
