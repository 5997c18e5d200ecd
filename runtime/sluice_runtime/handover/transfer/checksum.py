"""Checksums (xxh3_64) over memory, without copying it. They reveal swapped and stale pages, but are
not signatures.

The room's number is the seed, so pages that two rooms swapped together with their checksums are
revealed too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from sluice_runtime.handover.transfer.registered import memory_at


def checksum(ranges: Iterable[tuple[int, int]], room: int = 0) -> int:
    """Checksum over the bytes of (address, length in bytes), one after the other. Releases the GIL.

    How the bytes are divided into ranges makes no difference.
    """
    digest = xxhash.xxh3_64(seed=room)
    for address, length_bytes in ranges:
        digest.update(memory_at(address, length_bytes))
    return digest.intdigest()


def checksum_of_pages(
    base_address: int, page_bytes: int, page_ids: Sequence[int], room: int = 0
) -> int:
    """Checksum over whole pages of a pool, in the order of `page_ids`. `base_address`: address of
    page 0."""
    ranges = ((base_address + page * page_bytes, page_bytes) for page in page_ids)
    return checksum(ranges, room)
