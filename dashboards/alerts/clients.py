"""What clients feel: errors, answers that break off, nobody there."""

from __future__ import annotations

from typing import Final

from dashboards.alerts.words import AT, RECENT, SHARE, VALUE, WHERE, grown, of_targets
from dashboards.pages import service
from dashboards.promql import largest, series, total

READY: Final = 'state="ready"'

CLIENTS: Final = (
    of_targets(
        name="SluiceRequestsFail",
        value=f"{grown(service.REQUESTS, service.FAILED)} / {grown(service.REQUESTS)}",
        condition="> 0.01",
        lasting="10m",
        severity="critical",
        summary=f"{AT}: requests are refused or fail",
        description=f"{SHARE} of the answers are 5xx or 429.",
        panel=(service.UID, "Requests that fail"),
    ),
    of_targets(
        name="SluiceStreamsCut",
        value=f"{grown(service.REQUESTS, service.CUT)} / {grown(service.REQUESTS)}",
        condition="> 0.001",
        lasting="5m",
        severity="critical",
        summary=f"{AT}: answers break off",
        description=f"{SHARE} of the answers ended with an error after they had begun, and no "
        "other engine went on with them.",
        panel=(service.UID, "Answers that broke off"),
    ),
    of_targets(
        name="SluiceRequestsLost",
        value=grown(service.LEDGER, service.LOST),
        condition="> 0",
        lasting="1m",
        severity="warning",
        summary=f"{AT}: accepted requests were not answered",
        description=f"{VALUE} of them in a second, of the last {RECENT}.",
        panel=(service.UID, "What became of requests"),
    ),
    of_targets(
        name="SluiceNoEngineReady",
        value=largest(series("sluice_router_engines", READY), *WHERE, "role"),
        condition=f"== 0 and on ({', '.join(WHERE)}) "
        f"{total('sluice_router_waiting_requests', *WHERE)} > 0",
        lasting="2m",
        severity="critical",
        summary=f"{AT}: no engine of role {{{{ $labels.role }}}} is ready, and requests wait",
        description="What waits longer than upstream.waitForEngineSeconds is answered 503.",
        panel=(service.UID, "Engines"),
    ),
)
