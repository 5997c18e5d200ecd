"""Rotation and paged attention agree with their references, whatever the shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from sluice_kernels import native, reference
from torch import Tensor

from tests.pairwise import matrix

LAYERS = 2
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2}
Rows = list[tuple[int, int]]
"""(query tokens, context) of each row."""

DECODES: Rows = [(1, 1), (1, 15), (1, 16), (1, 17), (1, 63), (1, 64), (1, 65), (1, 300)]
EXTENDS: Rows = [(70, 70), (5, 40), (33, 100), (2, 2), (64, 192)]
ROWS = {"decode": DECODES, "extend": EXTENDS, "mixed": [*EXTENDS, *DECODES], "one": [(1, 130)]}


@dataclass(frozen=True)
class Heads:
    queries: int
    keys: int
    dim: int

    def __str__(self) -> str:
        return f"{self.queries}q{self.keys}k{self.dim}d"


HEADS = [
    Heads(8, 4, 64),
    Heads(4, 4, 128),
    Heads(6, 2, 24),
    Heads(8, 1, 80),
    Heads(5, 1, 64),
    Heads(4, 2, 32),
    Heads(4, 2, 96),
    Heads(2, 1, 256),
]


@dataclass(frozen=True)
class Step:
    queries: Tensor
    pool: Tensor
    layer: int
    page_table: Tensor
    rows: Tensor
    begins: Tensor
    contexts: Tensor
    scale: float

    def arguments(self) -> tuple[Tensor, Tensor, int, Tensor, Tensor, Tensor, Tensor, float]:
        return (self.queries, self.pool, self.layer, self.page_table, self.rows, self.begins,
                self.contexts, self.scale)  # fmt: skip


def step(rows: Rows, heads: Heads, page_size: int, dtype: torch.dtype) -> Step:
    """Pages in shuffled order; whatever no row may read is NaN."""
    torch.manual_seed(0)
    needed = [-(-context // page_size) for _, context in rows]
    pool = torch.full(
        (sum(needed) + 1, LAYERS, 2, page_size, heads.keys, heads.dim), float("nan"), dtype=dtype
    )
    order = torch.randperm(sum(needed))
    table = torch.full((len(rows) + 3, max(needed)), sum(needed))
    numbers = torch.randperm(len(rows) + 3)[: len(rows)]
    for number, pages, (_, context) in zip(numbers, needed, rows, strict=True):
        mine, order = order[:pages], order[pages:]
        table[number, :pages] = mine
        positions = torch.arange(context)
        drawn = torch.randn(context, 2, heads.keys, heads.dim).to(dtype)
        pool[mine[positions // page_size], 1, :, positions % page_size] = drawn
    tokens = [count for count, _ in rows]
    return Step(
        queries=torch.randn(sum(tokens), heads.queries, heads.dim).to(dtype),
        pool=pool,
        layer=1,
        page_table=table,
        rows=numbers,
        begins=torch.tensor([0, *tokens]).cumsum(0),
        contexts=torch.tensor([context for _, context in rows]),
        scale=heads.dim**-0.5,
    )


def distance(actual: Tensor, wanted: Tensor) -> float:
    """Root of the mean square of what they differ by, as a part of `wanted`'s."""
    return float((actual.float() - wanted).norm() / wanted.norm())


def assert_close(actual: Tensor, wanted: Tensor, within: float, isa: str) -> None:
    torch.testing.assert_close(
        actual, wanted, atol=within, rtol=within, msg=lambda text: f"{isa}: {text}"
    )


@pytest.mark.parametrize(
    ("kind", "heads", "page_size", "dtype"),
    matrix(ROWS, HEADS, (1, 16, 48), TOLERANCE, others=pytest.mark.full),
    ids=str,
)
def test_every_row_attends_to_its_own_past(
    isas: Iterator[str], kind: str, heads: Heads, page_size: int, dtype: torch.dtype
) -> None:
    arguments = step(ROWS[kind], heads, page_size, dtype).arguments()
    wanted = reference.paged_attention(*arguments)
    for isa in isas:
        assert_close(native.paged_attention(*arguments), wanted, TOLERANCE[dtype], isa)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_scores_that_grow_and_scores_far_apart_are_weighed_right(
    isas: Iterator[str], dtype: torch.dtype
) -> None:
    given = step([(1, 200), (40, 200)], Heads(4, 2, 64), 16, dtype)
    given.pool.mul_(8)
    wanted = reference.paged_attention(*given.arguments())
    assert wanted.isfinite().all()
    for isa in isas:
        actual = native.paged_attention(*given.arguments())
        assert_close(actual, wanted, 8 * TOLERANCE[dtype], isa)


