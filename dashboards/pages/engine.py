"""The dashboard of the engines of a service: steps, KV pool, requests, processes, GPUs."""

from __future__ import annotations

from typing import Final

from dashboards.choices import OF_ENGINES
from dashboards.dcgm import GPUS
from dashboards.model import Dashboard, Panel, Query, Row
from dashboards.promql import OF_PODS, largest, mean, quantile, rate, series, total

UID: Final = "sluice-engine"
POD: Final = "{{pod}}"

STEPS: Final = Row(
    "Steps",
    (
        Panel(
            "Steps",
            "ops",
            (Query(rate("sluice_steps_total", OF_PODS, by=("mode",)), "{{mode}}"),),
            "EXTEND: prompts; DECODE: answers; MIXED: both in one forward pass.",
            stacked=True,
        ),
        Panel(
            "Duration of a step",
            "s",
            (Query(quantile(0.95, "sluice_step_seconds", OF_PODS, by=("mode",)), "{{mode}}, p95"),),
            "A step that decodes takes as long as its tokens are apart.",
        ),
        Panel(
            "Predicted and measured",
            "s",
            (
                Query(mean("sluice_step_seconds", OF_PODS, by=("mode",)), "{{mode}}, measured"),
                Query(
                    mean("sluice_predicted_step_seconds", OF_PODS, by=("mode",)),
                    "{{mode}}, predicted",
                ),
            ),
            "Mean durations; chunks are chosen by the prediction.",
        ),
        Panel(
            "Error of the prediction",
            "percentunit",
            (Query(largest(series("sluice_step_prediction_error_ratio", OF_PODS), "pod"), POD),),
            "Mean relative error of the last steps.",
        ),
        Panel(
            "Scheduler",
            "s",
            (
                Query(quantile(0.95, "sluice_scheduler_seconds", OF_PODS), "p95"),
                Query(mean("sluice_scheduler_seconds", OF_PODS), "mean"),
            ),
            "Processor time of planning one step.",
        ),
        Panel(
            "Chunk budget",
            "short",
            (Query(largest(series("sluice_chunk_budget_tokens", OF_PODS), "pod"), POD),),
            "Tokens that the last step with prompts might compute; 0 without a limit.",
        ),
        Panel(
            "Why the budget was so",
            "ops",
            (Query(rate("sluice_chunk_budgets_total", OF_PODS, by=("reason",)), "{{reason}}"),),
            "Steps that computed prompts, by the reason of their budget.",
            stacked=True,
        ),
        Panel(
            "Prompts cut into chunks",
            "ops",
            (Query(rate("sluice_chunk_cuts_total", OF_PODS, by=("pod",)), POD),),
            "Cuts in a second: each leaves the rest of a prompt to a later step.",
        ),
        Panel(
            "Tokens",
            "ops",
            (
                Query(rate("sluice_prompt_tokens_total", OF_PODS, by=("pod",)), f"{POD} prompts"),
                Query(
                    rate("sluice_generated_tokens_total", OF_PODS, by=("pod",)), f"{POD} answers"
                ),
            ),
            "Of each engine, in a second.",
        ),
    ),
)
MEMORY: Final = Row(
    "KV pool",
    (
        Panel(
            "Pages",
            "short",
            (Query(total(series("sluice_kv_pages", OF_PODS), "state"), "{{state}}"),),
            "evictable: cached, and used by no request.",
            stacked=True,
        ),
        Panel(
            "Pool in use",
            "percentunit",
            (Query(largest(series("sluice_token_usage_ratio", OF_PODS), "pod"), POD),),
            "Share of the pages that requests hold.",
            limit=0.9,
        ),
        Panel(
            "Prefix cache",
            "percentunit",
            (
                Query(
                    f"{rate('sluice_cached_prompt_tokens_total', OF_PODS)} / "
                    f"{rate('sluice_prompt_tokens_total', OF_PODS)}",
                    "hits",
                ),
            ),
            "Share of the prompts' tokens that were in the cache.",
        ),
        Panel(
            "Evictions",
            "ops",
            (Query(rate("sluice_evicted_pages_total", OF_PODS, by=("pod",)), POD),),
            "Cached pages that made room for other requests.",
        ),
        Panel(
            "Retractions",
            "ops",
            (Query(rate("sluice_retractions_total", OF_PODS, by=("pod",)), POD),),
            "Running requests sent back to the queue, whose prompts are computed again.",
        ),
        Panel(
            "Reserved of max_tokens",
            "percentunit",
            (Query(largest(series("sluice_new_token_ratio", OF_PODS), "pod"), POD),),
            "Share that admission reserves; it rises with every retraction.",
        ),
    ),
)
REQUESTS: Final = Row(
    "Requests",
    (
        Panel(
            "Ended",
            "reqps",
            (Query(rate("sluice_requests_total", OF_PODS, by=("outcome",)), "{{outcome}}"),),
            "By outcome; refused: nothing was generated, abort: the client left.",
        ),
        Panel(
            "Running",
            "short",
            (
                Query(largest(series("sluice_running_requests", OF_PODS), "pod"), POD),
                Query(
                    largest(series("sluice_max_running_requests", OF_PODS)), "maxRunningRequests"
                ),
            ),
            "Requests of the running batch, and their limit.",
        ),
        Panel(
            "Queued",
            "short",
            (
                Query(largest(series("sluice_queued_requests", OF_PODS), "pod"), POD),
                Query(largest(series("sluice_max_queued_requests", OF_PODS)), "maxQueuedRequests"),
            ),
            "Requests that wait for admission, and their limit.",
        ),
        Panel(
            "Tokens to compute",
            "short",
            (Query(largest(series("sluice_queued_tokens", OF_PODS), "pod"), POD),),
            "Of prompts that wait, and of those that are computed in part.",
        ),
        Panel(
            "Length of prompts",
            "short",
            (
                Query(quantile(0.5, "sluice_prompt_length_tokens", OF_PODS), "p50"),
                Query(quantile(0.95, "sluice_prompt_length_tokens", OF_PODS), "p95"),
            ),
            "In tokens.",
        ),
        Panel(
            "Length of answers",
            "short",
            (
                Query(quantile(0.5, "sluice_output_length_tokens", OF_PODS), "p50"),
                Query(quantile(0.95, "sluice_output_length_tokens", OF_PODS), "p95"),
            ),
            "In tokens.",
        ),
        Panel(
            "Duration of answers",
            "s",
            (Query(quantile(0.95, "sluice_request_seconds", OF_PODS, by=("pod",)), f"{POD}, p95"),),
            "From arrival to the last token.",
        ),
        Panel(
            "Grammars",
            "ops",
            (
                Query(
                    rate("sluice_grammar_compilations_total", OF_PODS, by=("outcome",)),
                    "{{outcome}}",
                ),
            ),
            "Compilations that ended, for structured output.",
        ),
        Panel(
            "Time in compiling grammars",
            "percentunit",
            (Query(rate("sluice_grammar_compile_seconds_total", OF_PODS, by=("pod",)), POD),),
            "Share of the time in which a grammar was being compiled, one at a time.",
        ),
    ),
)
PROCESSES: Final = Row(
    "Processes",
    (
        Panel(
            "Processors",
            "short",
            (
                Query(
                    rate("sluice_engine_process_cpu_seconds_total", OF_PODS, by=("pod",)),
                    f"{POD} computes",
                ),
                Query(rate("process_cpu_seconds_total", OF_PODS, by=("pod",)), f"{POD} HTTP"),
            ),
            "Cores that are busy: of the process that computes, and of the one that speaks HTTP.",
        ),
        Panel(
            "Memory",
            "bytes",
            (
                Query(
                    largest(series("sluice_engine_process_resident_memory_bytes", OF_PODS), "pod"),
                    f"{POD} computes",
                ),
                Query(
                    largest(series("process_resident_memory_bytes", OF_PODS), "pod"),
                    f"{POD} HTTP",
                ),
            ),
            "That the processes hold; on CPUs weights and KV pool are in it.",
        ),
        Panel(
            "Files and connections",
            "percentunit",
            (
                Query(
                    f"{largest(series('process_open_fds', OF_PODS), 'pod')} / "
                    f"{largest(series('process_max_fds', OF_PODS), 'pod')}",
                    POD,
                ),
            ),
            "Share of those that the process that speaks HTTP may have open.",
        ),
        Panel(
            "What they are",
            "short",
            (
                Query(
                    largest(
                        series("sluice_engine_info", OF_PODS),
                        "pod",
                        "model",
                        "role",
                        "revision",
                        "version",
                    ),
                    "",
                ),
            ),
            "One row an engine.",
            kind="table",
            width=16,
        ),
        Panel(
            "Draining",
            "short",
            (Query(total(series("sluice_draining", OF_PODS)), "engines"),),
            "Engines that take no new requests because they are to end.",
        ),
    ),
)
PAGE: Final = Dashboard(
    UID,
    "Sluice / Engines",
    "The engines of a service, one by one: what a step does, and what it waits for.",
    OF_ENGINES,
    (STEPS, MEMORY, REQUESTS, PROCESSES, GPUS),
)
