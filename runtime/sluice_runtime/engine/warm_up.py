"""One small prefill and one decode step before the engine is ready.

What torch and its libraries set up at first use is then paid by the start and not by the first
request. Goes round the scheduler, which knows of no step yet; leaves the row and its pages free.
"""

from __future__ import annotations

from typing import Final, Protocol

from sluice_runtime.messages import Sampling
from sluice_runtime.scheduler.batch import (
    Batch,
    ExtendRow,
    ForwardMode,
    PagesAppended,
    RowAdded,
    SampledTokens,
)
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.pages import pages_for

PROMPT_TOKENS: Final = 16
"""Enough for the kernels of matrices; more would cost time and set up nothing else."""

_ROW: Final = 0


class Forward(Protocol):
    """Whatever runs a batch."""

    def forward(self, batch: Batch) -> SampledTokens:
        """One token for each of the batch's sampling rows."""
        ...


def warm_up(runner: Forward, limits: Limits, page_size: int) -> None:
    """Runs the steps in row 0 and the first pages. Where one token more than a prompt does not fit,
    it does nothing."""
    room = min(limits.context_length_tokens, limits.kv_pool_tokens) - 1
    prompt = (0,) * min(PROMPT_TOKENS, room)
    if not prompt:
        return
    pages = tuple(range(pages_for(len(prompt) + 1, page_size)))
    runner.forward(
        Batch(
            step=0,
            mode=ForwardMode.EXTEND,
            added_rows=(RowAdded(_ROW, "warm-up", Sampling()),),
            appended_pages=(PagesAppended(_ROW, pages),),
            extend_rows=(ExtendRow(_ROW, 0, prompt, samples=True),),
        )
    )
    runner.forward(Batch(step=0, mode=ForwardMode.DECODE, decode_rows=(_ROW,)))
    runner.forward(Batch(step=0, mode=ForwardMode.IDLE, dropped_rows=(_ROW,)))
