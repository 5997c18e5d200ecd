"""A checksum of the bytes of pages, by their order and not by how they are divided."""

from __future__ import annotations

import xxhash
from sluice_runtime.handover.transfer.registered import checksum, checksum_of_pages

from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents

PAGE = 4096


def test_the_order_of_pages_counts_and_ranges_do_not() -> None:
    memory = MemoryBlock(4 * PAGE)
    memory.fill(data := contents(1, 4 * PAGE))
    expected = xxhash.xxh3_64(data[PAGE:]).intdigest()
    assert checksum_of_pages(memory.address, PAGE, [1, 2, 3]) == expected
    assert checksum([(memory.address + PAGE, 5), (memory.address + PAGE + 5, 3 * PAGE - 5)]) == (
        expected
    )
    assert checksum_of_pages(memory.address, PAGE, [1, 3, 2]) != expected


def test_one_changed_bit_is_another_checksum() -> None:
    memory = MemoryBlock(PAGE)
    before = checksum_of_pages(memory.address, PAGE, [0])
    memory.fill(b"\0\0\1")
    assert checksum_of_pages(memory.address, PAGE, [0]) != before


def test_the_same_bytes_have_another_checksum_in_another_room() -> None:
    memory = MemoryBlock(PAGE)
    sums = {checksum([(memory.address, PAGE)], room=room) for room in (0, 7, 2**63 - 1)}
    assert len(sums) == 3
