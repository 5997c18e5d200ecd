"""A head has what it needs of every token, whatever becomes of drafts and chunks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.eagle import _next_ids
from sluice_runtime.engine.rows import RowTable, host_inputs
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, ExtendRow, ForwardMode, VerifyRow

from tests.runtime.agreement.test_speculation_agrees import requests_of
from tests.runtime.eagle_folder import right_pair
from tests.runtime.harness import engine_config, run_engine


def test_each_token_is_followed_by_the_next_one_of_its_row() -> None:
    """What is drawn is not known yet, so there it does not matter."""
    pool = PagePool(KvShape(1, 1, 4, torch.float32), 4, 4)
    rows = RowTable(4, 4, pool, HostDevice(), clears_pages=False)
    chunk = ExtendRow(0, 0, (5, 6, 7), samples=False, next_token=8)
    prompt = ExtendRow(1, 0, (10, 11), samples=True)
    verified = VerifyRow(2, 3, (20, NO_TOKEN))
    prompts = (chunk, prompt)
    batch = Batch(1, ForwardMode.MIXED, extend_rows=prompts, verify_rows=(verified,))
    host = host_inputs(batch, rows)
    known = _next_ids(prompts, host).tolist()
    assert known[:3] == [6, 7, 8]
    assert known[3] == 11
    assert host.sampled_tokens.tolist() == [4, 5, 6]
    assert min(known) >= 0, "embeddings are looked up before"


@pytest.mark.parametrize("pages", ["auto", pytest.param("fp8_e4m3", marks=pytest.mark.process)])
def test_a_head_that_is_right_drafts_what_is_drawn(tmp_path: Path, pages: str) -> None:
    target, speculation = right_pair(tmp_path)
    requests = requests_of(20, 30)[1:5]  # one is greedy, the others draw
    without, drafting = (
        run_engine(
            engine_config(str(target), chunk_size=16, kv_cache_dtype=pages, **more), requests
        )
        for more in ({}, {"speculation": speculation})
    )
    assert drafting.tokens == without.tokens
    assert drafting.cuts
    assert drafting.accepted_tokens > 25
    assert drafting.drafted_tokens - drafting.accepted_tokens <= 4
