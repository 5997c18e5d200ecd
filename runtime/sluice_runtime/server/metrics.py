"""Prometheus collectors of the engine, made from `sluice_contract.cluster.metrics`.

Times are of the engine's clock: a delta's time runs from the request's arrival to the end of the
step that made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from sluice_contract.cluster import metrics
from sluice_contract.config.engine import SloTargets
from sluice_contract.version import VERSION
from sluice_contract.wire.load import HandoverQueues, SloCounts

from sluice_runtime.server.vllm_metrics import VllmMetrics
from sluice_runtime.wire.messages import (
    EngineReady,
    FinishReason,
    Generate,
    HandoverLoad,
    HostCacheLoad,
    Load,
    StepResult,
    TokenDelta,
)

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_LATEST
OUTCOMES: Final = ("stop", "length", "tool_calls", "abort", "error", "refused", "handed_back")
"""Outcomes of requests. Each counter starts at 0, so that the first count is visible as an
increase."""
HANDOVER_FAILURES: Final = (
    "Aborted", "Cancelled", "NoPages", "PeerLost", "Protocol", "Quarantined", "ReadFailed",
    "Refused", "RoleChanged", "RoomLost", "TimedOut",
)  # fmt: skip
"""Reasons of failed hand-overs; their counters start at 0 too."""


@dataclass(slots=True)
class Timeline:
    """A request in progress. Times are of the engine's clock."""

    arrival_seconds: float
    first_token_seconds: float | None = None
    last_token_seconds: float | None = None
    output_tokens: int = 0
    gaps: int = 0
    """Number of gaps between steps that gave the request tokens; tokens of one step arrive
    together."""
    queue_seconds: float = 0.0
    """Seconds from the arrival to the first step."""
    answered: bool = False
    """Whether the answer is complete, whatever finish reason the engine reports."""
    counted: bool = False
    """Whether the slo's counts include the request."""

    def ttft_seconds(self, now_seconds: float) -> float:
        """TTFT in seconds; without a first token, the time waited so far, as a lower bound."""
        first = self.first_token_seconds
        return (now_seconds if first is None else first) - self.arrival_seconds

    @property
    def decode_seconds(self) -> float:
        """Seconds from the first token to the last; 0 without any."""
        if self.first_token_seconds is None or self.last_token_seconds is None:
            return 0.0
        return self.last_token_seconds - self.first_token_seconds

    @property
    def itl_seconds(self) -> float:
        """Mean time between steps that gave tokens; accepted drafts do not shorten it. 0 for a
        single step."""
        return self.decode_seconds / max(1, self.gaps)

    @property
    def token_seconds(self) -> float:
        """Mean time for each token after the first, accepted drafts included."""
        return self.decode_seconds / max(1, self.output_tokens - 1)


class KeptSlo:
    """Requests that kept the engine's `slo` since its start, for the load report.

    An answer keeps the slo if its first token came within `ttftMilliseconds` of the request's
    arrival at this engine, and if the mean time between steps that gave it tokens is within
    `itlMilliseconds`, however many tokens each of them gave.

    Each request counts once. A request whose first token is late counts as missed from the next
    report on, even while it waits and however it ends. Other requests count when their answer ends.
    Refusals and errors without a late first token do not count, because another engine may take the
    request. An answer that its reader abandoned counts only if it was late by then; otherwise
    impatient readers would improve the share.
    """

    def __init__(self, slo: SloTargets) -> None:
        self.ttft_milliseconds = slo.ttft_milliseconds
        self._itl_milliseconds = slo.itl_milliseconds
        self.requests = 0
        self.in_time = 0

    def was_counted(self, generate: Generate) -> bool:
        """Whether the request was late at the engine that handed it back, which has then counted
        it."""
        limit = self.ttft_milliseconds
        return generate.moved > 0 and limit is not None and generate.waited_seconds * 1000 > limit

    def ended(self, timeline: Timeline, reason: FinishReason, now_seconds: float) -> None:
        """Records the end of an answer."""
        if self._first_is_late(timeline, now_seconds):
            self._count(timeline)
            return
        late = self._gaps_are_long(timeline)
        if reason == "error" or (reason == "abort" and not late):
            return
        self._count(timeline)
        self.in_time += not late

    def counts(self, timelines: Iterable[Timeline], now_seconds: float) -> SloCounts:
        """The present counts. `timelines`: requests in progress; late ones are counted by this
        call."""
        late = 0
        for timeline in timelines:
            if self._first_is_late(timeline, now_seconds):
                self._count(timeline)
                late += timeline.first_token_seconds is None
        return SloCounts(self.requests, self.in_time, late)

    def _count(self, timeline: Timeline) -> None:
        self.requests += not timeline.counted
        timeline.counted = True

    def _first_is_late(self, timeline: Timeline, now_seconds: float) -> bool:
        limit = self.ttft_milliseconds
        return limit is not None and timeline.ttft_seconds(now_seconds) * 1000 > limit

    def _gaps_are_long(self, timeline: Timeline) -> bool:
        limit = self._itl_milliseconds
        return limit is not None and timeline.itl_seconds * 1000 > limit


