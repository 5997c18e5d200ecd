"""The dashboard of all services of a cluster: which one to look at.

Draws recorded series only (`recording`), so that it stays fast with hundreds of services.
"""

from __future__ import annotations

from typing import Final

from dashboards import recording
from dashboards.model import Dashboard, Panel, Query, Row, Unit
from dashboards.promql import SERVICE

UID: Final = "sluice-fleet"
NAME: Final = "{{namespace}}/{{" + SERVICE + "}}"


def _by_service(
    title: str, unit: Unit, name: str, meaning: str, limit: float | None = None
) -> Panel:
    return Panel(title, unit, (Query(f"topk(20, {name})", NAME),), meaning, limit=limit)


def _number(title: str, expr: str, meaning: str) -> Panel:
    return Panel(title, "short", (Query(expr, ""),), meaning, kind="stat", width=6)


READY: Final = 'sluice_operator_condition{type="Ready"}'
NUMBERS: Final = Row(
    "Now",
    (
        _number("Services", f"count({READY})", "InferenceServices that the operator knows."),
        _number(
            "Services that serve",
            'count(sluice_operator_condition{type="Ready", status="True"})',
            "Ready is True: each pool that they need has an engine that answers.",
        ),
        _number(
            "Engines asked for",
            'sum(sluice_operator_pool_replicas{state="desired"})',
            "Over all pools.",
        ),
        _number(
            "Engines ready",
            'sum(sluice_operator_pool_replicas{state="ready"})',
            "Of the revision that is wanted.",
        ),
    ),
)
LOAD: Final = Row(
    "By service: the twenty that have most",
    (
        _by_service("Requests", "reqps", recording.REQUESTS, "Answers in a second."),
        _by_service(
            "Requests that fail",
            "percentunit",
            recording.FAILED_RATIO,
            "Share of the answers that are 5xx or 429, or broke off.",
            limit=0.01,
        ),
        _by_service(
            "Time to first token, p95", "s", recording.TTFT_P95, "From arrival at an engine."
        ),
        _by_service("Time between tokens, p95", "s", recording.ITL_P95, "Of answers that run."),
        _by_service("Tokens generated", "ops", recording.GENERATED, "In a second."),
        _by_service(
            "KV pool in use",
            "percentunit",
            recording.KV_USED,
            "Of the fullest pool of the service, mean over its engines.",
            limit=0.9,
        ),
        _by_service("Queued requests", "short", recording.QUEUED, "In all of its engines."),
        _by_service(
            "Running requests",
            "percentunit",
            recording.RUNNING,
            "Share of maxRunningRequests, of the fullest pool.",
            limit=0.8,
        ),
        Panel(
            "Tokens generated, whole fleet",
            "ops",
            (Query(f"sum({recording.GENERATED})", "tokens"),),
            "In a second.",
        ),
    ),
)
PAGE: Final = Dashboard(
    UID,
    "Sluice / Fleet",
    "All services: which of them to look at. Needs the recording rules that come with it.",
    (),
    (NUMBERS, LOAD),
)
