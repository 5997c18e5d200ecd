"""An explanation as text for people, and as JSON for programs. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sluice_autoscaler.pool_plan import STARTUP_SECONDS
from sluice_contract.wire.explain import Answer, ArrangementName, Promise, Requests

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.cli.explain.advice import Hint, Verdict, rate_text
from sluice_operator.cli.kv_capacity import BY_ENGINE, capacity_lines, running_lines
from sluice_operator.cli.model_fit import gated_lines
from sluice_operator.cli.preview import Preview, as_json, inherited_lines, table, value_text
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.revisions.settings import settings_status
from sluice_operator.service.rollout.planned_rollout import PlannedPool

WHY: Final = {
    "chunkSize": "most tokens of a step: larger computes prompts faster, smaller keeps gaps small",
    "cudaGraphMaxBatch": "decode batches up to here skip the launch of each kernel",
    "maxRunningRequests": "more wait",
    "memoryPercent": "for weights and KV pool; the rest is for a chunk's activations and graphs",
    "tensorParallelSize": "every GPU of the engine",
    "kvPoolTokens": "prompts and answers that fit at once",
    "pageSize": "tokens of a page: what a hand-over and the prefix cache count in",
}
"""Settings to show, with their meaning. An accelerator decides them, or people usually set them."""

ARRANGED: Final[dict[ArrangementName, str]] = {
    "whole": "whole prompts",
    "chunked": "chunks",
    "mixed": "chunks, mixed with decode",
    "paced": "mixed, chunks chosen for ITL",
    "apart": "1 prefill + 1 decode",
}


@dataclass(frozen=True)
class ExplainedPool:
    """Explanation of one pool."""

    pool: PlannedPool
    answer: Answer
    verdicts: tuple[Verdict, ...]
    hints: tuple[Hint, ...]


@dataclass(frozen=True)
class Explanation:
    """Explanation of one service."""

    preview: Preview
    requests: Requests
    promise: Promise
    explain: Callable[[PlannedPool], ExplainedPool]
    """Explains a pool, by a simulation that takes seconds."""
    knows_nodes: bool
    """Whether there are nodes, of a file or assumed."""
    measured_start: str | None = None
    """`status.scaling.start` of the document; None: it has none."""


def explained_json(shown: Explanation) -> Manifest:
    """JSON for programs."""
    explained = map(shown.explain, shown.preview.plan.pools)
    pools = {item.pool.role.value: _pool_json(item) for item in explained}
    head = as_json(shown.preview)
    return {
        "name": head["name"],
        "namespace": head["namespace"],
        "refusal": None,
        "requests": shown.requests.to_json_dict(),
        "promise": shown.promise.to_json_dict(),
        "measuredStart": shown.measured_start,
        "pools": pools,
    }


def _pool_json(explained: ExplainedPool) -> Manifest:
    check = explained.pool.accelerator.verified
    return {
        "accelerator": explained.pool.accelerator.text,
        "verified": {"status": check.status, "reason": check.reason, "message": check.message},
        "settings": settings_status(explained.pool.settings),
        "simulated": explained.answer.to_json_dict(),
        "verdicts": [
            {"subject": v.subject, "reason": v.reason, "message": v.message}
            for v in explained.verdicts
        ],
        "hints": [{"name": hint.name, "message": hint.text} for hint in explained.hints],
    }


def explained_lines(shown: Explanation) -> Iterator[str]:
    """Lines for people. The sizes of a pool come before its simulation begins."""
    meta, spec = shown.preview.service["metadata"], shown.preview.plan.spec
    assert spec is not None
    yield f"InferenceService {meta['namespace']}/{meta['name']}: mode {spec.mode}"
    yield f"  {spec.model.uri}"
    if (sizes := shown.preview.sizes) is not None and sizes.assumed:
        yield f"  Its sizes are {sizes.assumed}."
    yield from gated_lines(spec.model)
    yield from _start_lines(shown, spec)
    for pool in shown.preview.plan.pools:
        yield ""
        yield f"Pool {pool.role}: each engine on {pool.accelerator.text}"
        yield from inherited_lines(spec, pool.role)
        yield from _verified(shown, pool)
        yield from table(_sizes(pool))
        yield ""
        explained = shown.explain(pool)
        yield from _simulated(shown, explained)
        if explained.hints:
            yield from ("", "  Hints:")
            yield from (f"  - {hint.text}" for hint in explained.hints)


def _start_lines(shown: Explanation, spec: InferenceServiceSpec) -> Iterator[str]:
    """How long an engine takes to start, as scaling assumes it; nothing without scaling."""
    if not any(spec.pool(role).autoscaling for role in spec.roles):
        return
    if shown.measured_start:
        yield f"  Scaling uses measured starts. {shown.measured_start}"
        return
    yield f"  Scaling assumes that an engine starts in {STARTUP_SECONDS:.0f} s, until a start was"
    yield "  measured. status.scaling.start then has it with its phases."


def _verified(shown: Explanation, pool: PlannedPool) -> Iterator[str]:
    check = pool.accelerator.verified
    if shown.knows_nodes or pool.accelerator.accelerator.is_cpu:
        yield f"  {check.reason}: {check.message}"
        return
    yield "  No cluster was asked: the accelerator is what the spec says. --nodes FILE takes what"
    yield "  kubectl get nodes -o yaml prints."


def _sizes(pool: PlannedPool) -> Iterator[tuple[str, ...]]:
    yield ("setting", "value", "source", "from", "why")
    for key, entry in settings_status(pool.settings).items():
        if key in WHY or entry["source"] == "User":
            value = value_text(entry["value"])
            yield (key, value, entry["source"], entry["from"], WHY.get(key, "as the spec says"))


def _simulated(shown: Explanation, explained: ExplainedPool) -> Iterator[str]:
    answer, requests = explained.answer, shown.requests
    promise = answer.promise or shown.promise
    if answer.missing is not None:
        yield f"  Not simulated: {answer.missing}"
        if (spec := shown.preview.plan.spec) is not None:
            yield from capacity_lines(spec, shown.preview.facts, explained.pool)
            yield from running_lines(shown.preview.facts, explained.pool)
        return
    yield f"  Simulated, not measured: two engines, each {answer.cost_source}."
    yield from _not_simulated(shown, explained)
    yield (
        f"  Requests of {requests.prompt_tokens:,} tokens in and {requests.answer_tokens:,} out on "
        f"average; to keep for {promise.share:.0%}:"
    )
    yield (
        f"  first token in {promise.ttft_seconds:g} s, {promise.itl_seconds * 1000:g} ms between "
        f"tokens. KV pool: {answer.kv_pool_tokens:,} tokens an engine."
    )
    yield from _assumed(promise)
    if answer.max_running_requests and "max_running_requests" not in explained.pool.settings:
        yield f"  maxRunningRequests: {answer.max_running_requests:,}, {BY_ENGINE}."
    yield from table(_arrangements(answer))
    yield ""
    for verdict in explained.verdicts:
        yield f"  {verdict.subject}: {_verdict_text(verdict)}"


def _assumed(promise: Promise) -> Iterator[str]:
    """Which latencies are assumed, since the service does not promise them."""
    fields = [f"spec.slo.{name}Milliseconds" for name in promise.assumed]
    if fields:
        yield f"  The spec has no {' and no '.join(fields)}: assumed for this simulation alone."


def _not_simulated(shown: Explanation, explained: ExplainedPool) -> Iterator[str]:
    spec, role = shown.preview.plan.spec, explained.pool.role
    if spec is None:
        return
    parts = {"speculation": spec.speculation(role), "hostCache": spec.host_cache(role)}
    if names := [name for name, part in parts.items() if part is not None]:
        yield f"  {' and '.join(names)} {'are' if len(names) > 1 else 'is'} not simulated."


def _arrangements(answer: Answer) -> Iterator[tuple[str, ...]]:
    yield ("arrangement", "kept up to", "TTFT there", "ITL there")
    for arrangement in answer.arrangements:
        yield (
            ARRANGED[arrangement.name],
            f"{rate_text(arrangement.requests_per_second)} req/s"
            if arrangement.requests_per_second
            else "no rate tried",
            f"{arrangement.ttft_seconds * 1000:.0f} ms",
            f"{arrangement.itl_seconds * 1000:.1f} ms",
        )


def _verdict_text(verdict: Verdict) -> str:
    begins = {"Pays": "pays", "Costs": "does not pay:", "NoDifference": "makes no difference:"}
    return f"{begins[verdict.reason]} {verdict.message}."
