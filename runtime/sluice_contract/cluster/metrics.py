"""Every metric: name, help, labels and buckets, in base units; the only place they are spelled.

Each process makes its own collectors from these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

LATENCY_SECONDS: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5,
    1, 2.5, 5, 10, 30, 60, 120, 300,
)  # fmt: skip
STEP_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
TOKENS: Final = tuple(2**n for n in range(18))


@dataclass(frozen=True)
class Metric:
    """One metric family."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


ENGINE: Final = (
    Metric(
        "sluice_engine_info",
        "gauge",
        "Always 1: what the engine is; join the others by their target (pod, instance).",
        ("model", "role", "revision", "version"),
    ),
    Metric(
        "sluice_engine_start_seconds",
        "gauge",
        "How long each phase of the engine's start took, from the container's first process on: "
        "launch, imports, device, ranks, weights, pool, warm-up, graphs.",
        ("phase",),
    ),
    Metric("sluice_requests_total", "counter", "Requests ended, by outcome.", ("outcome",)),
    Metric("sluice_prompt_tokens_total", "counter", "Prompt tokens of accepted requests."),
    Metric(
        "sluice_cached_prompt_tokens_total", "counter", "Prompt tokens found in the prefix cache."
    ),
    Metric(
        "sluice_uncached_prompt_tokens_total",
        "counter",
        "Prompt tokens to compute here, also those that a decode engine asks a prefill engine for; "
        "without those that the prefix cache had.",
    ),
    Metric("sluice_generated_tokens_total", "counter", "Tokens generated."),
    Metric(
        "sluice_queue_time_seconds",
        "histogram",
        "Arrival to the first step a request was in.",
        (),
        LATENCY_SECONDS,
    ),
    Metric(
        "sluice_time_to_first_token_seconds",
        "histogram",
        "Arrival to first token.",
        (),
        LATENCY_SECONDS,
    ),
    Metric(
        "sluice_inter_token_seconds",
        "histogram",
        "Gap between the steps that gave a request tokens; kept drafts of a step are no gaps.",
        (),
        LATENCY_SECONDS,
    ),
    Metric(
        "sluice_request_seconds",
        "histogram",
        "Arrival to end of an answer: one for each choice of a request.",
        (),
        LATENCY_SECONDS,
    ),
    Metric("sluice_prompt_length_tokens", "histogram", "Prompt length.", (), TOKENS),
    Metric("sluice_output_length_tokens", "histogram", "Output length.", (), TOKENS),
    Metric("sluice_running_requests", "gauge", "Requests in the running batch."),
    Metric("sluice_max_running_requests", "gauge", "Most requests that run at once."),
    Metric("sluice_queued_requests", "gauge", "Requests waiting for admission."),
    Metric("sluice_max_queued_requests", "gauge", "Most requests that wait; one more is a 429."),
    Metric("sluice_queued_tokens", "gauge", "Prompt tokens not computed yet."),
    Metric(
        "sluice_queued_work_seconds",
        "gauge",
        "Predicted time to compute sluice_queued_tokens; 0 when unknown.",
    ),
    Metric("sluice_grammar_requests", "gauge", "Queued requests whose grammar is being compiled."),
    Metric(
        "sluice_grammar_compilations_total",
        "counter",
        "Grammars whose compilation ended, by outcome.",
        ("outcome",),
    ),
    Metric(
        "sluice_grammar_compile_seconds_total",
        "counter",
        "Time of these compilations, by the clock.",
    ),
    Metric(
        "sluice_grammars_given_up_total",
        "counter",
        "Requests ended because their grammar was not followed to their end, by reason.",
        ("reason",),
    ),
    Metric("sluice_kv_pages", "gauge", "KV pages by state.", ("state",)),
    Metric("sluice_kv_pool_tokens", "gauge", "Size of the KV pool, in tokens."),
    Metric("sluice_context_length_tokens", "gauge", "Most tokens of a prompt and its answer."),
    Metric("sluice_token_usage_ratio", "gauge", "Share of the KV pool in use."),
    Metric("sluice_new_token_ratio", "gauge", "Share of max_tokens that admission reserves."),
    Metric(
        "sluice_new_token_beta_ratio",
        "gauge",
        "Share of max_tokens that answers are expected to use, which sluice_new_token_ratio "
        "approaches (beta); 0.5 before the first one ended.",
    ),
    Metric(
        "sluice_max_tokens_used_ratio",
        "gauge",
        "Share of max_tokens that the last 100 answers used, on average; 0 before the first.",
    ),
    Metric(
        "sluice_reserve_saved_ratio",
        "gauge",
        "Share of the memory of running requests that admission leaves to others, of what their "
        "prompts and all of max_tokens would take.",
    ),
    Metric("sluice_retractions_total", "counter", "Running requests sent back to the queue."),
    Metric("sluice_chunk_cuts_total", "counter", "Prompts cut at a chunk border."),
    Metric("sluice_evicted_pages_total", "counter", "Cached pages evicted for other requests."),
    Metric("sluice_drafted_tokens_total", "counter", "Drafts verified by speculation."),
    Metric("sluice_accepted_tokens_total", "counter", "Verified drafts that answers kept."),
    Metric(
        "sluice_host_cache_hit_tokens_total",
        "counter",
        "Prompt tokens that came back from the host cache, by tier; cached tokens count them, too.",
        ("tier",),
    ),
    Metric(
        "sluice_host_cache_copied_bytes_total",
        "counter",
        "Pages copied: saved from the device, loaded into it, spilled from memory to disk.",
        ("kind",),
    ),
    Metric("sluice_host_cache_copy_seconds_total", "counter", "Time of these copies.", ("kind",)),
    Metric(
        "sluice_host_cache_bad_pages_total",
        "counter",
        "Pages that the disk did not take, or did not give back as they were.",
    ),
    Metric("sluice_host_cache_used_bytes", "gauge", "What the host cache holds.", ("tier",)),
    Metric("sluice_steps_total", "counter", "Forward passes by mode.", ("mode",)),
    Metric(
        "sluice_step_seconds", "histogram", "Duration of a step by mode.", ("mode",), STEP_SECONDS
    ),
    Metric("sluice_scheduler_seconds", "histogram", "Scheduler CPU per step.", (), STEP_SECONDS),
    Metric(
        "sluice_predicted_step_seconds",
        "histogram",
        "What the cost model expected of a step, by mode; to be set against sluice_step_seconds. "
        "Of steps that only decode it has one every 10 ms.",
        ("mode",),
        STEP_SECONDS,
    ),
    Metric(
        "sluice_step_prediction_error_ratio",
        "gauge",
        "Mean relative error of the last predicted step times.",
    ),
    Metric(
        "sluice_chunk_budget_tokens",
        "gauge",
        "Budget of the last step that might compute prompt tokens; 0 without a limit.",
    ),
    Metric(
        "sluice_chunk_budgets_total",
        "counter",
        "Steps that computed prompt tokens, by the reason of their budget.",
        ("reason",),
    ),
    Metric(
        "sluice_handover_requests",
        "gauge",
        "Requests in the queues of the hand-over between prefill and decode engines, by queue.",
        ("queue",),
    ),
    Metric("sluice_handover_read_bytes_total", "counter", "Bytes of KV pages read from prefill."),
    Metric("sluice_handover_read_seconds_total", "counter", "Time of these reads, by the clock."),
    Metric("sluice_handover_reads_total", "counter", "Reads that ended well: one for each chunk."),
    Metric(
        "sluice_handover_failures_total",
        "counter",
        "Hand-overs that failed, by reason.",
        ("reason",),
    ),
    Metric(
        "sluice_handover_recomputed_total",
        "counter",
        "Retracted requests, whose prompt a decode engine computes again by itself.",
    ),
    Metric("sluice_draining", "gauge", "1 while the engine drains."),
)

