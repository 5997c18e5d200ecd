"""Series that Prometheus records for the fleet's dashboard: one a service instead of one an engine.

Their names are LEVEL:WHAT:HOW, as Prometheus' documentation has it.
"""

from __future__ import annotations

from typing import Any, Final

from dashboards.pages import service
from dashboards.promql import ROLE, SERVICE, largest, quantile, rate, series, total

WHERE: Final = ("namespace", SERVICE)
RECENT: Final = "5m"
_LEVEL: Final = "namespace_service"
REQUESTS: Final = f"{_LEVEL}:sluice_requests:rate5m"
FAILED_RATIO: Final = f"{_LEVEL}:sluice_failed_requests:ratio_rate5m"
TTFT_P95: Final = f"{_LEVEL}:sluice_time_to_first_token_seconds:p95_5m"
ITL_P95: Final = f"{_LEVEL}:sluice_inter_token_seconds:p95_5m"
GENERATED: Final = f"{_LEVEL}:sluice_generated_tokens:rate5m"
BY_MODEL: Final = "model:sluice_generated_tokens:rate5m"
KV_USED: Final = f"{_LEVEL}:sluice_token_usage_ratio:max"
QUEUED: Final = f"{_LEVEL}:sluice_queued_requests:sum"
RUNNING: Final = f"{_LEVEL}:sluice_running_requests:ratio"


def _fullest(pools: str) -> str:
    return f"max by ({', '.join(WHERE)}) ({pools})"


def _rate(metric: str, *where: str) -> str:
    return rate(metric, *where, by=WHERE, window=RECENT)


def _p95(histogram: str) -> str:
    return quantile(0.95, histogram, by=WHERE, window=RECENT)


def _sum(metric: str, *by: str) -> str:
    return total(series(metric), *WHERE, *by)


def _failed() -> str:
    pieces = (
        f"rate({series(service.REQUESTS, where)}[{RECENT}])"
        for where in (service.FAILED, service.CUT)
    )
    return total(" or ".join(pieces), *WHERE)


RECORDED: Final[dict[str, str]] = {
    REQUESTS: _rate(service.REQUESTS),
    FAILED_RATIO: f"{_failed()} / {_rate(service.REQUESTS)}",
    TTFT_P95: _p95(service.TTFT),
    ITL_P95: _p95(service.ITL),
    GENERATED: _rate("sluice_generated_tokens_total"),
    BY_MODEL: total(
        f"rate({series('sluice_generated_tokens_total')}[{RECENT}]) "
        "* on (namespace, pod) group_left (model) "
        + largest("sluice_engine_info", "namespace", "pod", "model"),
        "model",
    ),
    KV_USED: _fullest(f"avg by ({', '.join((*WHERE, ROLE))}) (sluice_token_usage_ratio)"),
    QUEUED: _sum("sluice_queued_requests"),
    RUNNING: _fullest(
        f"{_sum('sluice_running_requests', ROLE)} / {_sum('sluice_max_running_requests', ROLE)}"
    ),
}
"""Name → expression."""


def recording_rules() -> list[dict[str, Any]]:
    """As in a rule file."""
    return [{"record": name, "expr": expr} for name, expr in RECORDED.items()]
