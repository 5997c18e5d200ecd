"""The dashboard of the operator: what it reconciles and writes, and how it fails."""

from __future__ import annotations

from typing import Final

from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.promql import largest, quantile, rate, series, total

UID: Final = "sluice-operator"
CONDITION: Final = "sluice_operator_condition"


WORK: Final = Row(
    "Reconciling",
    (
        Panel(
            "Reconciles",
            "ops",
            (
                Query(
                    rate("sluice_operator_reconcile_total", by=("kind", "outcome")),
                    "{{kind}} {{outcome}}",
                ),
            ),
            "At rest there are few: a resync every few minutes.",
        ),
        Panel(
            "Errors",
            "ops",
            (
                Query(
                    rate("sluice_operator_reconcile_errors_total", by=("kind", "error")),
                    "{{kind}} {{error}}",
                ),
            ),
            "Each is tried again, later and later; the operator's log says what it was.",
        ),
        Panel(
            "Duration",
            "s",
            (
                Query(
                    quantile(0.5, "sluice_operator_reconcile_duration_seconds", by=("kind",)),
                    "{{kind}}, p50",
                ),
                Query(
                    quantile(0.99, "sluice_operator_reconcile_duration_seconds", by=("kind",)),
                    "{{kind}}, p99",
                ),
            ),
            "From observing to the last write.",
        ),
        Panel(
            "Queue",
            "short",
            (
                Query(
                    largest(series("sluice_operator_queue_depth"), "kind"),
                    "{{kind}}",
                ),
            ),
            "Objects that wait for a worker.",
        ),
        Panel(
            "Writes",
            "ops",
            (
                Query(
                    rate("sluice_operator_writes_total", by=("verb", "kind")), "{{verb}} {{kind}}"
                ),
            ),
            "To the API server. At rest only leases are written.",
            stacked=True,
        ),
        Panel(
            "Leaders",
            "short",
            (Query(total("sluice_operator_leader"), "replicas that lead"),),
            "1, but for the seconds of a change. With 0 nobody reconciles; services go on serving.",
        ),
        Panel(
            "Processors",
            "short",
            (
                Query(
                    "sum by (pod) (rate(process_cpu_seconds_total[$__rate_interval]) "
                    "* on (instance) group_left () sluice_operator_info)",
                    "{{pod}}",
                ),
            ),
            "Cores that are busy.",
        ),
        Panel(
            "Memory",
            "bytes",
            (
                Query(
                    "max by (pod) (process_resident_memory_bytes "
                    "* on (instance) group_left () sluice_operator_info)",
                    "{{pod}}",
                ),
            ),
            "That each replica holds.",
        ),
        Panel(
            "What they are",
            "short",
            (Query(largest("sluice_operator_info", "pod", "version"), ""),),
            "One row a replica.",
            kind="table",
        ),
    ),
)
SERVICES: Final = Row(
    "Services",
    (
        Panel(
            "Conditions",
            "short",
            (
                Query(
                    f"count by (type, status) ({CONDITION})",
                    "{{type}} {{status}}",
                ),
            ),
            "How many services have each condition.",
        ),
        Panel(
            "Why services are not ready",
            "short",
            (
                Query(
                    f'count by (namespace, name, reason) ({CONDITION}{{type="Ready", '
                    'status!="True"})',
                    "",
                ),
            ),
            "One row a service; `kubectl describe infsvc` says more.",
            kind="table",
        ),
        Panel(
            "Engines",
            "short",
            (Query(total("sluice_operator_pool_replicas", "role", "state"), "{{role}} {{state}}"),),
            "Of all services: asked for, ready, draining.",
        ),
        Panel(
            "Decisions of the autoscaler",
            "ops",
            (
                Query(
                    rate("sluice_autoscaler_decisions_total", by=("role", "reason")),
                    "{{role}} {{reason}}",
                ),
            ),
            "Of all services; those that leave a pool as it is are counted as well.",
            stacked=True,
            width=24,
        ),
    ),
)
PAGE: Final = Dashboard(
    UID,
    "Sluice / Operator",
    "What the operator does, and what it finds of the services.",
    (),
    (WORK, SERVICES),
)