ROUTER: Final = (
    Metric("sluice_router_info", "gauge", "Always 1: the release of the router.", ("version",)),
    Metric(
        "sluice_router_requests_total",
        "counter",
        "Requests by route, status code, and how the answer ended.",
        ("route", "code", "outcome"),
    ),
    Metric(
        "sluice_router_request_seconds",
        "histogram",
        "Duration by route.",
        ("route",),
        LATENCY_SECONDS,
    ),
    Metric(
        "sluice_router_first_byte_seconds",
        "histogram",
        "Arrival to first byte from an engine: of a stream to its first token, of any other answer "
        "to its end.",
        ("answer",),
        LATENCY_SECONDS,
    ),
    Metric(
        "sluice_router_ledger_total",
        "counter",
        "Requests for a completion, each counted once when it ended, by what became of it.",
        ("fate",),
    ),
    Metric(
        "sluice_router_retries_total",
        "counter",
        "Attempts beyond the first, by reason.",
        ("reason",),
    ),
    Metric(
        "sluice_router_streams_resumed_total",
        "counter",
        "Answers that broke off and that another engine went on with, by reason.",
        ("reason",),
    ),
    Metric(
        "sluice_router_resume_failures_total",
        "counter",
        "Answers that broke off and that no other engine could end.",
    ),
    Metric(
        "sluice_router_resumes_forgone_total",
        "counter",
        "Answers of which nothing was held any more to resume them with, because "
        "server.maxBufferedBytes was short.",
    ),
    Metric(
        "sluice_router_engines", "gauge", "Engines known, by role and state.", ("role", "state")
    ),
    Metric(
        "sluice_router_picks_total",
        "counter",
        "Requests given to an engine or a pair, by why it was that one.",
        ("reason",),
    ),
    Metric(
        "sluice_router_canary_trials_total",
        "counter",
        "Trials of a canary, each the requests of one key in one minute, by side (new, former). "
        "Outcomes: answered, and failed, after which a key has no more of them; in_time and late, "
        "likewise, of requests whose time to first token was judged.",
        ("side", "outcome"),
    ),
    Metric("sluice_router_waiting_requests", "gauge", "Requests held until an engine is usable."),
    Metric("sluice_router_inflight_requests", "gauge", "Requests being served."),
    Metric("sluice_router_buffered_bytes", "gauge", "Heads and bodies of requests that are held."),
)

