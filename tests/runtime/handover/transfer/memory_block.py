"""Memory with an address, and bytes to tell apart."""

from __future__ import annotations

import ctypes
import mmap
import random

MARGIN = mmap.PAGESIZE


class MemoryBlock:
    """Of this process; zero at first. No other block begins where it ends."""

    def __init__(self, size: int) -> None:
        self._mmap = mmap.mmap(-1, size + 2 * MARGIN)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mmap)) + MARGIN

    def fill(self, data: bytes) -> None:
        self._mmap[MARGIN : MARGIN + len(data)] = data

    def bytes_at(self, offset: int, length: int) -> bytes:
        return self._mmap[MARGIN + offset : MARGIN + offset + length]


def contents(seed: int, size: int) -> bytes:
    """The same in every process."""
    return random.Random(seed).randbytes(size)
