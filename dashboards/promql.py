"""The expressions that most panels are made of. Knows the labels of targets, and no metric.

`$namespace`, `$service` and `$pod` are what a person has chosen; `$__rate_interval` is Grafana's:
at least four scrapes.
"""

from __future__ import annotations

import re
from typing import Final

from sluice_contract.cluster import labels

WINDOW: Final = "$__rate_interval"


def target_label(key: str) -> str:
    """As Prometheus writes a Kubernetes label of a target."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)


SERVICE: Final = target_label(labels.SERVICE)
ROLE: Final = target_label(labels.ROLE)
REVISION: Final = target_label(labels.REVISION)
OF_SERVICE: Final = f'namespace="$namespace", {SERVICE}="$service"'
"""Series of the targets of a service."""
OF_PODS: Final = f'{OF_SERVICE}, pod=~"$pod"'
OF_NAME: Final = 'namespace="$namespace", name="$service"'
"""Series in which the operator tells of a service."""


def series(metric: str, *where: str) -> str:
    """`metric{...}`."""
    return f"{metric}{{{', '.join(where)}}}" if where else metric


def total(inner: str, *by: str) -> str:
    """The sum, for each combination of the labels."""
    return _aggregate("sum", inner, by)


def largest(inner: str, *by: str) -> str:
    """The maximum, for each combination of the labels."""
    return _aggregate("max", inner, by)


def rate(metric: str, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """How much a counter grows in a second."""
    return total(f"rate({series(metric, *where)}[{window}])", *by)


def quantile(
    share: float, histogram: str, *where: str, by: tuple[str, ...] = (), window: str = WINDOW
) -> str:
    """Below what a share of the observations is."""
    buckets = rate(f"{histogram}_bucket", *where, by=(*by, "le"), window=window)
    return f"histogram_quantile({share:g}, {buckets})"


def mean(histogram: str, *where: str, by: tuple[str, ...] = (), window: str = WINDOW) -> str:
    """Of the observations; no series where there are none."""
    pieces = [
        rate(f"{histogram}_{part}", *where, by=by, window=window) for part in ("sum", "count")
    ]
    return " / ".join(pieces)


def _aggregate(function: str, inner: str, by: tuple[str, ...]) -> str:
    return f"{function} by ({', '.join(by)}) ({inner})" if by else f"{function}({inner})"