OPERATOR: Final = (
    Metric("sluice_operator_info", "gauge", "Always 1: the operator's release.", ("version",)),
    Metric(
        "sluice_operator_reconcile_total",
        "counter",
        "Reconciles by kind and outcome.",
        ("kind", "outcome"),
    ),
    Metric(
        "sluice_operator_reconcile_errors_total",
        "counter",
        "Failed reconciles by kind and error.",
        ("kind", "error"),
    ),
    Metric(
        "sluice_operator_reconcile_duration_seconds",
        "histogram",
        "Duration by kind.",
        ("kind",),
        STEP_SECONDS,
    ),
    Metric("sluice_operator_queue_depth", "gauge", "Keys waiting, by kind.", ("kind",)),
    Metric(
        "sluice_operator_writes_total",
        "counter",
        "Write requests to the API server.",
        ("verb", "kind"),
    ),
    Metric(
        "sluice_operator_blocked_kinds",
        "gauge",
        "1 for what the leader needs and could not list or watch for 30 seconds.",
        ("kind", "namespace", "verb"),
    ),
    Metric("sluice_operator_leader", "gauge", "1 while this replica holds the Lease."),
    Metric(
        "sluice_operator_condition",
        "gauge",
        "1 for the status that each condition of an InferenceService has now, and why.",
        ("namespace", "name", "type", "status", "reason"),
    ),
    Metric(
        "sluice_operator_pool_replicas",
        "gauge",
        "Engines of a pool: desired, ready, updated and draining.",
        ("namespace", "name", "role", "state"),
    ),
    Metric(
        "sluice_autoscaler_desired_replicas",
        "gauge",
        "Engines that were decided last, of each pool that the operator scales.",
        ("namespace", "name", "role", "accelerator"),
    ),
    Metric(
        "sluice_autoscaler_current_replicas",
        "gauge",
        "Engines that each pool that the operator scales is asked for.",
        ("namespace", "name", "role", "accelerator"),
    ),
    Metric(
        "sluice_autoscaler_unschedulable_replicas",
        "gauge",
        "Engines of such a pool for which the cluster has no room.",
        ("namespace", "name", "role", "accelerator"),
    ),
    Metric(
        "sluice_autoscaler_decisions_total",
        "counter",
        "Decisions on pools, one a tick and pool, by reason.",
        ("role", "reason"),
    ),
)

_PROCESS: Final = (
    Metric("cpu_seconds_total", "counter", "Processor time, of user and system."),
    Metric("resident_memory_bytes", "gauge", "Memory that it holds."),
    Metric("virtual_memory_bytes", "gauge", "Memory that it has mapped."),
    Metric("start_time_seconds", "gauge", "Unix time at which it began."),
    Metric("open_fds", "gauge", "Files and connections that are open."),
    Metric("max_fds", "gauge", "Most that may be open."),
)
"""Metrics of prometheus-client about a process, without the prefix."""
PROCESS: Final = tuple(replace(metric, name=f"process_{metric.name}") for metric in _PROCESS)
"""Metrics of the processes of the router, the operator, and an engine's API."""
COMPUTING_PROCESS: Final = "sluice_engine"
"""Prefix of `PROCESS` for the process of an engine that computes."""
ENGINE_PROCESS: Final = tuple(
    replace(metric, name=f"{COMPUTING_PROCESS}_{metric.name}") for metric in PROCESS
)
