"""What plain torch asks of its fused kernels, and what windows and sinks change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers import attention_torch
from sluice_runtime.layers.attention import AttentionRule, TokenLayout
from sluice_runtime.layers.attention_torch import TorchAttention, _extend
from sluice_runtime.layers.rope import Angles
from torch import Tensor

from tests.runtime.layers.layouts import Row, layout

HEADS, KV_HEADS, TOKENS, CONTEXT, DIM = 6, 2, 3, 7, 8
ROWS: tuple[Row, ...] = ((40, 40), (7, 30), (5, 5), (1, 1), (1, 17), (1, 100), (1, 12))
"""Three rows extend, of which two begin; four decode."""


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "grouped"),
    [
        ("cpu", torch.float32, True, True),
        ("meta", torch.bfloat16, False, True),
        ("meta", torch.float32, False, False),
    ],
)
def test_on_gpus_heads_are_repeated_where_no_fused_kernel_has_groups(
    device: str, dtype: torch.dtype, masked: bool, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, bool]] = []
    attend = F.scaled_dot_product_attention

    def spy(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        asked.append((k.shape[1], options["enable_gqa"]))
        return attend(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    tokens = TOKENS if masked else CONTEXT
    queries = torch.zeros(tokens, HEADS, DIM, dtype=dtype, device=device)
    keys = torch.zeros(CONTEXT, KV_HEADS, DIM, dtype=dtype, device=device)
    mask = torch.zeros(tokens, CONTEXT, dtype=dtype, device=device) if masked else None
    assert _extend(queries, keys, keys, mask, 0.5).shape == queries.shape
    assert asked == [(KV_HEADS if grouped else HEADS, grouped)]


def test_on_gpus_nothing_is_repeated_beside_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[tuple[torch.Size, torch.Size]] = []

    def spy(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor, scale: float) -> Tensor:
        shapes.append((q.shape, k.shape))
        return torch.empty_like(q)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    queries = torch.zeros(TOKENS, HEADS, DIM, device="meta")
    keys = torch.zeros(CONTEXT, KV_HEADS, DIM, device="meta")
    mask = torch.zeros(HEADS // KV_HEADS * TOKENS, CONTEXT, device="meta")
    assert _extend(queries, keys, keys, mask, 0.5).shape == queries.shape
    assert shapes == [((1, KV_HEADS, 9, DIM), (1, KV_HEADS, CONTEXT, DIM))]


def attended(
    where: TokenLayout, page_size: int, rule: AttentionRule | None
) -> tuple[Tensor, Tensor, PagePool]:
    """Queries and outputs [n, head, dim] of a step, and the pool with its keys and values."""
    attention, qkv = step_of(where, page_size, rule)
    return qkv[:, :HEADS], attention.attend(1, qkv, None), attention._pool


def step_of(
    where: TokenLayout, page_size: int, rule: AttentionRule | None
) -> tuple[TorchAttention, Tensor]:
    """Over a pool of random numbers, and queries, keys and values."""
    torch.manual_seed(0)
    pages = where.page_table.numel()
    pool = PagePool(KvShape(2, KV_HEADS, DIM, torch.float32), pages, page_size)
    pool.data.copy_(torch.randn(pool.data.shape))
    qkv = torch.randn(len(where.pages), HEADS + 2 * KV_HEADS, DIM)
    return TorchAttention(pool, where, unturned(len(qkv)), rule), qkv


def unturned(tokens: int) -> Angles:
    return Angles(torch.ones(tokens, DIM // 2), torch.zeros(tokens, DIM // 2))


def one_by_one(where: TokenLayout, queries: Tensor, pool: PagePool, rule: AttentionRule) -> Tensor:
    """Each head of each token alone, as the models' papers have it."""
    out, numbers, group = torch.empty_like(queries), where.numbers, HEADS // KV_HEADS
    for i, row in enumerate(numbers.rows.tolist()):
        keys, values = pool.gather(1, where.page_table[row])
        begin, end = numbers.begins[i : i + 2].tolist()
        for token in range(begin, end):
            last = int(numbers.contexts[i]) - (end - token) + 1
            seen = slice(max(0, last - (rule.window_tokens or last)), last)
            for head in range(HEADS):
                scores = keys[seen, head // group] @ queries[token, head] * DIM**-0.5
                weights = scores.exp()
                total = weights.sum()
                if 1 in rule.sinks:
                    total = total + rule.sinks[1][head].exp()
                out[token, head] = weights / total @ values[seen, head // group]
    return out


SINKS = {1: torch.tensor([0.5, -1.0, 2.0, 0.0, 3.0, -9.0])}
RULES = [
    AttentionRule(),
    AttentionRule(window_tokens=12),
    AttentionRule(window_tokens=1),
    AttentionRule(window_tokens=17, sinks=SINKS),
    AttentionRule(window_tokens=1000, sinks=SINKS),
    AttentionRule(sinks=SINKS),
    AttentionRule(sinks={0: torch.ones(HEADS)}),
]


@pytest.mark.parametrize("rule", RULES, ids=range(len(RULES)))
@pytest.mark.parametrize("page_size", [1, 16])
def test_windows_and_sinks_are_those_of_each_token(page_size: int, rule: AttentionRule) -> None:
    where = layout(page_size, ROWS, extends=3)
    queries, seen, pool = attended(where, page_size, rule)
    torch.testing.assert_close(seen, one_by_one(where, queries, pool, rule))


@pytest.mark.parametrize("rule", RULES, ids=range(len(RULES)))
@pytest.mark.parametrize("mask_bytes", [1, 3000, 1 << 20], ids=["single tokens", "pieces", "whole"])
def test_on_gpus_pieces_are_the_whole(
    mask_bytes: int, rule: AttentionRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a GPU computes them, here on a CPU."""
    where = layout(16, ROWS, extends=3)
    wanted = attended(where, 16, rule)[1]
    made: list[int] = []
    causal_mask = attention_torch._causal_mask

    def spy(*arguments: Any) -> Tensor:
        mask = causal_mask(*arguments)
        made.append(mask.nbytes * HEADS // KV_HEADS)
        return mask

    monkeypatch.setattr(attention_torch, "_on_cpu", lambda _: False)
    monkeypatch.setattr(attention_torch, "MASK_BYTES", mask_bytes)
    monkeypatch.setattr(attention_torch, "_causal_mask", spy)
    torch.testing.assert_close(attended(where, 16, rule)[1], wanted)
    one_token = 3 * 48 * 4
    assert made
    assert all(size <= max(mask_bytes, one_token) for size in made)


def test_masks_are_made_once_a_step_unless_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []
    causal_mask = attention_torch._causal_mask

    def spy(*arguments: Any) -> Tensor:
        made.append(causal_mask(*arguments))
        return made[-1]

    monkeypatch.setattr(attention_torch, "_causal_mask", spy)
    for mask_bytes, masks in ((1 << 20, 3), (1, 2 * (40 + 7 + 5))):
        made.clear()
        monkeypatch.setattr(attention_torch, "MASK_BYTES", mask_bytes)
        attention, qkv = step_of(layout(16, ROWS, extends=3), 16, RULES[-2])
        for _ in range(2):
            attention.attend(1, qkv, None)
        assert len(made) == masks


def test_on_gpus_decode_rows_are_one_span(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each span costs several launches, in each layer."""
    where = layout(16, ((1, 2000),) * 16, extends=0)
    assert len(step_of(where, 16, None)[0]._decodes) == 4
    monkeypatch.setattr(attention_torch, "_on_cpu", lambda _: False)
    assert len(step_of(where, 16, None)[0]._decodes) == 1


def test_a_window_is_the_same_however_a_step_is_divided() -> None:
    """Each token as a row of its own, as graphs have it; and the first row before the others."""
    rule, where = AttentionRule(window_tokens=12, sinks=SINKS), layout(16, ROWS, extends=3)
    attention, qkv = step_of(where, 16, rule)
    wanted, pool = attention.attend(1, qkv, None), attention._pool
    numbers = where.numbers.of_single_tokens()
    rows, begins, contexts = map(torch.from_numpy, (numbers.rows, numbers.begins, numbers.contexts))
    apart = replace(where, rows=rows, begins=begins, contexts=contexts, extends=0, numbers=numbers)
    assert torch.allclose(attended(apart, 16, rule)[1], wanted, atol=1e-6)
    first, others = where.after_row(1)
    tokens = len(first.pages)
    for part, own in ((first, slice(0, tokens)), (others, slice(tokens, None))):
        # Its keys and values are in the pool already: the same are stored again.
        attention = TorchAttention(pool, part, unturned(len(part.pages)), rule)
        seen = attention.attend(1, qkv[own], None)
        torch.testing.assert_close(seen, wanted[own])


def test_of_a_long_context_a_window_reads_its_own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    where = layout(16, ((70, 2100), (1, 2000)), extends=1)
    gathered: list[int] = []
    gather = PagePool.gather

    def spy(pool: PagePool, layer: int, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        gathered.append(page_ids.numel())
        return gather(pool, layer, page_ids)

    rule = AttentionRule(window_tokens=33)
    monkeypatch.setattr(PagePool, "gather", spy)
    queries, seen, pool = attended(where, 16, rule)
    assert gathered == [8, 3], "102 tokens, the first of them the 15th of its page, and 33"
    monkeypatch.undo()
    torch.testing.assert_close(seen, one_by_one(where, queries, pool, rule))
