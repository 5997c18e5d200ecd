"""The metrics of an engine under vLLM's names, for dashboards, autoscalers and gateways that read
vLLM's metrics (`server.metricsCompatibility: vLLM`).

Most are our own families renamed at each scrape. Four, the durations of a request's phases, are not
among our own and are observed here. Names, labels and meanings: vllm/v1/metrics/loggers.py of vLLM
0.33.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from sluice_contract.cluster.metrics import LATENCY_SECONDS

NAMES: Final = (
    ("sluice_running_requests", "vllm:num_requests_running"),
    ("sluice_queued_requests", "vllm:num_requests_waiting"),
    ("sluice_token_usage_ratio", "vllm:kv_cache_usage_perc"),
    ("sluice_retractions", "vllm:num_preemptions"),
    ("sluice_prompt_tokens", "vllm:prompt_tokens"),
    ("sluice_cached_prompt_tokens", "vllm:prompt_tokens_cached"),
    ("sluice_generated_tokens", "vllm:generation_tokens"),
    ("sluice_drafted_tokens", "vllm:spec_decode_num_draft_tokens"),
    ("sluice_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"),
    ("sluice_queue_time_seconds", "vllm:request_queue_time_seconds"),
    ("sluice_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"),
    ("sluice_inter_token_seconds", "vllm:inter_token_latency_seconds"),
    ("sluice_request_seconds", "vllm:e2e_request_latency_seconds"),
    ("sluice_prompt_length_tokens", "vllm:request_prompt_tokens"),
    ("sluice_output_length_tokens", "vllm:request_generation_tokens"),
    # Ours counts each choice; vLLM's counts the longest choice of a request.
    ("sluice_output_length_tokens", "vllm:request_max_num_generation_tokens"),
)
"""Our families and their names in vLLM; counters without `_total`."""
PHASES: Final = (
    ("vllm:request_prefill_time_seconds", "First step to first token."),
    ("vllm:request_decode_time_seconds", "First token to last token."),
    ("vllm:request_inference_time_seconds", "First step to last token."),
    ("vllm:request_time_per_output_token_seconds", "Mean time of a token after the first."),
)
OUTCOMES: Final = {"tool_calls": "stop", "refused": None, "handed_back": None}
"""vLLM's names for our outcomes, if they differ; None: vLLM's metric does not count requests with
this outcome."""
ENGINE: Final = "0"
"""Value of the label `engine`, by which vLLM numbers the engines in one server."""


class VllmMetrics:
    """A collector of the engine's registry."""

    def __init__(
        self, families: Mapping[str, MetricWrapperBase], registry: CollectorRegistry
    ) -> None:
        """`families`: our own metrics, by name."""
        self._families = families
        self._phases = [
            Histogram(name, text, registry=None, buckets=LATENCY_SECONDS) for name, text in PHASES
        ]
        self._model = ""
        registry.register(self)

    def identify(self, model: str) -> None:
        """Sets the label `model_name`."""
        self._model = model

    def ended(
        self, queue_seconds: float, first_seconds: float, last_seconds: float, token_seconds: float
    ) -> None:
        """Observes the phases of an answer that ended. Times from its request's arrival to its
        first step, its first token and its last token; `token_seconds`: the mean time of a token
        after the first."""
        prefill, decode = first_seconds - queue_seconds, last_seconds - first_seconds
        phases = (prefill, decode, prefill + decode, token_seconds)
        for histogram, seconds in zip(self._phases, phases, strict=True):
            histogram.observe(max(0.0, seconds))

    def describe(self) -> Iterator[Metric]:
        """No families, so that the registry does not check the names when this is registered."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """All families with their current values."""
        for family in self._families.values():
            for metric in family.collect():
                for ours, theirs in NAMES:
                    if metric.name == ours:
                        yield self._renamed(metric, theirs)
                if metric.name == "sluice_requests":
                    yield self._finished(metric)
        for phase in self._phases:
            for metric in phase.collect():
                yield self._renamed(metric, metric.name)

    def _renamed(self, metric: Metric, name: str) -> Metric:
        renamed = Metric(name, metric.documentation, metric.type)
        for sample in metric.samples:
            of = sample.name.removeprefix(metric.name)
            renamed.samples.append(self._sample(name + of, sample.labels, sample.value))
        return renamed

    def _finished(self, metric: Metric) -> Metric:
        """`vllm:request_success` by `finished_reason`."""
        counts: dict[str, float] = {}
        for sample in metric.samples:
            if sample.name.endswith("_total"):
                outcome = sample.labels["outcome"]
                reason = OUTCOMES.get(outcome, outcome)
                if reason is not None:
                    counts[reason] = counts.get(reason, 0.0) + sample.value
        finished = Metric("vllm:request_success", metric.documentation, metric.type)
        for reason, count in counts.items():
            labels = {"finished_reason": reason}
            name = "vllm:request_success_total"
            finished.samples.append(self._sample(name, labels, count))
        return finished

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> Sample:
        return Sample(name, {"model_name": self._model, "engine": ENGINE, **labels}, value)
