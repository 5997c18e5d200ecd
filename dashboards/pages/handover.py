"""The dashboard of the hand-over of KV pages from prefill to decode engines."""

from __future__ import annotations

from typing import Final

from dashboards.choices import OF_ONE_SERVICE
from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.promql import OF_SERVICE, ROLE, largest, quantile, rate, series, total

UID: Final = "sluice-handover"
POD: Final = "{{pod}}"
BYTES: Final = "sluice_handover_read_bytes_total"
SECONDS: Final = "sluice_handover_read_seconds_total"
READS: Final = "sluice_handover_reads_total"
OF_PREFILL: Final = f'{OF_SERVICE}, {ROLE}="prefill"'
OF_DECODE: Final = f'{OF_SERVICE}, {ROLE}="decode"'

PAGES: Final = Row(
    "Reading pages",
    (
        Panel(
            "Time of a read",
            "s",
            (
                Query(
                    f"{rate(SECONDS, OF_DECODE, by=('pod',))} / "
                    f"{rate(READS, OF_DECODE, by=('pod',))}",
                    f"{POD}, mean",
                ),
            ),
            "A prompt is read chunk by chunk while it is computed; the last read is what a client "
            "waits for.",
            limit=0.05,
        ),
        Panel(
            "Bytes read",
            "Bps",
            (Query(rate(BYTES, OF_DECODE, by=("pod",)), POD),),
            "By each decode engine.",
        ),
        Panel(
            "Bandwidth of a read",
            "Bps",
            (
                Query(
                    f"{rate(BYTES, OF_DECODE, by=('pod',))} / "
                    f"{rate(SECONDS, OF_DECODE, by=('pod',))}",
                    POD,
                ),
            ),
            "While something was being read.",
        ),
        Panel(
            "Reads",
            "ops",
            (Query(rate(READS, OF_DECODE, by=("pod",)), POD),),
            "That ended well.",
        ),
        Panel(
            "Hand-overs that failed",
            "ops",
            (
                Query(
                    rate("sluice_handover_failures_total", OF_SERVICE, by=("reason",)),
                    "{{reason}}",
                ),
            ),
            "The router asks for another pair, unless the client has left.",
        ),
        Panel(
            "Prompts computed again",
            "ops",
            (Query(rate("sluice_handover_recomputed_total", OF_DECODE, by=("pod",)), POD),),
            "By decode engines, of requests that were retracted.",
        ),
    ),
)
QUEUES: Final = Row(
    "Queues",
    (
        Panel(
            "Hand-overs under way",
            "short",
            (Query(total(series("sluice_handover_requests", OF_SERVICE), "queue"), "{{queue}}"),),
            "bootstrap: asked for, not computed; inflight: computed, not read; prealloc: without "
            "pages; transfer: with pages, without the prompt.",
        ),
        Panel(
            "Queue of prefill",
            "short",
            (Query(largest(series("sluice_queued_requests", OF_PREFILL), "pod"), POD),),
            "Prompts that wait to be computed.",
            limit=100,
        ),
        Panel(
            "Queue of decode",
            "short",
            (Query(largest(series("sluice_queued_requests", OF_DECODE), "pod"), POD),),
            "Requests that wait for pages.",
            limit=500,
        ),
        Panel(
            "Time to first token",
            "s",
            (
                Query(
                    quantile(0.95, "sluice_time_to_first_token_seconds", OF_DECODE), "whole, p95"
                ),
                Query(
                    largest(series("sluice_queued_work_seconds", OF_PREFILL)),
                    "work that waits for prefill",
                ),
            ),
            "Beside it the predicted time of the prompts that wait in the fullest prefill engine.",
        ),
        Panel(
            "Prompts computed",
            "ops",
            (Query(rate("sluice_uncached_prompt_tokens_total", OF_PREFILL, by=("pod",)), POD),),
            "Tokens in a second, of each prefill engine.",
        ),
        Panel(
            "Tokens generated",
            "ops",
            (Query(rate("sluice_generated_tokens_total", OF_DECODE, by=("pod",)), POD),),
            "In a second, of each decode engine.",
        ),
    ),
)
PAGE: Final = Dashboard(
    UID,
    "Sluice / Hand-over",
    "KV pages on their way from prefill to decode engines, where a service has two pools.",
    OF_ONE_SERVICE,
    (PAGES, QUEUES),
)
