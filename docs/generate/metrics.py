"""The page of metrics: every family of every process, from the contract's table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sluice_contract.cluster import ports
from sluice_contract.cluster.metrics import (
    ENGINE,
    ENGINE_PROCESS,
    OPERATOR,
    PROCESS,
    ROUTER,
    Metric,
)

from docs.generate.markdown import GENERATED, table

HEAD: Final = f"""\
# Metrics

What `GET /metrics` says, in Prometheus' text format and in base units: of an engine at port
{ports.ENGINE_METRICS}, of a router at {ports.ROUTER_METRICS}, of the operator at
{ports.OPERATOR_METRICS}. Buckets are told by their number and the largest.

Targets that are [scraped as pods](../how-to/monitor.md#scrape-them) have the labels `namespace`,
`pod`, `serving_sluice_dev_service`, `serving_sluice_dev_role` (the pool) and
`serving_sluice_dev_revision`. The model is a label of `sluice_engine_info`; join others with it:

```promql
sum by (model) (
  rate(sluice_generated_tokens_total[5m])
  * on (namespace, pod) group_left (model) sluice_engine_info
)
```

What to conclude from them stands with the subjects: [scheduling](scheduling.md),
[structured output](structured-output.md), [the operator](operator.md#metrics). A router
chooses by the load reports of [engines](api.md#routes), not by metrics.
"""


PARTS: Final = (
    ("Engine", ENGINE),
    ("Router", ROUTER),
    ("Operator", OPERATOR),
    ("Processes: router, operator, and the API process of an engine", PROCESS),
    ("The process of an engine that computes", ENGINE_PROCESS),
)


def metrics_page() -> str:
    """docs/reference/metrics.md."""
    lines = [GENERATED, HEAD]
    for title, metrics in PARTS:
        lines += [f"## {title}", "", *_table(metrics), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(metrics: Sequence[Metric]) -> Iterator[str]:
    rows = ((_name(metric), metric.kind, _buckets(metric), metric.help) for metric in metrics)
    return table(("metric", "type", "buckets", "meaning"), rows)


def _name(metric: Metric) -> str:
    return f"`{metric.name}`" + (f" by `{'`, `'.join(metric.labels)}`" if metric.labels else "")


def _buckets(metric: Metric) -> str:
    return f"{len(metric.buckets)}, to {metric.buckets[-1]:g}" if metric.buckets else ""
