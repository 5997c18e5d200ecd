"""The engine's log lines, in the form that operators of serving engines know.

Formats values; decides only how often decode steps are worth a line.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Final

from sluice_runtime.engine.pace import Pace
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.pacing import PaceStatus
from sluice_runtime.scheduler.status import Status

DECODE_LINE_STEPS: Final = 40
"""Decode steps that share one line, at least."""
DECODE_LINE_SECONDS: Final = 1.0
"""Between two such lines, at least: a small model makes hundreds of steps a second."""

logger = logging.getLogger("sluice.engine")


@dataclass(frozen=True)
class Sizes:
    """The numbers in the start-up line."""

    max_total_tokens: int
    chunk_size: int
    max_prefill_tokens: int
    max_running_requests: int
    context_length_tokens: int
    available_bytes: int


def startup_line(sizes: Sizes) -> str:
    return (
        f"max_total_num_tokens={sizes.max_total_tokens}, chunked_prefill_size={sizes.chunk_size}, "
        f"max_prefill_tokens={sizes.max_prefill_tokens}, "
        f"max_running_requests={sizes.max_running_requests}, "
        f"context_len={sizes.context_length_tokens}, "
        f"available_gpu_mem={sizes.available_bytes / 2**30:.2f} GB"
    )


def prefill_line(batch: Batch, status: Status) -> str:
    """`#running-req` counts the decode rows of the same step: above 0, mixing is on."""
    return (
        f"Prefill batch. #new-seq: {len(batch.extend_rows)}, #new-token: {batch.extend_tokens}, "
        f"#cached-token: {batch.cached_tokens}, token usage: {status.usage_ratio:.2f}, "
        f"#running-req: {len(batch.decode_rows)}, #queue-req: {status.queued_requests}"
    )


def pace_text(pace: PaceStatus) -> str:
    """Empty when the chunk is fixed."""
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
    """None when no prompt is cut."""
    if (cut := status.prefilling) is None:
        return None
    return (
        f"Chunked prefill. rid: {cut.request_id}, #done-token: {cut.computed_tokens}, "
        f"#total-token: {cut.total_tokens}"
    )


def decode_line(batch: Batch, status: Status, page_size: int, rate: float) -> str:
    held = (status.pages_total - status.pages_available) * page_size
    return (
        f"Decode batch. #running-req: {len(batch.decode_rows)}, #token: {held}, "
        f"token usage: {status.usage_ratio:.2f}, gen throughput (token/s): {rate:.2f}, "
        f"#queue-req: {status.queued_requests}"
    )


class StepLog:
    """Writes a line for every step that prefills, and one for many that only decode."""

    def __init__(self, page_size: int, pace: Pace) -> None:
        self._page_size = page_size
        self._pace = pace
        self._decode_steps = 0
        self._last_seconds = -math.inf
        """When the last decode line was written."""

    def step(self, batch: Batch, status: Status, now_seconds: float) -> None:
        """After the step; `status` is as the step left it."""
        if batch.extend_rows:
            rest = admission_text(status) + pace_text(status.pace)
            logger.info(prefill_line(batch, status) + rest)
            if line := chunk_line(status):
                logger.info(line)
            return
        if not batch.decode_rows:
            return
        self._decode_steps += 1
        since = now_seconds - self._last_seconds
        if self._decode_steps >= DECODE_LINE_STEPS and since >= DECODE_LINE_SECONDS:
            self._decode_steps, self._last_seconds = 0, now_seconds
            rate = self._pace.take_decode_rate(now_seconds)
            logger.info(decode_line(batch, status, self._page_size, rate))
