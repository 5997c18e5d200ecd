"""What plain torch gathers in a long context is counted before the KV pool is sized."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from sluice_runtime.engine.sizing.gpu_plan import MIB, ModelBytes
from sluice_runtime.kv.pool import KvScales, KvShape, PagePool
from sluice_runtime.layers.attention import AttentionRule
from sluice_runtime.layers.attention_torch import TorchAttention
from sluice_runtime.layers.rope import Angles
from torch import Tensor

from tests.runtime.engine.sizing.test_gpu_plan import META, MODELS, Peak, question
from tests.runtime.layers.layouts import Row, layout

# Tensors without values make torch import what transformers imports too: seconds, for one worker.
pytestmark = pytest.mark.xdist_group("transformers")

LONG = 131_072
ROWS: dict[str, tuple[Row, ...]] = {
    "a chunk": ((4096, LONG),),
    "a row": ((1, LONG),),
    "400 rows": ((1, 2000),) * 400,
}


@pytest.mark.parametrize("name", ["gpt-oss-20b", "Gemma-3-27B"])
@pytest.mark.parametrize("pages", [None, 1], ids=["16 bits", "8 bits"])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_attention_that_gathers_takes_no_more_than_its_bound(
    name: str, pages: int | None, rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda q, *_, **__: torch.empty_like(q)
    )
    model = MODELS[name][0]
    scales = KvScales(*torch.full((2, 1, model.kv_heads), 0.5)) if pages else None
    shape = KvShape(1, model.kv_heads, model.head_dim, torch.bfloat16, scales)
    where = layout(16, rows, extends=int(rows[0][0] > 1))
    tensors = {f.name: getattr(where, f.name) for f in fields(where)}
    on_device: dict[str, Any] = {k: t.to(META) for k, t in tensors.items() if isinstance(t, Tensor)}
    where, tokens = replace(where, **on_device), len(where.pages)
    heads = model.heads + 2 * model.kv_heads
    qkv = torch.empty(tokens, heads, model.head_dim, dtype=torch.bfloat16, device=META)
    angles = Angles(*torch.empty(2, tokens, model.head_dim // 2, device=META))
    pool = PagePool(shape, where.page_table.numel(), 16, META)
    sinks = {0: torch.empty(model.heads, device=META)} if name == "gpt-oss-20b" else {}
    kept = []
    with Peak() as peak:
        for window in (None, 1024):
            rule = AttentionRule(window_tokens=window, sinks=sinks)
            kept.append(TorchAttention(pool, where, angles, rule))
            kept[-1].attend(0, qkv, None)
    # Queries and outputs, in turn, are the measured step's.
    queries = 6 * tokens * heads * (model.head_dim + 8) * 2
    bound = ModelBytes(model, 2, kv_itemsize=pages).gathered(LONG)
    assert peak.bytes <= bound + queries


def test_a_pool_leaves_memory_for_a_long_context() -> None:
    plain = question("gpt-oss-20b", "", 80, 1)
    gathering = replace(plain, gathers=True, context_tokens=LONG)
    more = gathering.least_reserved - plain.least_reserved
    # Keys and values of 8 heads of 64, those with a sink of 72, and four masks.
    assert more == LONG * 8 * 2 * (2 * 64 + 2 * 72) + 4 * 128 * MIB
