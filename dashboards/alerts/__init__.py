"""The alerts of all services and of the operator; those of a service's own promise are made by the
operator, from its slo.

Each has a runbook of its name in docs/runbooks.
"""

from __future__ import annotations

from typing import Final

from dashboards.alerts.clients import CLIENTS
from dashboards.alerts.engines import ENGINES
from dashboards.alerts.operator import OPERATOR, SERVICES

ALERTS: Final = (*CLIENTS, *ENGINES, *SERVICES, *OPERATOR)
