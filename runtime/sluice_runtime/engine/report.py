"""An engine's reports of its work: log lines, in the form that operators of serving engines know,
and the load report.

Gets finished steps; reads no clock. `Pace` measures for both how fast the engine computes.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from sluice_contract.wire.load import MIN_PROMPT_SHARE, EngineFigures, HandoverQueues

from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.scheduler.batch import Batch, shape_of
from sluice_runtime.scheduler.pacing import PaceStatus
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import HandoverLoad, Load

DECODE_LINE_STEPS: Final = 40
"""Fewest decode steps for one log line."""
DECODE_LINE_SECONDS: Final = 1.0
"""Shortest time between two lines of decode steps, since a small model makes hundreds of steps a
second."""
ITL_SECONDS: Final = 10.0
"""Period over which the time between an answer's tokens is averaged."""
FORGETTING: Final = 0.98
"""Factor by which each later step lowers a step's weight in the mean: after fifty steps a third is
left."""

logger = logging.getLogger("sluice.engine")


@dataclass(slots=True)
class _Second:
    """Steps that ended within one second."""

    began_seconds: float
    rows: int = 0
    """Rows that decoded or were verified, summed over the steps."""
    waited_seconds: float = 0.0
    """Seconds that these rows waited for their tokens, summed."""


class Pace:
    """Rates of one engine."""

    def __init__(self) -> None:
        self._generated_tokens = 0
        self._decoded_tokens = 0
        self._since_seconds: float | None = None
        self._last_decode_seconds: float | None = None
        self._seconds: deque[_Second] = deque()
        self._prefill_weight = 0.0
        self._prefill_seconds = 0.0

    def stepped(
        self, batch: Batch, began_seconds: float, now_seconds: float, accepted_tokens: int = 0
    ) -> None:
        """Records a finished step, which ran from `began_seconds` to `now_seconds`.
        `accepted_tokens`: drafts that answers keep."""
        sampled = len(batch.sampling_rows) - batch.draft_tokens + accepted_tokens
        self._generated_tokens += sampled
        self._decoded(sampled, began_seconds)
        if batch.extend_rows:
            self._prefilled(shape_of(batch).extend_tokens, now_seconds - began_seconds)
        if rows := batch.answering_rows:
            self._waited(rows, began_seconds, now_seconds)

    @property
    def generated_tokens(self) -> int:
        """Tokens generated since the start."""
        return self._generated_tokens

    @property
    def prefill_tokens_per_second(self) -> float | None:
        """Prompt tokens per second of steps that computed prompts, including their time for
        decoding. Steps are weighted by their tokens, so that short ends of prompts hardly lower the
        rate. None before the first such step."""
        if not self._prefill_seconds:
            return None
        return self._prefill_weight / self._prefill_seconds

    def itl_seconds(self, now_seconds: float) -> float | None:
        """Mean time, in the last `ITL_SECONDS`, between two steps that gave an answer tokens. Steps
        without decode rows count as waiting; accepted drafts count as one token with their step's
        own. None while no answer ran."""
        self._forget(now_seconds)
        rows = sum(second.rows for second in self._seconds)
        if not rows:
            return None
        return sum(second.waited_seconds for second in self._seconds) / rows

    def take_decode_rate(self, now_seconds: float) -> float:
        """Tokens per second since the last call."""
        if self._since_seconds is None:
            return 0.0
        rate = self._decoded_tokens / max(now_seconds - self._since_seconds, 1e-9)
        self._decoded_tokens, self._since_seconds = 0, now_seconds
        return rate

    def forget_decode(self) -> None:
        """Called when nothing runs any more, so that idle time counts neither as slow decoding nor
        as waiting."""
        self._decoded_tokens, self._since_seconds = 0, None
        self._last_decode_seconds = None

    def _decoded(self, tokens: int, began_seconds: float) -> None:
        if self._since_seconds is None:
            self._since_seconds = began_seconds
        self._decoded_tokens += tokens

    def _prefilled(self, tokens: float, step_seconds: float) -> None:
        self._prefill_weight = self._prefill_weight * FORGETTING + tokens * tokens
        self._prefill_seconds = self._prefill_seconds * FORGETTING + tokens * step_seconds

    def _waited(self, rows: int, began_seconds: float, now_seconds: float) -> None:
        last = self._last_decode_seconds
        since = began_seconds if last is None else last
        self._last_decode_seconds = now_seconds
        if not self._seconds or now_seconds - self._seconds[-1].began_seconds >= 1.0:
            self._seconds.append(_Second(now_seconds))
            self._forget(now_seconds)
        second = self._seconds[-1]
        second.rows += rows
        second.waited_seconds += rows * (now_seconds - since)

    def _forget(self, now_seconds: float) -> None:
        while self._seconds and self._seconds[0].began_seconds < now_seconds - ITL_SECONDS:
            self._seconds.popleft()


