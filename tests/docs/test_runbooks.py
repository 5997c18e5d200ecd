"""Every alert has a runbook, every runbook an alert; a runbook is read in five minutes and names
what there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from sluice_contract.cluster import labels
from sluice_operator.api.scaling import Slo
from sluice_operator.manifests.monitoring import slo_groups

from dashboards.alerts import ALERTS
from dashboards.pages import DASHBOARDS
from tests.docs.spec_fields import fields_of_specs

FOLDER: Final = Path(__file__).parents[2] / "docs" / "runbooks"
INDEX: Final = FOLDER / "README.md"
PAGES: Final = {page.stem: page for page in FOLDER.glob("*.md") if page != INDEX}
SLO: Final = Slo.model_validate({"ttftMilliseconds": 800, "itlMilliseconds": 50})
SEVERITIES: Final[dict[str, set[str]]] = {alert.name: {alert.severity} for alert in ALERTS}
for rule in slo_groups("a", "chat", SLO)[0]["rules"]:
    if "alert" in rule:
        SEVERITIES.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
TITLES: Final = {panel.title for page in DASHBOARDS for panel in page.panels()}
HEADINGS: Final = ["What it means", "Look at", "Do"]
MAX_WORDS: Final = 300


def test_every_alert_has_one_and_every_one_an_alert() -> None:
    assert PAGES.keys() == SEVERITIES.keys()
    listed = re.findall(r"\]\((\w+)\.md\)", INDEX.read_text())
    assert sorted(listed) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_it_is_short_and_says_what_to_look_at_and_what_to_do(name: str) -> None:
    text = PAGES[name].read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert len(text.split()) < MAX_WORDS
    severity = text.split("\n")[2].partition(".")[0].lower()
    assert set(severity.split(" or ")) == SEVERITIES[name]


@pytest.mark.parametrize("name", PAGES)
def test_who_is_sent_to_ready_is_sent_to_updated_too(name: str) -> None:
    """Ready's message may be "See Updated."."""
    alert = " ".join(alert.description for alert in ALERTS if alert.name == name)
    for text in (PAGES[name].read_text(), alert):
        assert "condition Ready" not in text or "Updated" in text


@pytest.mark.parametrize("name", PAGES)
def test_what_it_names_is_there(name: str) -> None:
    text = PAGES[name].read_text()
    assert set(re.findall(r"(?<![*\w])\*([A-Z][^*\n]+)\*(?!\*)", text)) <= TITLES
    keys = set(re.findall(r"serving\.sluice\.dev/\w+", text))
    assert keys <= {labels.SERVICE, labels.ROLE, labels.REVISION, f"{labels.GROUP}/monitoring"}
    fields = re.findall(r"`(?:spec\.)?((?:engine|router|template|rollout|slo)\.[a-zA-Z.]+)`", text)
    known = {re.sub(r"(resources)\..*", r"\1", each) for each in fields}
    assert known <= fields_of_specs()
