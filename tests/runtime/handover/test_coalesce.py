"""Pieces of pages, fewer and with the same bytes in the same order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.handover.page_reads import coalesce, page_pieces
from sluice_runtime.handover.transfer.backend import MemoryPiece

PIECES = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 3)).map(
        lambda each: MemoryPiece(*each)
    ),
    max_size=12,
)


def moved(pieces: list[MemoryPiece]) -> list[tuple[int, int]]:
    """(from, to) of every byte, in order."""
    return [
        (remote + offset, local + offset)
        for remote, local, length in pieces
        for offset in range(length)
    ]


@given(PIECES)
def test_the_same_bytes_move_in_the_same_order(pieces: list[MemoryPiece]) -> None:
    assert moved(coalesce(pieces)) == moved(pieces)


@given(PIECES)
def test_no_two_neighbours_could_be_one(pieces: list[MemoryPiece]) -> None:
    joined = coalesce(pieces)
    assert coalesce(joined) == joined
    assert all(piece.length_bytes for piece in joined)
    for before, after in pairwise(joined):
        there = before.remote_address + before.length_bytes == after.remote_address
        here = before.local_address + before.length_bytes == after.local_address
        assert not (there and here)


def test_pages_are_joined_only_where_both_sides_go_on() -> None:
    assert page_pieces(1000, 5000, 10, [3, 4, 5, 7, 8], [0, 1, 2, 3, 9]) == [
        MemoryPiece(1030, 5000, 30),
        MemoryPiece(1070, 5030, 10),
        MemoryPiece(1080, 5090, 10),
    ]


def test_every_page_needs_one_on_the_other_side() -> None:
    with pytest.raises(ValueError, match="shorter"):
        page_pieces(0, 0, 10, [1, 2], [1])
