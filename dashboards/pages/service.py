"""The dashboard of one service: what its clients get, what the router does, how its pools are."""

from __future__ import annotations

from typing import Final

from dashboards.choices import OF_ONE_SERVICE
from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.promql import (
    OF_NAME,
    OF_SERVICE,
    REVISION,
    ROLE,
    largest,
    quantile,
    rate,
    series,
    total,
)

UID: Final = "sluice-service"
TRIALS: Final = "sluice_router_canary_trials_total"
REQUESTS: Final = "sluice_router_requests_total"
LEDGER: Final = "sluice_router_ledger_total"
LOST: Final = 'fate="lost"'
FAILED: Final = 'code=~"5..|429"'
CUT: Final = 'outcome="cut"'
POOL: Final = "{{" + ROLE + "}}"
TTFT: Final = "sluice_time_to_first_token_seconds"
ITL: Final = "sluice_inter_token_seconds"
SHARES: Final = (0.5, 0.95, 0.99)


def _quantiles(histogram: str) -> tuple[Query, ...]:
    return tuple(
        Query(quantile(share, histogram, OF_SERVICE), f"p{share * 100:g}") for share in SHARES
    )


def _trials(outcomes: str) -> str:
    """Trials of a canary a second, by side."""
    return rate(TRIALS, OF_SERVICE, f'outcome=~"{outcomes}"', by=("side",))


CLIENTS: Final = Row(
    "What clients get",
    (
        Panel(
            "Requests",
            "reqps",
            (Query(rate(REQUESTS, OF_SERVICE, by=("code", "outcome")), "{{code}} {{outcome}}"),),
            "Answers by status. complete: whole; cut: it broke off after it had begun; "
            "client_gone: the client left.",
            width=12,
        ),
        Panel(
            "What became of requests",
            "reqps",
            (Query(rate(LEDGER, OF_SERVICE, by=("fate",)), "{{fate}}"),),
            "Each request for a completion, counted once when it ended. resumed: a second engine "
            "went on with the answer. lost: accepted, and not answered to the end.",
            stacked=True,
            width=12,
        ),
        Panel(
            "Requests that fail",
            "percentunit",
            (
                Query(
                    f"{rate(REQUESTS, OF_SERVICE, FAILED)} / {rate(REQUESTS, OF_SERVICE)}",
                    "refused or failed",
                ),
                Query(
                    f"{rate(REQUESTS, OF_SERVICE, CUT)} / {rate(REQUESTS, OF_SERVICE)}",
                    "cut",
                ),
            ),
            "Share of the answers that are 5xx or 429, and of those that broke off. Nothing is "
            "drawn while none is.",
            limit=0.01,
        ),
        Panel(
            "Time to first token",
            "s",
            _quantiles(TTFT),
            "From the request's arrival at an engine, its queue included. Set it against "
            "spec.slo.ttftMilliseconds.",
        ),
        Panel(
            "Time between tokens",
            "s",
            _quantiles(ITL),
            "Between the steps that give an answer tokens; kept drafts do not shorten it. Set it "
            "against spec.slo.itlMilliseconds.",
        ),
        Panel(
            "Tokens",
            "ops",
            (
                Query(rate("sluice_prompt_tokens_total", OF_SERVICE), "prompts"),
                Query(rate("sluice_cached_prompt_tokens_total", OF_SERVICE), "of these cached"),
                Query(rate("sluice_generated_tokens_total", OF_SERVICE), "answers"),
            ),
            "Tokens in a second. Cached: found in the prefix cache, so not computed again.",
            width=12,
        ),
        Panel(
            "Duration of requests",
            "s",
            (
                Query(quantile(0.95, "sluice_router_request_seconds", OF_SERVICE), "whole, p95"),
                Query(
                    quantile(0.95, "sluice_router_first_byte_seconds", OF_SERVICE),
                    "to first byte, p95",
                ),
            ),
            "As the router sees them, retries included.",
            width=12,
        ),
    ),
)
ROUTER: Final = Row(
    "What the router does",
    (
        Panel(
            "Requests held",
            "short",
            (
                Query(total(series("sluice_router_inflight_requests", OF_SERVICE)), "in flight"),
                Query(
                    total(series("sluice_router_waiting_requests", OF_SERVICE)),
                    "waiting for an engine",
                ),
            ),
            "Waiting: no engine is usable, as while the service is scaled to zero.",
        ),
        Panel(
            "Bodies held",
            "bytes",
            (Query(largest(series("sluice_router_buffered_bytes", OF_SERVICE), "pod"), "{{pod}}"),),
            "Of requests whose answer has not begun, and of answers that could be resumed. At "
            "server.maxBufferedBytes requests are refused with 429.",
        ),
        Panel(
            "Engines",
            "short",
            (
                Query(
                    largest(series("sluice_router_engines", OF_SERVICE), "role", "state"),
                    "{{role}} {{state}}",
                ),
            ),
            "As the router that sees most sees them; only those that are ready are given requests.",
        ),
        Panel(
            "Picks",
            "ops",
            (Query(rate("sluice_router_picks_total", OF_SERVICE, by=("reason",)), "{{reason}}"),),
            "Why an engine was chosen: LessLoaded of three drawn, SamePrefix or SameSession.",
            stacked=True,
        ),
        Panel(
            "Retries",
            "ops",
            (Query(rate("sluice_router_retries_total", OF_SERVICE, by=("reason",)), "{{reason}}"),),
            "Requests offered to another engine, and why. Clients do not see them.",
        ),
        Panel(
            "Answers that broke off",
            "ops",
            (
                Query(
                    rate("sluice_router_streams_resumed_total", OF_SERVICE, by=("reason",)),
                    "resumed: {{reason}}",
                ),
                Query(
                    rate("sluice_router_resume_failures_total", OF_SERVICE), "no engine could go on"
                ),
                Query(rate("sluice_router_resumes_forgone_total", OF_SERVICE), "not held any more"),
            ),
            "Resumed: another engine went on, and the client sees one answer.",
        ),
    ),
)
CANARY: Final = Row(
    "Canary",
    (
        Panel(
            "Trials",
            "short",
            (Query(f"60 * {_trials('answered|failed')}", "{{side}}"),),
            "Chats with a request, in each minute, until one of theirs has failed.",
        ),
        Panel(
            "Failed and late trials",
            "percentunit",
            (
                Query(f"{_trials('failed')} / {_trials('answered|failed')}", "{{side}} failed"),
                Query(f"{_trials('late')} / {_trials('in_time|late')}", "{{side}} late"),
            ),
            "Share of the trials of each revision: a chat fails once, and is late once. Failed: "
            "counted before the router's retry.",
        ),
        Panel(
            "Time to first token by revision",
            "s",
            (Query(quantile(0.95, TTFT, OF_SERVICE, by=(REVISION,)), "{{" + REVISION + "}}, p95"),),
            "Compares a roll-out with what it replaces.",
        ),
    ),
)

