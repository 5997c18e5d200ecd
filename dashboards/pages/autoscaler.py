"""The dashboard of a service that is scaled: what was decided, why, and what it saw."""

from __future__ import annotations

from typing import Final

from dashboards.choices import OF_ONE_SERVICE
from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.pages import service
from dashboards.promql import OF_NAME, OF_SERVICE, ROLE, largest, quantile, rate, series, total

UID: Final = "sluice-autoscaler"
POOL: Final = "{{" + ROLE + "}}"
CONDITION: Final = "sluice_operator_condition"
UNSCHEDULABLE: Final = 'reason=~"Unschedulable|SchedulingGated"'

DECISIONS: Final = Row(
    "Decisions",
    (
        Panel(
            "Replicas",
            "short",
            (
                Query(
                    largest(series("sluice_autoscaler_desired_replicas", OF_NAME), "role"),
                    "{{role}} decided",
                ),
                Query(
                    largest(series("sluice_autoscaler_current_replicas", OF_NAME), "role"),
                    "{{role}} asked for",
                ),
                Query(
                    largest(
                        series("sluice_operator_pool_replicas", OF_NAME, 'state="ready"'), "role"
                    ),
                    "{{role}} ready",
                ),
            ),
            "Decided and asked for differ while a limit of the rate holds; asked for and ready "
            "while engines start.",
            width=16,
        ),
        Panel(
            "Why",
            "short",
            (
                Query(
                    largest(series(CONDITION, OF_NAME, 'type="ScalingActive"'), "status", "reason"),
                    "{{reason}} ({{status}})",
                ),
            ),
            "The reason of the condition ScalingActive; its message has the numbers.",
        ),
        Panel(
            "Engines that drain",
            "short",
            (
                Query(
                    largest(
                        series("sluice_operator_pool_replicas", OF_NAME, 'state="draining"'),
                        "role",
                    ),
                    "{{role}}",
                ),
            ),
            "They end their answers, and hold their GPUs until then.",
        ),
        Panel(
            "Engines without a place",
            "short",
            (
                Query(
                    f"count by (name) ({series(CONDITION, OF_NAME, UNSCHEDULABLE)})",
                    "conditions that say so",
                ),
                Query(
                    largest(series("sluice_autoscaler_unschedulable_replicas", OF_NAME), "role"),
                    "{{role}}",
                ),
            ),
            "Engines for which no node has room, and how many conditions say so.",
            limit=1,
        ),
        Panel(
            "Requests that wait for an engine",
            "short",
            (Query(total(series("sluice_router_waiting_requests", OF_SERVICE)), "held"),),
            "In the routers: they wake a service that is scaled to zero.",
        ),
    ),
)
SEEN: Final = Row(
    "What it saw",
    (
        Panel(
            "Seconds of work that wait",
            "s",
            (
                Query(
                    f"avg by ({ROLE}) ({series('sluice_queued_work_seconds', OF_SERVICE)})",
                    f"{POOL}, mean",
                ),
                Query(
                    largest(series("sluice_queued_work_seconds", OF_SERVICE), ROLE),
                    f"{POOL}, most",
                ),
            ),
            "Predicted time to compute the prompts that wait in an engine. Set it against "
            "autoscaling.target.queueMilliseconds.",
        ),
        Panel(
            "Queued requests, mean of the engines",
            "short",
            (Query(f"avg by ({ROLE}) ({series('sluice_queued_requests', OF_SERVICE)})", POOL),),
            "Set it against autoscaling.target.prefillQueue and decodeQueue.",
        ),
        Panel(
            "KV pool in use, mean of the engines",
            "percentunit",
            (Query(f"avg by ({ROLE}) ({series('sluice_token_usage_ratio', OF_SERVICE)})", POOL),),
            "What decode is scaled by, beside the time between tokens.",
        ),
        Panel(
            "Time to first token",
            "s",
            (Query(quantile(0.95, service.TTFT, OF_SERVICE), "p95"),),
            "What prefill is scaled for.",
        ),
        Panel(
            "Time between tokens",
            "s",
            (Query(quantile(0.95, service.ITL, OF_SERVICE), "p95"),),
            "What decode is scaled for.",
        ),
        Panel(
            "Requests",
            "reqps",
            (Query(rate(service.REQUESTS, OF_SERVICE), "answers"),),
            "In a second.",
        ),
    ),
)
PAGE: Final = Dashboard(
    UID,
    "Sluice / Autoscaler",
    "How many engines a service was given, and why.",
    OF_ONE_SERVICE,
    (DECISIONS, SEEN),
)
