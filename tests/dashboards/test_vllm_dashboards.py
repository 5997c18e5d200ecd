"""vLLM's own Grafana dashboards, from its source distribution, over an engine that has its metric
names: each panel has data."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from e2e.cluster.toolchain.cache import cache_directory
from tests.dashboards.prometheus import Target, scraping
from tests.disaggregated.asking import ask_all, text
from tests.disaggregated.engines import MODEL, EngineProcess

pytestmark = [pytest.mark.process, pytest.mark.full, pytest.mark.xdist_group("dashboards")]
VERSION: Final = "0.33.0"
SHA256: Final = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
DOWNLOAD_SECONDS: Final = 300.0
CHOSEN: Final = {
    "$__rate_interval": "30s",
    "$__interval": "30s",
    "$__range": "30s",
    "$Deployment_id": ".*",
    "$model_name": MODEL,
}
WITHOUT_DATA: Final = {"vllm:iteration_tokens_total_count"}
"""An engine's API process does not know of a step how many tokens it computed."""


def dashboards(folder: Path) -> list[dict[str, Any]]:
    """Those of the release, downloaded once."""
    archive = folder / f"vllm-{VERSION}.tar.gz"
    if not archive.exists():
        content = _download()
        assert hashlib.sha256(content).hexdigest() == SHA256
        archive.write_bytes(content)
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as files:
        names = [n for n in files.getnames() if "/observability/" in n and n.endswith(".json")]
        opened = [files.extractfile(name) for name in names]
        return [json.load(file) for file in opened if file is not None]


def _download() -> bytes:
    index = os.environ.get("UV_DEFAULT_INDEX", "https://pypi.org/simple").rstrip("/")
    page = httpx.get(f"{index}/vllm/", follow_redirects=True, timeout=DOWNLOAD_SECONDS)
    found = re.search(rf'href="([^"#]+vllm-{re.escape(VERSION)}\.tar\.gz)', page.text)
    assert found is not None, f"{index} has no source distribution of vLLM {VERSION}"
    url = page.url.join(found[1])
    return httpx.get(url, follow_redirects=True, timeout=DOWNLOAD_SECONDS).content


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
    cache = cache_directory() / "peers"
    cache.mkdir(parents=True, exist_ok=True)
    found = dashboards(cache)
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
