"""Runs steps before the engine is ready. So torch and its libraries are set up before the first
request, and a lack of memory ends the start.

Two steps. The first takes as much memory as requests can make a step take: a full chunk, and as
many rows as may run, all of them scored. It computes one layer of the model: every layer needs the
same memory, and on a CPU a full chunk through a large model takes minutes. The second decodes one
row through all layers, which also reads all weights from disk.

Does not use the scheduler; leaves rows and pages free.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Final, Protocol

from sluice_runtime.engine.sampling.memory import rows_at_once
from sluice_runtime.errors import OutOfMemoryError, StepOutOfMemoryError
from sluice_runtime.scheduler.batch import (
    Batch,
    ExtendRow,
    ForwardMode,
    PagesAppended,
    RowAdded,
    SampledTokens,
)
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Sampling

_GREEDY: Final = Sampling(temperature=0.0)
_COSTLIEST: Final = Sampling(top_p=0.9, presence_penalty=0.1, repetition_penalty=1.1)
"""Sampling parameters that take the most memory."""
_TOP_LOGPROBS: Final = 1


class WarmUpRunner(Protocol):
    """The part of `engine.runner.Runner` that is used here."""

    def forward(self, batch: Batch) -> SampledTokens:
        """One token for each of the batch's sampling rows."""
        ...

    def first_layer_only(self) -> AbstractContextManager[None]:
        """Context in which steps compute one layer of the model."""
        ...


def warm_up(runner: WarmUpRunner, settings: SchedulerSettings, vocabulary_size: int) -> None:
    """Runs the steps in the first rows and pages; nothing if the context or the pool cannot hold
    a prompt of one token and the token after it.

    Raises:
        OutOfMemoryError: a step ran out of memory.
    """
    rows = full_step(runner, settings, vocabulary_size)
    if not rows:
        return
    _run(runner, Batch(step=0, mode=ForwardMode.DECODE, decode_rows=rows[:1]))
    _run(runner, Batch(step=0, mode=ForwardMode.IDLE, dropped_rows=rows))


def full_step(
    runner: WarmUpRunner, settings: SchedulerSettings, vocabulary_size: int
) -> tuple[int, ...]:
    """Runs only the first step; returns its rows, which are not dropped yet.

    Raises:
        OutOfMemoryError: the step ran out of memory.
    """
    lengths = _prompt_lengths(settings)
    if lengths:
        with runner.first_layer_only():
            _run(runner, _largest_step(lengths, settings.page_size, rows_at_once(vocabulary_size)))
    return tuple(range(len(lengths)))


def _run(runner: WarmUpRunner, batch: Batch) -> None:
    try:
        error = runner.forward(batch).error
    except StepOutOfMemoryError as raised:
        error = str(raised)
    if error:
        raise OutOfMemoryError(f"warm-up: {error}")


def _prompt_lengths(settings: SchedulerSettings) -> list[int]:
    """Prompt lengths by row: one long prompt, and prompts of one token in all other rows that the
    pool holds."""
    page, limits = settings.page_size, settings.limits
    pool_pages, short_pages = limits.kv_pool_tokens // page, pages_for(2, page)
    rows = min(settings.max_running_requests, pool_pages // short_pages)
    if rows < 1 or limits.context_length_tokens < 2:
        return []
    step = settings.chunk_size or settings.max_prefill_tokens
    longest = max(step - (rows - 1), settings.min_prefill_tokens)
    left_tokens = (pool_pages - (rows - 1) * short_pages) * page
    return [min(longest, limits.context_length_tokens - 1, left_tokens - 1), *[1] * (rows - 1)]


def _largest_step(lengths: list[int], page_size: int, sampled_at_once: int) -> Batch:
    """Batch of the first step. Rows after the first `sampled_at_once` are greedy: sampling all rows
    in the costliest way would take no more memory, but many seconds with a large vocabulary."""
    samplings = (_COSTLIEST if row < sampled_at_once else _GREEDY for row in range(len(lengths)))
    return Batch(
        step=0,
        mode=ForwardMode.EXTEND,
        added_rows=tuple(
            RowAdded(row, "warm-up", sampling, 1, key_of([0]), logprobs=_TOP_LOGPROBS)
            for row, sampling in enumerate(samplings)
        ),
        appended_pages=_pages(lengths, page_size),
        extend_rows=tuple(
            ExtendRow(row, 0, (0,) * length, samples=True) for row, length in enumerate(lengths)
        ),
    )


def _pages(lengths: list[int], page_size: int) -> tuple[PagesAppended, ...]:
    """Pages for each row's prompt and one more token."""
    appended, first = [], 0
    for row, length in enumerate(lengths):
        end = first + pages_for(length + 1, page_size)
        appended.append(PagesAppended(row, tuple(range(first, end))))
        first = end
    return tuple(appended)
