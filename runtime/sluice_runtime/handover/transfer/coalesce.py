"""Joins pages to fewer, longer pieces where they are neighbours on both sides.

Pure. Keeps the order of the bytes, on which checksums depend.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice_runtime.handover.transfer.backend import Piece


def page_pieces(
    remote_base: int,
    local_base: int,
    page_bytes: int,
    remote_pages: Sequence[int],
    local_pages: Sequence[int],
) -> list[Piece]:
    """Pieces that read page `remote_pages[i]` of the peer's pool into page `local_pages[i]` of
    ours.

    A base is the address of page 0. Both lists have the same length.
    """
    return coalesce(
        Piece(remote_base + remote * page_bytes, local_base + local * page_bytes, page_bytes)
        for remote, local in zip(remote_pages, local_pages, strict=True)
    )


def coalesce(pieces: Iterable[Piece]) -> list[Piece]:
    """Joins each piece that continues the previous one on both sides; drops empty pieces."""
    joined: list[Piece] = []
    for piece in pieces:
        if piece.length_bytes == 0:
            continue
        if joined and _continues(joined[-1], piece):
            remote, local, length = joined[-1]
            joined[-1] = Piece(remote, local, length + piece.length_bytes)
        else:
            joined.append(piece)
    return joined


def _continues(before: Piece, piece: Piece) -> bool:
    remote, local, length = before
    return piece.remote_address == remote + length and piece.local_address == local + length
