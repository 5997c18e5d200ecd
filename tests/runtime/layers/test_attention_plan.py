"""What the wrappers plan with says exactly which pages and tokens each row has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.attention_plan import (
    PlanPart,
    PrefillKernels,
    page_indices,
    parts_of,
    prefill_kernels,
)

from tests.runtime.layers.layouts import Row, layout

EXTEND = st.tuples(st.integers(1, 40), st.integers(0, 90)).map(lambda row: (row[0], sum(row)))
DECODE = st.integers(1, 90).map(lambda context: (1, context))


def covered(where: TokenLayout, part: PlanPart, page_size: int) -> list[tuple[list[int], int, int]]:
    """By row of the part, as the wrappers read a plan: its pages, tokens and queries."""
    plan, indices = part.plan, page_indices(where, part, page_size).tolist()
    rows = []
    for row in range(plan.rows):
        first, last = plan.kv_indptr[row : row + 2]
        tokens = (last - first - 1) * page_size + plan.last_page_len[row]
        queries = plan.qo_indptr[row + 1] - plan.qo_indptr[row]
        rows.append((indices[first:last], int(tokens), int(queries)))
    return rows


@given(st.lists(EXTEND, max_size=4), st.lists(DECODE, max_size=5), st.sampled_from([1, 4, 16]),
       st.sampled_from(["fa2", "fa3"]))  # fmt: skip
def test_the_parts_of_a_step_are_all_of_its_rows(
    extends: list[Row], decodes: list[Row], page_size: int, kernels: PrefillKernels
) -> None:
    if not (rows := [*extends, *decodes]):
        return
    where = layout(page_size, rows, len(extends))
    parts = parts_of(where.numbers, len(extends), page_size, 4, kernels)
    seen = [row for part in parts for row in covered(where, part, page_size)]
    for (pages, tokens, queries), row, (count, context) in zip(
        seen, where.numbers.rows, rows, strict=True
    ):
        assert (tokens, queries) == (context, count)
        assert pages == where.page_table[row, : -(-context // page_size)].tolist()
    assert [part.tokens.start for part in parts] == [0, *(part.tokens.stop for part in parts)][:-1]
    assert parts[-1].tokens.stop == int(where.begins[-1])
    for part in parts:
        assert part.kind == kernels or set(np.diff(part.plan.qo_indptr)) == {1}
        plan = part.plan
        assert plan.qo_indptr[0] == plan.kv_indptr[0] == 0
        for numbers in (plan.qo_indptr, plan.kv_indptr, plan.last_page_len):
            assert numbers.dtype == np.int32


@pytest.mark.parametrize(
    ("extends", "decodes", "kernels", "kinds"),
    [
        (1, 0, "fa3", ["fa3"]),
        (0, 3, "fa3", ["decode"]),
        (1, 256, "fa2", ["fa2", "decode"]),
        (1, 20, "fa2", ["fa2"]),
        (1, 20, "fa3", ["fa3", "decode"]),
    ],
)
def test_decode_rows_join_a_prompt_only_where_its_tiles_stay_large(
    extends: int, decodes: int, kernels: PrefillKernels, kinds: list[str]
) -> None:
    where = layout(16, [(512, 512)] * extends + [(1, 40)] * decodes, extends)
    parts = parts_of(where.numbers, extends, 16, 4, kernels)
    assert [part.kind for part in parts] == kinds


@pytest.mark.parametrize(
    ("queries", "heads", "kernels"),
    [
        # Blocks of 128 queries of a head; 132 multiprocessors take two each.
        ([256], 32, "fa2"),
        ([1024], 32, "fa2"),
        ([1025], 32, "fa3"),
        ([20] * 8, 32, "fa2"),
        ([20] * 9, 32, "fa3"),
        ([8192], 16, "fa3"),
    ],
)
def test_fa3_computes_prompts_that_fill_the_gpu(
    queries: list[int], heads: int, kernels: PrefillKernels
) -> None:
    rows = [(count, count + 100) for count in queries]
    where = layout(16, [*rows, (1, 40)], len(rows))
    assert prefill_kernels(where.numbers, len(rows), heads, 132) == kernels


def test_pages_are_gathered_without_waiting_for_the_device() -> None:
    """Under fake tensors every operation whose result's shape depends on values raises."""
    where = layout(16, [(3, 50), (1, 20)], 1)
    (part,) = parts_of(where.numbers, 1, 16, 64, "fa2")
    with torch._subclasses.FakeTensorMode() as fake:
        tensors: dict[str, Any] = {
            name: fake.from_tensor(value).to("cuda")
            for name, value in vars(where).items()
            if isinstance(value, torch.Tensor)
        }
        on_device = replace(where, **tensors)
        indices = page_indices(on_device, part, 16)
    assert (indices.device.type, indices.shape) == ("cuda", (part.plan.pages,))
