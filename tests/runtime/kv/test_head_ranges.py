"""Pages of an engine of another number of ranks: every byte of every head is copied once."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from sluice_runtime.handover.transfer.registered import memory_at
from sluice_runtime.kv.host_blocks import HeadRange, PoolCopies, RankShare, head_ranges
from sluice_runtime.kv.pool import KvShape, PagePool
from torch import Tensor

SIZES = (1, 2, 4, 8)
PAGES, LAYERS, TOKENS, DIM = 5, 2, 3, 4
DIVIDED = [
    (parts, ranks, heads)
    for parts, ranks, heads in [*product(SIZES, SIZES, SIZES), (2, 3, 6), (3, 2, 6), (6, 4, 12)]
    if heads % parts == heads % ranks == 0
]
"""Ranks there, ranks here, key heads of the model. Engines refuse the rest at their start."""


@pytest.mark.parametrize(("parts", "ranks", "heads"), DIVIDED)
def test_each_head_has_one_place_in_the_parts_and_one_in_a_rank(
    parts: int, ranks: int, heads: int
) -> None:
    found = []
    for rank in range(ranks):
        for part, first, own, count in head_ranges(heads, parts, rank, ranks):
            assert 0 <= first < first + count <= heads // parts
            assert 0 <= own < own + count <= heads // ranks
            there = [part * (heads // parts) + first + at for at in range(count)]
            here = [rank * (heads // ranks) + own + at for at in range(count)]
            assert there == here
            found += there
    assert found == list(range(heads))


def test_a_rank_has_a_piece_of_a_part_or_several_whole_ones() -> None:
    assert head_ranges(8, 1, 1, 4) == (HeadRange(0, 2, 0, 2),)
    assert head_ranges(8, 4, 1, 2) == (HeadRange(2, 0, 0, 2), HeadRange(3, 0, 2, 2))


@pytest.mark.parametrize(("parts", "ranks"), [(4, 1), (1, 4), (3, 2)])
def test_parts_of_heads_are_not_divided(parts: int, ranks: int) -> None:
    with pytest.raises(AssertionError, match="refuse"):
        head_ranges(2, parts, 0, ranks)


def drawn(heads: int) -> Tensor:
    """[page, layer, 2, token, head, dim]: each number once."""
    shape = (PAGES, LAYERS, 2, TOKENS, heads, DIM)
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape)


def in_parts(pages: Tensor, parts: int) -> bytes:
    """As an engine of so many ranks sends them."""
    return torch.stack(pages.chunk(parts, dim=4), dim=1).numpy().tobytes()


def pools_of(heads: int, ranks: int) -> list[PagePool]:
    shape = KvShape(LAYERS, heads // ranks, DIM, torch.float32)
    return [PagePool(shape, PAGES, TOKENS) for _ in range(ranks)]


@pytest.mark.parametrize(("parts", "ranks", "heads"), DIVIDED)
def test_each_byte_arrives_once_and_is_sent_back_as_it_came(
    parts: int, ranks: int, heads: int
) -> None:
    """A page of twelve heads or fewer, into pages 4, 0 and 2 of the ranks' pools."""
    pages, places = drawn(heads), [(0, 4), (1, 0), (2, 2)]
    sent = in_parts(pages[[0, 1, 2]], parts)
    host = torch.frombuffer(bytearray(sent), dtype=torch.uint8)
    back = torch.zeros_like(host)
    pools = pools_of(heads, ranks)
    for rank, pool in enumerate(pools):
        pool.data.fill_(-1)
        PoolCopies(pool, host, RankShare(rank, ranks)).copy_heads(places, parts, to_pool=True)
        PoolCopies(pool, back, RankShare(rank, ranks)).copy_heads(places, parts, to_pool=False)
    whole = torch.cat([pool.data for pool in pools], dim=4)
    assert torch.equal(whole[[4, 0, 2]], pages[[0, 1, 2]])
    assert bool((whole[[1, 3, 5]] == -1).all()), "pages that nobody named"
    assert bytes(memory_at(back.data_ptr(), len(sent))) == sent


def test_a_page_outside_of_the_pool_is_not_written() -> None:
    (pool,) = pools_of(2, 1)
    host = torch.zeros(2 * pool.page_bytes, dtype=torch.uint8)
    copies = PoolCopies(pool, host, RankShare(0, 1))
    for page in (-1, PAGES):
        with pytest.raises(AssertionError, match="outside"):
            copies.copy_heads([(0, page)], 2, to_pool=True)
