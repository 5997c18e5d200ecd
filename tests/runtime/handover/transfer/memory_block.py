"""Memory with an address, and bytes to tell apart."""

from __future__ import annotations

import ctypes
import mmap
import random


class MemoryBlock:
    """Of this process; zero at first."""

    def __init__(self, size: int) -> None:
        self._mmap = mmap.mmap(-1, size)
        self.size = size
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._mmap))

    def fill(self, data: bytes) -> None:
        self._mmap[: len(data)] = data

    def bytes_at(self, offset: int, length: int) -> bytes:
        return self._mmap[offset : offset + length]


def contents(seed: int, size: int) -> bytes:
    """The same in every process."""
    return random.Random(seed).randbytes(size)
