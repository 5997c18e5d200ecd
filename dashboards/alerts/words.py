"""How alerts select, sum and name: by service, by pool, by what the operator calls them."""

from __future__ import annotations

from functools import partial
from typing import Final

from sluice_operator.manifests.alerting import Alert

from dashboards.promql import ROLE, SERVICE, rate, series

RECENT: Final = "5m"
WHERE: Final = ("namespace", SERVICE)
POOL: Final = (*WHERE, ROLE)
NAMED: Final = ("namespace", "name")
AT: Final = "{{ $labels.namespace }}/{{ $labels." + SERVICE + " }}"
AT_POOL: Final = AT + ", pool {{ $labels." + ROLE + " }}"
AT_NAME: Final = "{{ $labels.namespace }}/{{ $labels.name }}"
VALUE: Final = "{{ $value | humanize }}"
SHARE: Final = "{{ $value | humanizePercentage }}"
CONDITION: Final = "sluice_operator_condition"

of_targets: Final = partial(
    Alert,
    chosen="var-namespace={{ $labels.namespace }}&var-service={{ $labels." + SERVICE + " }}",
)
"""An alert whose series come from the pods of a service."""
of_names: Final = partial(
    Alert, chosen="var-namespace={{ $labels.namespace }}&var-service={{ $labels.name }}"
)
"""An alert whose series come from the operator, about a service."""
of_operator: Final = partial(Alert, chosen="from=now-3h&to=now")


def grown(metric: str, *where: str, by: tuple[str, ...] = WHERE) -> str:
    """How much a counter grew in a second, of the last minutes."""
    return rate(metric, *where, by=by, window=RECENT)


def mean(metric: str, *where: str, by: tuple[str, ...] = POOL) -> str:
    """Of the engines of each pool."""
    return f"avg by ({', '.join(by)}) ({series(metric, *where)})"


def is_so(kind: str, *where: str) -> str:
    """1 for each service of which a condition is so. Without its reason: another one would let
    the alert wait anew."""
    return f"max by ({', '.join(NAMED)}) ({series(CONDITION, *_type(kind), *where)})"


def _type(kind: str) -> tuple[str, ...]:
    return (f'type="{kind}"',) if kind else ()