class Now(NamedTuple):
    """One moment by two clocks: the steps' monotonic clock, and Unix time."""

    monotonic_seconds: float
    unix_seconds: float


def figures_from(
    status: Status, grammars: GrammarQueue, pace: Pace, now_seconds: float, queues: HandoverQueues
) -> EngineFigures:
    """The engine's figures at `now_seconds`, the time of `status` on the steps' clock. Requests
    that wait for a grammar count as queued."""
    queued_tokens = status.queued_tokens + grammars.prompt_tokens
    return EngineFigures(
        queued_requests=status.queued_requests + len(grammars),
        queued_tokens=queued_tokens,
        queued_work_seconds=queued_tokens * status.pace.token_seconds,
        running_requests=status.running_requests,
        kv_pages_total=status.pages_total,
        kv_pages_free=status.pages_free,
        kv_pages_evictable=status.pages_evictable,
        queues=queues,
        prefill_tokens_per_second=pace.prefill_tokens_per_second,
        marginal_prefill_tokens_per_second=marginal_rate(pace, status.pace.marginal_token_seconds),
        itl_seconds=pace.itl_seconds(now_seconds),
        costs=status.pace.costs,
        prompt_tokens_total=status.received_prompt_tokens,
        generated_tokens_total=pace.generated_tokens,
        finished_requests_total=status.finished_requests,
    )


def load_from(
    status: Status,
    grammars: GrammarQueue,
    figures: EngineFigures,
    time_seconds: float,
    handover: HandoverLoad | None = None,
) -> Load:
    """`figures`, with values from `status` that only metrics show. `time_seconds`: Unix time."""
    return Load(
        time_seconds=time_seconds,
        figures=figures,
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
        drafted_tokens=status.drafted_tokens,
        accepted_tokens=status.accepted_tokens,
        beta=status.beta,
        average_usage=status.average_usage,
        saved_share=status.saved_share,
        host_cache=status.host_cache,
    )


def marginal_rate(pace: Pace, token_seconds: float | None) -> float | None:
    """Prompt tokens per second if each adds `token_seconds` to a step, limited because that time
    can be nearly 0 while reading the weights dominates."""
    whole = pace.prefill_tokens_per_second
    if token_seconds is None or whole is None:
        return None
    most = whole / MIN_PROMPT_SHARE
    return 1 / token_seconds if token_seconds * most > 1 else most


@dataclass(frozen=True)
class StartupSizes:
    """Numbers in the start-up line."""

    max_total_tokens: int
    chunk_size: int
    max_prefill_tokens: int
    max_running_requests: int
    context_length_tokens: int
    available_bytes: int
    on_gpu: bool
    """Whether `available_bytes` are those of a GPU, and not of the machine."""


def startup_line(sizes: StartupSizes) -> str:
    memory = "available_gpu_mem" if sizes.on_gpu else "available_mem"
    return (
        f"max_total_num_tokens={sizes.max_total_tokens}, chunked_prefill_size={sizes.chunk_size}, "
        f"max_prefill_tokens={sizes.max_prefill_tokens}, "
        f"max_running_requests={sizes.max_running_requests}, "
        f"context_len={sizes.context_length_tokens}, "
        f"{memory}={sizes.available_bytes / 2**30:.2f} GB"
    )


