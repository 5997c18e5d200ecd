"""Pictures of the pages, drawn at the end of a test where `SLUICE_PICTURES` names a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dashboards.draw import draw
from dashboards.pages import DASHBOARDS
from tests.dashboards.prometheus import Prometheus

FOLDER: Final = os.environ.get("SLUICE_PICTURES", "")


def draw_pages(prometheus: Prometheus, uids: set[str], start: float, end: float) -> None:
    """Those pages, of the time between; nothing where no pictures are wanted."""
    if not FOLDER:
        return
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    for page in DASHBOARDS:
        if page.uid in uids:
            path = Path(FOLDER) / f"{page.uid}.png"
            draw(page, lambda expr: prometheus.over(expr, start, end, 0.5), path)
