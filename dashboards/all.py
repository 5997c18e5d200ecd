"""Every dashboard, and every alert that is not of one service alone."""

from __future__ import annotations

from typing import Final

from dashboards import service
from dashboards.model import Dashboard

DASHBOARDS: Final[tuple[Dashboard, ...]] = (service.PAGE,)