def prefill_line(batch: Batch, status: Status) -> str:
    """Log line of a step with prompts. `#running-req` counts the step's decode rows; above 0,
    batches are mixed."""
    return (
        f"Prefill batch. #new-seq: {len(batch.extend_rows)}, #new-token: {batch.extend_tokens}, "
        f"#cached-token: {batch.cached_tokens}, token usage: {status.usage_ratio:.2f}, "
        f"#running-req: {batch.answering_rows}, #queue-req: {status.queued_requests}"
    )


def layers_text(batch: Batch) -> str:
    """Text about layer groups; empty if the step computes its prompts in all layers."""
    if (layers := batch.layers) is None:
        return ""
    return f", layers: {layers.first + 1}-{layers.end} of {layers.of}"


def pace_text(pace: PaceStatus) -> str:
    """Text about the chunk's budget; empty if the chunk size is fixed."""
    if pace.budget.reason == "Fixed":
        return ""
    return (
        f", chunk budget: {pace.budget.tokens} ({pace.budget.reason}: {pace.budget.message}), "
        f"step: {1000 * pace.step_seconds:.1f} ms, "
        f"predicted: {1000 * pace.predicted_seconds:.1f} ms"
    )


def admission_text(status: Status) -> str:
    """Why requests are still queued; empty if none is."""
    return f", admission: {status.admission_reason}" if status.queued_requests else ""


def chunk_line(status: Status) -> str | None:
    """Log line about a cut prompt; None if no prompt is cut."""
    if (cut := status.prefilling) is None:
        return None
    return (
        f"Chunked prefill. rid: {cut.request_id}, #done-token: {cut.computed_tokens}, "
        f"#total-token: {cut.total_tokens}"
    )


def decode_line(batch: Batch, status: Status, page_size: int, rate: float) -> str:
    tokens = (status.pages_total - status.pages_available) * page_size
    return (
        f"Decode batch. #running-req: {batch.answering_rows}, #token: {tokens}, "
        f"token usage: {status.usage_ratio:.2f}, gen throughput (token/s): {rate:.2f}, "
        f"#queue-req: {status.queued_requests}"
    )


def draft_text(drafted_tokens: int, accepted_tokens: int) -> str:
    """Text about accepted drafts since the last line; empty if none were verified."""
    if not drafted_tokens:
        return ""
    return f", #draft-token: {drafted_tokens}, #accepted-token: {accepted_tokens}"


class StepLog:
    """Writes a line for every step that prefills, and one for many that only decode."""

    def __init__(self, page_size: int, pace: Pace) -> None:
        self._page_size = page_size
        self._pace = pace
        self._decode_steps = 0
        self._last_seconds = -math.inf
        """When the last decode line was written."""
        self._drafted_tokens = self._accepted_tokens = 0
        """Until then."""

    def step(self, batch: Batch, status: Status, now_seconds: float) -> None:
        """Logs a finished step; `status`: after the step."""
        if batch.extend_rows:
            rest = layers_text(batch) + admission_text(status) + pace_text(status.pace)
            logger.info(prefill_line(batch, status) + rest)
            if line := chunk_line(status):
                logger.info(line)
            return
        if not batch.answering_rows:
            return
        self._decode_steps += 1
        since = now_seconds - self._last_seconds
        if self._decode_steps >= DECODE_LINE_STEPS and since >= DECODE_LINE_SECONDS:
            self._decode_steps, self._last_seconds = 0, now_seconds
            rate = self._pace.take_decode_rate(now_seconds)
            line = decode_line(batch, status, self._page_size, rate)
            logger.info(line + self._drafts(status))

    def _drafts(self, status: Status) -> str:
        drafted, accepted = status.drafted_tokens, status.accepted_tokens
        text = draft_text(drafted - self._drafted_tokens, accepted - self._accepted_tokens)
        self._drafted_tokens, self._accepted_tokens = drafted, accepted
        return text