class EngineMetrics:
    """A registry of its own, filled by the engine client's observations."""

    def __init__(self, kept_slo: KeptSlo | None = None, *, vllm_names: bool = False) -> None:
        """`kept_slo`: counts answers, if the engine has an `slo` and answers clients. `vllm_names`:
        whether metrics are exposed under vLLM's names too."""
        self.kept_slo = kept_slo
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in metrics.ENGINE:
            self._register(metric)
        for reason in HANDOVER_FAILURES:
            self._counters["sluice_handover_failures_total"].labels(reason)
        for outcome in OUTCOMES:
            self._counters["sluice_requests_total"].labels(outcome)
        families = {**self._counters, **self._gauges, **self._histograms}
        self._vllm = VllmMetrics(families, self.registry) if vllm_names else None
        self._timelines: dict[str, Timeline] = {}
        self._totals: dict[str, float] = {}

    def render(self) -> bytes:
        """The exposition text."""
        return prometheus_client.generate_latest(self.registry)

    def identify(self, model: str, role: str, revision: str | None) -> None:
        """Sets the engine's present identity; `revision` is None outside a cluster."""
        if self._vllm is not None:
            self._vllm.identify(model)
        self._gauges["sluice_engine_info"].clear()
        self._gauges["sluice_engine_info"].labels(model, role, revision or "", VERSION).set(1)

    def began(self, ready: EngineReady) -> None:
        """Records that the engine process has loaded its model: sets its limits, and observes its
        process from now on."""
        limits = {
            "sluice_max_running_requests": ready.max_running_requests,
            "sluice_max_queued_requests": ready.max_queued_requests,
            "sluice_kv_pool_tokens": ready.kv_pool_tokens,
            "sluice_context_length_tokens": ready.context_length_tokens,
        }
        for name, limit in limits.items():
            self._gauges[name].set(limit)
        for phase, seconds in ready.start.items():
            self._gauges["sluice_engine_start_seconds"].labels(phase).set(seconds)
        if ready.pid:
            ProcessCollector(metrics.COMPUTING_PROCESS, lambda: ready.pid, registry=self.registry)

    def opened(self, generate: Generate) -> None:
        counted = self.kept_slo is not None and self.kept_slo.was_counted(generate)
        timeline = Timeline(generate.arrival_seconds, counted=counted)
        self._timelines[generate.request_id] = timeline
        self._counters["sluice_prompt_tokens_total"].inc(len(generate.prompt_ids))
        self._histograms["sluice_prompt_length_tokens"].observe(len(generate.prompt_ids))

    def stepped(self, result: StepResult) -> None:
        if result.step_seconds > 0:
            self._histograms["sluice_step_seconds"].labels(result.mode).observe(result.step_seconds)
            self._histograms["sluice_scheduler_seconds"].observe(result.scheduler_seconds)
        if result.predicted_seconds > 0:
            predicted = self._histograms["sluice_predicted_step_seconds"].labels(result.mode)
            predicted.observe(result.predicted_seconds)
        finished_seconds, tokens = result.finished_seconds, 0
        for delta in result.special:
            tokens += self._progressed(delta, finished_seconds)
        for request_id in result.plain.request_ids:
            if timeline := self._timelines.get(request_id):
                self._tokens_arrived(timeline, 1, finished_seconds)
                tokens += 1
        self._counters["sluice_generated_tokens_total"].inc(tokens)

    def loaded(self, load: Load) -> None:
        figures = load.figures
        self._gauges["sluice_running_requests"].set(figures.running_requests)
        self._gauges["sluice_queued_requests"].set(figures.queued_requests)
        self._gauges["sluice_queued_tokens"].set(figures.queued_tokens)
        self._gauges["sluice_queued_work_seconds"].set(figures.queued_work_seconds)
        self._gauges["sluice_grammar_requests"].set(load.grammar_requests)
        self._gauges["sluice_new_token_ratio"].set(load.new_token_ratio)
        self._gauges["sluice_new_token_beta_ratio"].set(load.beta)
        self._gauges["sluice_max_tokens_used_ratio"].set(load.average_usage or 0.0)
        self._gauges["sluice_reserve_saved_ratio"].set(load.saved_share)
        self._gauges["sluice_chunk_budget_tokens"].set(load.chunk_budget_tokens)
        self._gauges["sluice_step_prediction_error_ratio"].set(load.step_error_ratio)
        pages = self._gauges["sluice_kv_pages"]
        pages.labels("used").set(figures.kv_pages_total - figures.kv_pages_available)
        pages.labels("free").set(figures.kv_pages_free)
        pages.labels("evictable").set(figures.kv_pages_evictable)
        self._gauges["sluice_token_usage_ratio"].set(figures.kv_used)
        self._raise_to("sluice_uncached_prompt_tokens_total", figures.prompt_tokens_total)
        self._raise_to("sluice_retractions_total", load.retractions)
        self._raise_to("sluice_chunk_cuts_total", load.chunk_cuts)
        self._raise_to("sluice_evicted_pages_total", load.evicted_pages)
        self._raise_to("sluice_drafted_tokens_total", load.drafted_tokens)
        self._raise_to("sluice_accepted_tokens_total", load.accepted_tokens)
        self._raise_to("sluice_grammar_compile_seconds_total", load.grammar_compile_seconds)
        for outcome, number in load.grammar_compilations.items():
            self._raise_to("sluice_grammar_compilations_total", number, outcome)
        for reason, number in load.grammars_given_up.items():
            self._raise_to("sluice_grammars_given_up_total", number, reason)
        for reason, budgets in load.chunk_budgets.items():
            self._raise_to("sluice_chunk_budgets_total", budgets, reason)
        for mode, steps in load.steps.items():
            self._raise_to("sluice_steps_total", steps, mode)
        if load.handover is not None:
            self._handed_over(load.handover, figures.queues)
        if load.host_cache is not None:
            self._host_cached(load.host_cache)

    def _host_cached(self, load: HostCacheLoad) -> None:
        for tier, tokens in load.hit_tokens.items():
            self._raise_to("sluice_host_cache_hit_tokens_total", tokens, tier)
        for tier, used in load.used_bytes.items():
            self._gauges["sluice_host_cache_used_bytes"].labels(tier).set(used)
        for kind, copied in load.copied_bytes.items():
            self._raise_to("sluice_host_cache_copied_bytes_total", copied, kind)
        for kind, seconds in load.copy_seconds.items():
            self._raise_to("sluice_host_cache_copy_seconds_total", seconds, kind)
        self._raise_to("sluice_host_cache_bad_pages_total", load.bad_pages)

    def _handed_over(self, load: HandoverLoad, queues: HandoverQueues) -> None:
        requests = self._gauges["sluice_handover_requests"]
        requests.labels("bootstrap").set(queues.bootstrap)
        requests.labels("inflight").set(queues.inflight)
        requests.labels("prealloc").set(queues.prealloc)
        requests.labels("transfer").set(queues.transfer)
        self._raise_to("sluice_handover_read_bytes_total", load.read_bytes)
        self._raise_to("sluice_handover_read_seconds_total", load.read_seconds)
        self._raise_to("sluice_handover_reads_total", load.reads)
        self._raise_to("sluice_handover_recomputed_total", load.recomputed)
        for reason, failures in load.failures.items():
            self._raise_to("sluice_handover_failures_total", failures, reason)

    def slo_counts(self, now_seconds: float) -> SloCounts | None:
        """Counts for the load report, by the engine's clock; None without an slo."""
        kept = self.kept_slo
        return None if kept is None else kept.counts(self._timelines.values(), now_seconds)

    @property
    def slo_ttft_seconds(self) -> float | None:
        """Longest time to the first token that keeps the slo; None without such a limit."""
        kept = self.kept_slo
        if kept is None or kept.ttft_milliseconds is None:
            return None
        return kept.ttft_milliseconds / 1000

    def draining(self) -> None:
        """Records that the server no longer accepts requests."""
        self._gauges["sluice_draining"].set(1)

    def ended(self, outcome: str) -> None:
        """Counts the end of a client's request, with one of `OUTCOMES`."""
        self._counters["sluice_requests_total"].labels(outcome).inc()

    def answered(self, request_id: str) -> None:
        """Records that the answer is complete before the engine ends the request, which the engine
        will report as aborted."""
        if timeline := self._timelines.get(request_id):
            timeline.answered = True

    def _progressed(self, delta: TokenDelta, finished_seconds: float) -> int:
        """Takes a delta into account; returns the number of its tokens."""
        timeline = self._timelines.get(delta.request_id)
        if timeline is None:
            return 0
        if delta.queue_seconds is not None:
            self._histograms["sluice_queue_time_seconds"].observe(delta.queue_seconds)
            timeline.queue_seconds = delta.queue_seconds
        if delta.token_ids:
            if timeline.last_token_seconds is None:
                self._counters["sluice_cached_prompt_tokens_total"].inc(delta.cached_tokens)
            self._tokens_arrived(timeline, len(delta.token_ids), finished_seconds)
        if delta.finish_reason is not None:
            del self._timelines[delta.request_id]
            self._histograms["sluice_output_length_tokens"].observe(timeline.output_tokens)
            self._histograms["sluice_request_seconds"].observe(
                finished_seconds - timeline.arrival_seconds
            )
            if self._vllm is not None and timeline.first_token_seconds is not None:
                last_seconds = timeline.last_token_seconds or timeline.first_token_seconds
                self._vllm.ended(
                    timeline.queue_seconds,
                    timeline.first_token_seconds - timeline.arrival_seconds,
                    last_seconds - timeline.arrival_seconds,
                    timeline.token_seconds,
                )
            if self.kept_slo is not None:
                reason = "stop" if timeline.answered else delta.finish_reason
                self.kept_slo.ended(timeline, reason, finished_seconds)
        return len(delta.token_ids)

    def _tokens_arrived(self, timeline: Timeline, tokens: int, seconds: float) -> None:
        if timeline.last_token_seconds is None:
            timeline.first_token_seconds = seconds
            self._histograms["sluice_time_to_first_token_seconds"].observe(
                seconds - timeline.arrival_seconds
            )
        elif seconds > timeline.last_token_seconds:
            timeline.gaps += 1
            self._histograms["sluice_inter_token_seconds"].observe(
                seconds - timeline.last_token_seconds
            )
        timeline.last_token_seconds = seconds
        timeline.output_tokens += tokens

    def _raise_to(self, name: str, total: float, *labels: str) -> None:
        """Raises a counter to the engine's own total. The hand-over's totals restart with each role
        that the engine takes."""
        key = "/".join((name, *labels))
        counter, before = self._counters[name], self._totals.get(key, 0)
        rise = total - before if total >= before else total
        (counter.labels(*labels) if labels else counter).inc(rise)
        self._totals[key] = total

    def _register(self, metric: metrics.Metric) -> None:
        name, text, labels = metric.name, metric.help, metric.labels
        match metric.kind:
            case "counter":
                self._counters[name] = Counter(name, text, labels, registry=self.registry)
            case "gauge":
                self._gauges[name] = Gauge(name, text, labels, registry=self.registry)
            case "histogram":
                self._histograms[name] = Histogram(
                    name, text, labels, registry=self.registry, buckets=metric.buckets
                )
