"""A decode step that graphs compute costs the host few operations, however many rows it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from sluice_runtime.engine.device import STAGING_BUFFERS
from sluice_runtime.scheduler.batch import NO_TOKEN

from benchmarks.host_step import HostSteps, flashinfer_without_kernels, operations

MOST_OPERATIONS = 10
"""Operations of torch in a step: the copy of its rows, the kernel that makes its inputs, two
graphs, the copy of its tokens, and what flashinfer's plan makes."""
MOST_TO_SEND_PAGES = 5
PAGE_TOKENS = 512
"""Tokens of a page: so many that a few steps begin none."""


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    operations(lambda: torch.zeros(1), 1)  # torch imports what it needs for counting
    with flashinfer_without_kernels() as library:
        yield library
    torch.set_num_threads(threads)


@pytest.mark.parametrize("rows", [64, 256])
def test_a_decode_step_is_few_operations(rows: int, library: Any) -> None:
    site = HostSteps(rows, 10, library, PAGE_TOKENS)
    replays, graph_steps = site.replays, site.runner.graph_steps
    seen = operations(site.loop.step, 4)
    assert site.runner.graph_steps == (graph_steps or 0) + 4
    assert site.replays == replays + 2 * 4, "layers, then sampling"
    assert (seen.total() + 2 * 4) / 4 <= MOST_OPERATIONS, seen


def test_new_pages_are_sent_in_few_more(library: Any) -> None:
    """However many rows begin one."""
    site = HostSteps(64, STAGING_BUFFERS + 4, library, page_size=1)
    for _ in range(STAGING_BUFFERS):  # each is allocated when it is first used
        site.loop.step()
    seen = operations(site.loop.step, 4)
    assert (seen.total() + 2 * 4) / 4 <= MOST_OPERATIONS + MOST_TO_SEND_PAGES, seen


@torch.inference_mode()
def test_a_row_without_a_distribution_keeps_a_token_that_can_be_computed(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in a step that was launched ahead; see `Runner._sample`."""
    runner = HostSteps(2, 10, library).runner
    drawn = torch.tensor([NO_TOKEN, 5])
    monkeypatch.setattr(runner._sampling, "draw_rows", lambda *_: drawn)
    rows = torch.tensor([1, 0], dtype=torch.int32)
    tokens = runner._sample_whole(torch.zeros(2, 8), rows, rows)
    assert tokens.tolist() == [NO_TOKEN, 5]
    assert runner._rows.last_tokens[:2].tolist() == [5, 0]