@pytest.mark.parametrize(
    ("kind", "heads"), matrix(ROWS, HEADS, others=pytest.mark.full, together=1), ids=str
)
def test_bfloat16_is_as_near_as_its_rounding(isas: Iterator[str], kind: str, heads: Heads) -> None:
    """Outputs over many tokens are small: a lost token hides in an absolute tolerance."""
    given = step(ROWS[kind], heads, 16, torch.bfloat16)
    exact = replace(given, queries=given.queries.float(), pool=given.pool.float())
    wanted = reference.paged_attention(*exact.arguments())
    for isa in isas:
        actual = native.paged_attention(*given.arguments())
        assert distance(actual, wanted) < 4e-3, isa


def test_a_row_without_numbers_disturbs_no_other(isas: Iterator[str]) -> None:
    given = step([(1, 20), (1, 90), (30, 70)], Heads(4, 2, 64), 16, torch.bfloat16)
    wanted = reference.paged_attention(*given.arguments())
    given.queries[1] = float("nan")
    others = [0, *range(2, 32)]
    for isa in isas:
        actual = native.paged_attention(*given.arguments())
        assert actual[1].isnan().all(), isa
        assert_close(actual[others], wanted[others], 2e-2, isa)


def test_threads_do_not_change_a_result(isas: Iterator[str]) -> None:
    arguments = step(ROWS["mixed"], Heads(8, 4, 64), 16, torch.bfloat16).arguments()
    threads = torch.get_num_threads()
    for isa in isas:
        alone = native.paged_attention(*arguments)
        torch.set_num_threads(3)
        shared = native.paged_attention(*arguments)
        torch.set_num_threads(threads)
        assert torch.equal(alone, shared), isa


@pytest.mark.usefixtures("isas")
def test_the_library_shares_work_among_threads() -> None:
    """Compiled without OpenMP it would compute the same, on one thread."""
    assert b"GOMP_parallel" in native.LIBRARY.read_bytes()


@pytest.mark.parametrize(
    ("heads", "normed", "dtype"),
    matrix(HEADS, [True, False], TOLERANCE, others=pytest.mark.full),
    ids=str,
)
def test_rotation_stores_where_it_is_told(
    isas: Iterator[str], heads: Heads, normed: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    n, page_size = 37, 16
    qkv = torch.randn(n, heads.queries + 2 * heads.keys, heads.dim).to(dtype)
    weight = torch.rand(heads.queries + heads.keys, heads.dim).to(dtype) + 0.5
    angles = torch.randn(n, heads.dim // 2)
    slots = torch.randperm(5 * page_size)[:n]
    where = slots // page_size, slots % page_size
    numbers = qkv, weight if normed else None, 1e-6, angles.cos(), angles.sin()
    wanted_pool = torch.zeros(5, LAYERS, 2, page_size, heads.keys, heads.dim, dtype=dtype)
    wanted = reference.rotate_and_store(*numbers, wanted_pool, 1, *where)
    for isa in isas:
        pool = torch.zeros_like(wanted_pool)
        queries = native.rotate_and_store(*numbers, pool, 1, *where)
        assert_close(queries, wanted, TOLERANCE[dtype], isa)
        assert_close(pool, wanted_pool, TOLERANCE[dtype], isa)
        assert not pool[:, 0].any(), isa


def test_tensors_of_other_shapes_are_refused(isas: Iterator[str]) -> None:
    given = step([(1, 20)], Heads(4, 2, 64), 16, torch.bfloat16)
    others: tuple[Any, ...] = given.arguments()[1:]
    for _ in isas:
        with pytest.raises(RuntimeError, match="queries"):
            native.paged_attention(given.queries.float(), *others)
        with pytest.raises(RuntimeError, match="queries"):
            native.paged_attention(given.queries[:, :3].contiguous(), *others)
