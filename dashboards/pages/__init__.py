"""Every page of Grafana, one module each."""

from __future__ import annotations

from typing import Final

from dashboards.model import Dashboard
from dashboards.pages import autoscaler, engine, fleet, handover, operator, service

DASHBOARDS: Final[tuple[Dashboard, ...]] = (
    fleet.PAGE,
    service.PAGE,
    engine.PAGE,
    handover.PAGE,
    autoscaler.PAGE,
    operator.PAGE,
)
