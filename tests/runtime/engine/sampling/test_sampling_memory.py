"""Sampling takes no more memory than planned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sluice_runtime.engine.sampling import memory
from sluice_runtime.engine.sampling.draw import SamplingTable, TableSize
from sluice_runtime.engine.sampling.memory import sampling_bytes
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.layers.draw import Draws, draw
from sluice_runtime.scheduler.batch import Batch, ForwardMode, RowAdded
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.wire.messages import Sampling
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")
ROWS, VOCABULARY, CONTEXT = 12, 20_000, 20_000
WORST = {"top_p": 0.9999, "min_p": 1e-9, "presence_penalty": 1.0, "repetition_penalty": 1.2}
LISTED = {"temperature": 0.0, "presence_penalty": 1.0, "repetition_penalty": 1.2}
MANY = tuple(range(ROWS))
HISTORY = key_of(range(CONTEXT))


def table_of(sampling: dict[str, Any], backend: Backend = TORCH) -> SamplingTable:
    table = SamplingTable(TableSize(ROWS, VOCABULARY, CONTEXT), backend=backend)
    added = tuple(
        RowAdded(row, str(row), Sampling(**sampling), CONTEXT, HISTORY, logprobs=20) for row in MANY
    )
    table.apply(Batch(1, ForwardMode.EXTEND, added_rows=added))
    return table


def step(table: SamplingTable, logits: torch.Tensor) -> torch.Tensor:
    """The sampling of the runner, without a grammar."""
    assert table.logprobs is not None
    logprobs = table.logprobs.capture(logits, MANY)
    tokens = table.sample(logits, MANY, np.full(ROWS, CONTEXT))
    assert logprobs is not None
    logprobs.scores_of(tokens)
    return tokens


def max_bytes(work: Callable[[], object]) -> int:
    """Peak memory of the tensors that `work` makes."""
    with (
        torch.inference_mode(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as p,
    ):
        work()
    events = [event for event in p.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.parametrize("at_once", [ROWS, 5])
@pytest.mark.parametrize("sampling", [WORST, WORST | {"top_k": VOCABULARY}, LISTED])
def test_no_request_makes_a_step_take_more_memory_than_planned(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], at_once: int
) -> None:
    monkeypatch.setattr(memory, "WORK_AT_ONCE_BYTES", memory.WORK_BYTES * VOCABULARY * at_once)
    table = table_of(sampling)
    logits = torch.randn(ROWS, VOCABULARY) / 100
    step_bytes = max_bytes(lambda: step(table, logits)) + logits.nbytes
    penalties = table._penalties
    held_bytes = penalties._counts.nbytes + penalties._tokens.nbytes
    assert held_bytes == memory.TABLE_BYTES * ROWS * (VOCABULARY + CONTEXT + 1)
    planned = sampling_bytes(ROWS, VOCABULARY, CONTEXT)
    assert 0.7 * planned < step_bytes + held_bytes <= planned


def test_rows_sampled_in_blocks_get_the_same_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logits = torch.randn(ROWS, VOCABULARY)
    together, apart = table_of(WORST), table_of(WORST)
    wanted = [step(together, logits.clone()).tolist() for _ in range(3)]
    monkeypatch.setattr(memory, "WORK_AT_ONCE_BYTES", memory.WORK_BYTES * VOCABULARY * 5)
    assert [step(apart, logits.clone()).tolist() for _ in range(3)] == wanted


def test_with_a_very_large_vocabulary_rows_are_sampled_one_by_one() -> None:
    assert memory.rows_at_once(1 << 30) == 1


@pytest.mark.parametrize(
    ("sampling", "blocks"),
    [
        ({"temperature": 0.0}, 1),
        ({"temperature": 0.0, "top_p": 0.9, "logit_bias": [(3, 1.5)]}, 1),
        ({"temperature": 0.0, "presence_penalty": 0.5}, 3),
        ({}, 3),
    ],
)
def test_rows_that_need_no_memory_are_one_block(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], blocks: int
) -> None:
    monkeypatch.setattr(memory, "WORK_AT_ONCE_BYTES", memory.WORK_BYTES * VOCABULARY * 5)
    rows: list[int] = []

    def counted(logits: torch.Tensor, draws: Draws | None) -> torch.Tensor:
        rows.append(len(logits))
        return draw(logits, draws)

    table, logits = (
        table_of(sampling, replace(TORCH, draw=counted)),
        torch.randn(ROWS, VOCABULARY),
    )
    small = max_bytes(lambda: table.sample(logits, MANY, np.full(ROWS, CONTEXT)))
    assert (len(rows), sum(rows)) == (blocks, ROWS)
    assert blocks > 1 or small < VOCABULARY


@pytest.mark.parametrize(
    ("sampling", "blocks"), [({}, 1), ({"top_p": 0.9, "top_k": 5, "min_p": 0.1}, 1), (WORST, 3)]
)
def test_a_kernel_for_whole_rows_needs_blocks_for_penalties_alone(
    monkeypatch: pytest.MonkeyPatch, sampling: dict[str, Any], blocks: int
) -> None:
    monkeypatch.setattr(memory, "WORK_AT_ONCE_BYTES", memory.WORK_BYTES * VOCABULARY * 5)
    rows: list[int] = []

    def kernel(logits: torch.Tensor, numbers: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        assert numbers.shape == (len(logits),)
        rows.append(len(logits))
        return torch.zeros(len(logits), dtype=torch.int64)

    table = table_of(sampling, replace(TORCH, sample_rows=kernel))
    table.sample(torch.zeros(ROWS, VOCABULARY), MANY, np.full(ROWS, CONTEXT))
    assert (len(rows), sum(rows)) == (blocks, ROWS)
