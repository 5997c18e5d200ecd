"""What a person chooses on the dashboards of one service."""

from __future__ import annotations

from typing import Final

from dashboards.model import Variable
from dashboards.promql import SERVICE

ROUTERS: Final = "sluice_router_info"
ENGINES: Final = "sluice_engine_info"
NAMESPACE: Final = Variable("namespace", "Namespace", "namespace", ROUTERS)
OF_ONE_SERVICE: Final = (
    NAMESPACE,
    Variable("service", "Service", SERVICE, f'{ROUTERS}{{namespace="$namespace"}}'),
)
OF_ENGINES: Final = (
    *OF_ONE_SERVICE,
    Variable(
        "pod",
        "Engine",
        "pod",
        f'{ENGINES}{{namespace="$namespace", {SERVICE}="$service"}}',
        several=True,
    ),
)
