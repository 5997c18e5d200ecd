"""xxh3_64 over bytes where they lie. Finds exchanged and stale pages; it is no signature.

Pages of two rooms that are exchanged together with their checksums are found too: the room's number
is the seed.
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
    """Checksum over whole pages of a pool in the order given. `base_address`: of page 0."""
    ranges = ((base_address + page * page_bytes, page_bytes) for page in page_ids)
    return checksum(ranges, room)