POOLS: Final = Row(
    "How its pools are",
    (
        Panel(
            "Replicas",
            "short",
            (
                Query(
                    largest(series("sluice_operator_pool_replicas", OF_NAME), "role", "state"),
                    "{{role}} {{state}}",
                ),
            ),
            "Engines that are asked for, that are ready, and that drain.",
        ),
        Panel(
            "Running requests",
            "percentunit",
            (
                Query(
                    f"{total(series('sluice_running_requests', OF_SERVICE), ROLE)} / "
                    f"{total(series('sluice_max_running_requests', OF_SERVICE), ROLE)}",
                    POOL,
                ),
            ),
            "Share of maxRunningRequests, by pool. At 1 requests wait for a place.",
            limit=0.8,
        ),
        Panel(
            "Queued requests",
            "short",
            (
                Query(
                    largest(series("sluice_queued_requests", OF_SERVICE), ROLE, "pod"),
                    f"{POOL} {{{{pod}}}}",
                ),
            ),
            "Of each engine. An engine whose queue is full refuses, and the router asks another.",
            limit=100,
        ),
        Panel(
            "KV pool in use",
            "percentunit",
            (
                Query(
                    largest(series("sluice_token_usage_ratio", OF_SERVICE), ROLE),
                    f"{POOL}, fullest",
                ),
                Query(
                    f"avg by ({ROLE}) ({series('sluice_token_usage_ratio', OF_SERVICE)})",
                    f"{POOL}, mean",
                ),
            ),
            "Share of the pages that requests hold. Near 1 requests are retracted, and computed "
            "again.",
            limit=0.9,
        ),
        Panel(
            "Time in queue",
            "s",
            (
                Query(
                    quantile(0.95, "sluice_queue_time_seconds", OF_SERVICE, by=(ROLE,)),
                    f"{POOL}, p95",
                ),
            ),
            "From arrival to the first step that a request is in.",
        ),
        Panel(
            "Retractions",
            "ops",
            (Query(rate("sluice_retractions_total", OF_SERVICE, by=(ROLE,)), POOL),),
            "Running requests that went back to the queue because pages were short.",
        ),
        Panel(
            "Conditions",
            "short",
            (
                Query(
                    largest(
                        series("sluice_operator_condition", OF_NAME), "type", "status", "reason"
                    ),
                    "",
                ),
            ),
            "As `kubectl describe infsvc` shows them, whose messages say more.",
            kind="table",
            width=24,
        ),
    ),
)
PAGE: Final = Dashboard(
    UID,
    "Sluice / Service",
    "One InferenceService: latency and errors of its clients, its router, its pools.",
    OF_ONE_SERVICE,
    (CLIENTS, ROUTER, CANARY, POOLS),
)
