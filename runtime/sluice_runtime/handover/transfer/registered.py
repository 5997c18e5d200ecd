"""Ranges of memory that were registered, and checksums over bytes where they lie. Knows no backend.

A checksum (xxh3_64) finds exchanged and stale pages; it is no signature. Pages of two rooms that
are exchanged together with their checksums are found too: the room's number is the seed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterable, Sequence

import xxhash

from sluice_runtime.handover.transfer.backend import NotRegisteredError


class RegisteredMemory:
    """Ranges that may be read and written. There are a few large ones, so every look-up goes
    through all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ranges: tuple[tuple[int, int], ...] = ()
        """(first address, address after the last)."""

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return self._ranges

    def add(self, address: int, length_bytes: int) -> None:
        check_range(address, length_bytes)
        with self._lock:
            self._ranges = (*self._ranges, (address, address + length_bytes))

    def holds(self, address: int, length_bytes: int) -> bool:
        end = address + length_bytes
        return length_bytes > 0 and any(
            first <= address and end <= last for first, last in self._ranges
        )

    def view(self, address: int, length_bytes: int) -> memoryview:
        """The bytes themselves, not a copy.

        Raises:
            NotRegisteredError: a byte is outside the registered ranges.
        """
        if not self.holds(address, length_bytes):
            raise NotRegisteredError(
                f"{length_bytes} bytes at {address:#x} are outside of registered memory"
            )
        return memory_at(address, length_bytes)


def check_range(address: int, length_bytes: int) -> None:
    """
    Raises:
        NotRegisteredError: no backend can register this range.
    """
    if address <= 0 or length_bytes <= 0:
        raise NotRegisteredError(
            f"register: {length_bytes} bytes at {address:#x}; allowed: at least one byte, "
            "not at address 0"
        )


def memory_at(address: int, length_bytes: int) -> memoryview:
    """A writable view of raw memory. The caller makes sure that the memory exists."""
    return memoryview((ctypes.c_char * length_bytes).from_address(address)).cast("B")


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
