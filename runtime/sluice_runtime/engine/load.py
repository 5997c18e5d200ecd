"""The engine's side of the load report: one frozen value from the scheduler's status."""

from __future__ import annotations

from typing import NamedTuple

from sluice_runtime.engine.pace import Pace
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import HandoverLoad, Load


class Now(NamedTuple):
    """One moment by two clocks: that of the steps, and that of people."""

    monotonic_seconds: float
    unix_seconds: float


def load_from(
    status: Status,
    grammars: GrammarQueue,
    pace: Pace,
    now: Now,
    handover: HandoverLoad | None = None,
) -> Load:
    """`now`: when `status` was read. Requests that wait for a grammar count as queued."""
    queued_tokens = status.queued_tokens + grammars.prompt_tokens
    return Load(
        time_seconds=now.unix_seconds,
        queued_requests=status.queued_requests + len(grammars),
        queued_tokens=queued_tokens,
        running_requests=status.running_requests,
        kv_pages_total=status.pages_total,
        kv_pages_free=status.pages_free,
        kv_pages_evictable=status.pages_evictable,
        queued_work_seconds=queued_tokens * status.pace.token_seconds,
        new_token_ratio=status.new_token_ratio,
        retractions=status.retractions,
        chunk_cuts=status.chunk_cuts,
        evicted_pages=status.evicted_pages,
        steps=dict(status.steps),
        grammar_requests=len(grammars),
        grammar_compilations=dict(grammars.counts.compilations),
        grammar_compile_seconds=grammars.counts.compile_seconds,
        grammars_given_up=dict(grammars.counts.given_up),
        chunk_budget_tokens=status.pace.budget.tokens or 0,
        chunk_budgets=dict(status.pace.budgets),
        step_error_ratio=status.pace.error_ratio,
        handover=handover,
        prefill_tokens_per_second=pace.prefill_tokens_per_second,
        itl_seconds=pace.itl_seconds(now.monotonic_seconds),
        prompt_tokens=status.received_prompt_tokens,
        generated_tokens=pace.generated_tokens,
        finished_requests=status.finished_requests,
    )
