"""vLLM's own Grafana dashboards, from its source distribution, over an engine that has its metric
names: each panel has data."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.clients.load_tools import vllm_archive
from tests.dashboards.prometheus import Target, scraping
from tests.disaggregated.asking import ask_all, text
from tests.disaggregated.engines import MODEL, EngineProcess

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.xdist_group("dashboards")]
CHOSEN: Final = {
    "$__rate_interval": "30s",
    "$__interval": "30s",
    "$__range": "30s",
    "$Deployment_id": ".*",
    "$model_name": MODEL,
}
WITHOUT_DATA: Final = {"vllm:iteration_tokens_total_count"}
"""An engine's API process does not know of a step how many tokens it computed."""


def dashboards() -> list[dict[str, Any]]:
    """Those of the release."""
    with tarfile.open(vllm_archive()) as files:
        names = [n for n in files.getnames() if "/observability/" in n and n.endswith(".json")]
        opened = [files.extractfile(name) for name in names]
        return [json.load(file) for file in opened if file is not None]


def queries(panels: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Title and expression of each."""
    for panel in panels:
        for target in panel.get("targets", ()):
            if expr := target.get("expr"):
                yield panel.get("title", ""), expr
        yield from queries(panel.get("panels", []))


@pytest.mark.timeout(500)
def test_every_panel_of_vllms_dashboards_has_data(
    tmp_path: Path,
) -> None:
    found = dashboards()
    assert len(found) >= 3
    engine = EngineProcess(
        tmp_path / "engine",
        "mixed",
        server={"metricsCompatibility": "vLLM"},
        maxRunningRequests=2,
    )
    engine.start()
    try:
        engine.wait()
        target = Target(engine.url, "e", "mixed")
        with scraping(tmp_path / "prometheus", [target], chosen=CHOSEN) as prometheus:
            began = time.time()
            for _ in range(2):
                ask_all(engine.url, [text(200, seed, max_tokens=300) for seed in range(12)])
                prometheus.until_scraped()
            silent = [
                (title, expr)
                for dashboard in found
                for title, expr in queries(dashboard["panels"])
                if not prometheus.shows(expr, began, time.time())
                and not any(name in expr for name in WITHOUT_DATA)
            ]
        assert silent == []
    finally:
        engine.stop()
