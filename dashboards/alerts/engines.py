"""What goes wrong in engines before clients feel it: queues, pages, hand-overs."""

from __future__ import annotations

from typing import Final

from dashboards.alerts.words import AT, AT_POOL, POOL, SHARE, VALUE, grown, mean, of_targets
from dashboards.pages import engine, handover, service
from dashboards.promql import ROLE, series, total

COMPUTES_PROMPTS: Final = f'{ROLE}=~"prefill|mixed"'
DECODES: Final = f'{ROLE}="decode"'
OF_ENGINES: Final = f'{ROLE}=~"prefill|decode|mixed|router"'

ENGINES: Final = (
    of_targets(
        name="SluicePrefillQueueLong",
        value=mean("sluice_queued_requests", COMPUTES_PROMPTS),
        condition="> 100",
        lasting="5m",
        severity="warning",
        summary=f"{AT_POOL}: {VALUE} requests wait in each engine",
        description="Prompts come faster than they are computed, so first tokens come later.",
        panel=(handover.UID, "Queue of prefill"),
    ),
    of_targets(
        name="SluiceDecodeQueueLong",
        value=mean("sluice_queued_requests", DECODES),
        condition="> 500",
        lasting="5m",
        severity="warning",
        summary=f"{AT_POOL}: {VALUE} requests wait in each engine",
        description="Answers need more KV pages, or more places, than the decode engines have.",
        panel=(handover.UID, "Queue of decode"),
    ),
    of_targets(
        name="SluiceHandoverSlow",
        value=f"{grown(handover.SECONDS)} / {grown(handover.READS)}",
        condition="> 0.05",
        lasting="10m",
        severity="warning",
        summary=f"{AT}: a read of KV pages takes {{{{ $value | humanizeDuration }}}}",
        description="More than 50 ms, which clients wait for before their second token.",
        panel=(handover.UID, "Time of a read"),
    ),
    of_targets(
        name="SluiceHandoversFail",
        value=f"{grown('sluice_handover_failures_total')} / {grown(handover.READS)}",
        condition="> 0.01",
        lasting="10m",
        severity="warning",
        summary=f"{AT}: hand-overs of KV pages fail",
        description=f"{SHARE} as many failed as reads ended well; the router asks other engines.",
        panel=(handover.UID, "Hand-overs that failed"),
    ),
    of_targets(
        name="SluiceKvPoolFull",
        value=mean("sluice_token_usage_ratio"),
        condition="> 0.9",
        lasting="10m",
        severity="warning",
        summary=f"{AT_POOL}: {SHARE} of the KV pool is in use",
        description="Requests wait for pages, or are retracted and computed again.",
        panel=(service.UID, "KV pool in use"),
    ),
    of_targets(
        name="SluiceRunningNearLimit",
        value=f"{total(series('sluice_running_requests'), *POOL)} / "
        f"{total(series('sluice_max_running_requests'), *POOL)}",
        condition="> 0.8",
        lasting="10m",
        severity="warning",
        summary=f"{AT_POOL}: {SHARE} of maxRunningRequests run",
        description="Soon requests wait for a place although there are pages for them.",
        panel=(service.UID, "Running requests"),
    ),
    of_targets(
        name="SluiceRetractions",
        value=f"{grown('sluice_retractions_total', by=POOL)} / "
        f"{grown('sluice_requests_total', by=POOL)}",
        condition="> 0.1",
        lasting="10m",
        severity="warning",
        summary=f"{AT_POOL}: running requests are sent back to the queue",
        description=f"{SHARE} as many retractions as requests that end: work is done twice.",
        panel=(engine.UID, "Retractions"),
    ),
    of_targets(
        name="SluiceTargetDown",
        value=f"count by ({', '.join(POOL)}) ({series('up', OF_ENGINES)} == 0)",
        condition="> 0",
        lasting="10m",
        severity="warning",
        summary=f"{AT_POOL}: {VALUE} pods show no metrics",
        description="They do not answer, or Prometheus' namespace may not reach them.",
        panel=(service.UID, "Engines"),
    ),
)
